"""The built site in Chromium: every page for everyone, and what one uses on some, used."""

import re
from pathlib import Path

import pytest
from reader import HIGH, HOST, NARROW, PAGES, SITE, UNDER, WIDE, Reader, needs_site

axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-playwright-python comes with the group browser"
)

AXE = Path(axe.__file__).with_name("axe.min.js")
MOST_BYTES = 1_500_000  # of a first view, not compressed
# Of axe's rules those about colours take most of the time, and need each look; the others need each
# width. Only the theme's head has other colours on a narrow page, and it is the same on each page.
COLOURS = ["color-contrast", "link-in-text-block"]
LOOKS = [  # width; the system's setting, and the reader's choice; whether shapes, colours are new
    (WIDE, "light", "auto", True, True),
    (WIDE, "dark", "auto", False, True),
    (NARROW, "dark", "light", True, False),
    (NARROW, "light", "dark", False, False),
]
UNFOLD = "document.querySelectorAll('details').forEach((each) => (each.open = true))"
# Where text lies on a gradient or below a link that covers its card, axe does not tell the
# contrast: both let the page's own colour through.
PLAIN = """
* { transition: none !important; animation: none !important; }
.autopar-table-box, .autopar-columns, .table-wrapper { background: none !important; }
.sphx-glr-thumbcontainer a::before { display: none !important; }
"""
RESIZED = """async (width) => {  // its scripts have heard of it before the second frame
  const frame = () => new Promise(requestAnimationFrame);
  while (innerWidth !== width) await frame();
  await frame();
  await frame();
}"""
# What has the same tags and classes down to it has the same colours: as most words of code have.
MARK_REPEATED = """() => {
    const seen = new Set();
    for (const each of document.querySelectorAll("body *:not(:has(*)):not(svg *)")) {
        let key = "";
        for (let one = each; one !== document.body; one = one.parentElement)
            key += `${one.tagName} ${one.className} ${one.style.cssText} ${one.rowIndex % 2}; `;
        each.toggleAttribute("data-repeated", seen.has(key));
        seen.add(key);
    }
}"""
VIOLATIONS = """async ([names, chosen]) => {  // by these rules, or by all others
    const rules = Object.fromEntries(names.map((name) => [name, { enabled: false }]));
    const by = chosen ? { runOnly: names } : { rules };
    const where = chosen ? { exclude: ["[data-repeated]"] } : document;
    const { violations } = await axe.run(where, { ...by, resultTypes: ["violations"] });
    return violations.flatMap(({ id, nodes }) =>
        nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`));
}"""
# On a narrow page the theme lets the text scroll in a box of its own.
TOO_WIDE = """[document.documentElement, ...document.querySelectorAll(".content")]
    .some((box) => box.scrollWidth > box.clientWidth)"""
# Lines of code have 100 columns at most; what programs print may be wider, and scrolls.
CUT = """[...document.querySelectorAll(
    ":is(.highlight-Python, .highlight-python, .highlight-default, .highlight-ipython3) pre"
)].some((pre) => pre.scrollWidth > pre.clientWidth)"""
MARKED = "() => new Promise((done) => setTimeout(done, 50))"  # what was found, after 10 ms
# What scripts add is for those who have them.
LINES = """() => {
    document.querySelectorAll("button, [data-live]").forEach((each) => each.remove());
    return document.querySelector("article").innerText.split("\\n").map((each) => each.trim());
}"""

TERMS = "pinned memory", "record_stream", "non_blocking", "NVTX", "GIL", "race condition"
FOUND = {term: f"glossary.html#term-{term.replace(' ', '-')}" for term in TERMS} | {
    "pinned": "glossary.html#",
    "install": "install.html",
    "nsight": "auto_gallery/tools/plot_1_verify_with_nsight.html",
    "deadlock": "howto/from_one_machine_to_many.html",
    "multiprocessing": "howto/from_one_machine_to_many.html",
    "asynchronous": "chapter/1_work_is_queued.html",
    "cudaMemcpyAsync": "chapter/3_computing_and_copying.html",
}

pytestmark = needs_site


@pytest.fixture(scope="module")
def reader(browser):
    return Reader(browser, WIDE)


@pytest.fixture(scope="module")
def without_scripts(browser):
    return Reader(browser, NARROW, java_script_enabled=False)


@pytest.mark.parametrize("page", PAGES)
def test_page_is_for_everyone(page, reader, without_scripts):
    place = "no/such/page" if page == "404.html" else page
    tab = reader.open(place)
    faults = reader.faults
    if reader.size > MOST_BYTES:
        faults.append(f"{reader.size} bytes to see it first")
    tab.add_style_tag(content=PLAIN)
    tab.evaluate(UNFOLD)
    tab.evaluate(MARK_REPEATED)
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    for width, system, chosen, shapes, colours in LOOKS:
        tab.set_viewport_size({"width": width, "height": HIGH})
        tab.emulate_media(color_scheme=system)
        tab.evaluate(RESIZED, width)
        tab.evaluate("(chosen) => (document.body.dataset.theme = chosen)", chosen)
        look = f"{width} px, {system if chosen == 'auto' else chosen}"
        if tab.evaluate(TOO_WIDE):
            faults.append(f"{look}: scrolls sideways")
        if tab.evaluate(CUT):
            faults.append(f"{look}: the end of a line of code is out of sight")
        for by_colour, needed in ((False, shapes), (True, colours or page == "index.html")):
            if needed:
                found = tab.evaluate(VIOLATIONS, [COLOURS, by_colour])
                faults += [f"{look}: {words}" for words in found]
    lines = tab.evaluate(LINES)
    tab.set_viewport_size({"width": WIDE, "height": HIGH})
    tab = without_scripts.open(place)
    tab.evaluate(UNFOLD)
    if tab.evaluate(TOO_WIDE):
        faults.append("without scripts: scrolls sideways")
    faults += without_scripts.faults
    hidden = set(lines).difference(tab.evaluate(LINES))
    faults += [f"without scripts, hidden: {line}" for line in sorted(hidden)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("words", "place"), FOUND.items())
def test_the_search_finds_the_page_about_it_first(reader, words, place):
    tab = reader.open("index.html")
    tab.locator("input[name=q]").fill(words)
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?*")
    tab.wait_for_function("/found (one|\\d)/.test(Search.status?.innerText)")
    links = tab.locator("#search-results li > a")
    read = "links => links.map((a) => [a.getAttribute('href'), a.textContent])"
    places, titles = zip(*links.evaluate_all(read), strict=True)
    assert places[0].startswith(place)
    for number in reversed(range(min(5, len(places)))):  # the first stays open
        links.nth(number).click()
        tab.wait_for_url(re.compile(r"/(?!search\.html)[^/?]*(\?|#|$)"))
        tab.evaluate(MARKED)
        assert not reader.faults
        if number:
            tab.go_back()
            tab.wait_for_function("/found (one|\\d)/.test(Search.status?.innerText)")
    if "#term-" in place:  # found once, under its own name
        assert words in tab.locator("article").inner_text()
        assert titles[0] == f"{words} (glossary)"
        assert titles.count(titles[0]) == 1
        assert "Glossary" not in titles[:-1]  # if at all, the whole of it is last
    if words == "pinned":
        assert any("plot_1_where_a_copys_time_goes" in place for place in places[:5])


@pytest.mark.parametrize("under", ["/", "/some/where/", UNDER])
@pytest.mark.parametrize("place", ["no_page.html", "chapter/none.html", "a/b/c/"])
def test_the_page_for_wrong_addresses_asks_for_nothing_and_leads_home(browser, under, place):
    elsewhere = Reader(browser, WIDE, under=under)
    tab = elsewhere.open(place)
    assert tab.locator("h1").inner_text() == "There is no such page"
    assert tab.evaluate("performance.getEntriesByType('resource')") == []
    tab.locator("a").click()
    tab.wait_for_url(re.compile(f"^{HOST}{under}index.html(#home)?$"))
    assert tab.locator("h1").inner_text().startswith("Is your PyTorch program")
    assert not elsewhere.faults
    elsewhere.context.close()


def test_the_page_for_wrong_addresses_leads_home_in_a_folder_too_and_may_be_dark(browser):
    tab = browser.new_page(color_scheme="dark")
    tab.goto((SITE / "404.html").as_uri())
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(255, 255, 255)"
    tab.locator("a").click()
    tab.wait_for_url((SITE / "index.html").as_uri())
    tab.close()


@pytest.mark.parametrize(("switch", "drawer"), [("nav", "sidebar"), ("toc", "toc")])
def test_drawers_open_by_keyboard_and_take_no_focus_while_they_are_closed(reader, switch, drawer):
    tab = reader.open("chapter/5_a_network_on_three_devices.html")
    tab.set_viewport_size({"width": NARROW, "height": HIGH})
    within = f"document.activeElement.closest('.{drawer}-drawer') !== null"
    on_switch = f"document.activeElement.matches('.{switch}-overlay-icon')"
    for _ in range(10):
        tab.keyboard.press("Tab")
        assert not tab.evaluate(within)
        if tab.evaluate(on_switch):
            break
    assert tab.evaluate(on_switch)
    for key, is_closed in (("Enter", "false"), ("Space", "true"), ("Enter", "false")):
        tab.keyboard.press(key)
        tab.wait_for_function(f"document.querySelector('.{drawer}-drawer').inert === {is_closed}")
    tab.locator(f".{drawer}-drawer a:visible").first.focus()
    assert tab.evaluate(within)
    assert not reader.faults


def test_arrows_scroll_a_wide_box_and_turn_no_page(reader):
    tab = reader.open("chapter/5_a_network_on_three_devices.html")
    tab.set_viewport_size({"width": NARROW, "height": HIGH})
    tab.locator("[data-wide]").first.focus()
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_function("document.querySelector('[data-wide]').scrollLeft > 0")
    assert tab.url.endswith("5_a_network_on_three_devices.html")


def test_a_reader_turns_to_the_second_tab_by_keyboard_and_looks_into_its_timeline(reader):
    tab = reader.open("index.html")
    tabs = tab.locator(".sd-tab-set").first
    panels = tabs.locator(":scope > .sd-tab-content")
    assert [each.is_visible() for each in panels.all()] == [True, False]
    tabs.locator(":scope > input").first.focus()
    tab.keyboard.press("ArrowRight")
    assert [each.is_visible() for each in panels.all()] == [False, True]
    figure = panels.last.locator(".autopar-figure")
    figure.locator("g[data-lane] > rect").first.hover()
    assert re.search(r" · .*s, from .* to .* · \S", figure.locator(".autopar-tools").inner_text())
    assert not reader.faults
