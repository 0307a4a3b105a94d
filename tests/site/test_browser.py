"""The built site in Chromium: every page for everyone, and what one uses on some, used."""

import functools
import hashlib
import mimetypes
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright comes with the group browser"
)
axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-playwright-python comes with the group browser"
)

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = sorted(SITE.rglob("*.html"))
HOME, CHAPTER_3 = SITE / "index.html", SITE / "chapter" / "3_computing_and_copying.html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
AXE = Path(axe.__file__).with_name("axe.min.js")
HOST, UNDER = "http://localhost", "/en/latest/"  # a host that browsers trust, as they do https
MOST_BYTES = 1_500_000  # of a first view, not compressed
WIDE, NARROW, HIGH = 1280, 360, 800
LOOKS = [  # each width, light and dark; by the system's setting, and by the reader's choice
    (WIDE, "light", "auto"),
    (WIDE, "dark", "auto"),
    (NARROW, "dark", "light"),
    (NARROW, "light", "dark"),
]
UNFOLD = "document.querySelectorAll('details').forEach((each) => (each.open = true))"
# Where text lies on a gradient or below a link that covers its card, axe does not tell the
# contrast: both let the page's own colour through.
PLAIN = """
* { transition: none !important; animation: none !important; }
.autopar-table-box, .table-wrapper { background: none !important; }
.sphx-glr-thumbcontainer a::before { display: none !important; }
"""
RESIZED = """async (width) => {  // its scripts have heard of it before the second frame
  const frame = () => new Promise(requestAnimationFrame);
  while (innerWidth !== width) await frame();
  await frame();
  await frame();
}"""
VIOLATIONS = """async (contrast) => {
    const rules = { "color-contrast": { enabled: contrast } };
    const { violations } = await axe.run(document, { rules, resultTypes: ["violations"] });
    return violations.flatMap(({ id, nodes }) =>
        nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`));
}"""
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
# What scripts add is for those who have them.
LINES = """() => {
    document.querySelectorAll("button, [data-live]").forEach((each) => each.remove());
    return document.querySelector("article").innerText.split("\\n").map((each) => each.trim());
}"""

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="no site in docs/_build/html: run `nox -s docs`"),
    pytest.mark.skipif(not CHROMIUM, reason=f"none of {', '.join(NAMES)} is installed"),
]
used = pytest.mark.skipif(not CHAPTER_3.exists(), reason="there is no chapter to use")


class Reader:
    """A window on the site, which stands alone on its host; what goes wrong is written down."""

    def __init__(self, browser, width, **options):
        self.faults, self.size = [], 0
        options |= {"viewport": {"width": width, "height": HIGH}}
        self.context = browser.new_context(**options)
        self.context.route("**/*", self._serve)
        self.tab = self.context.new_page()
        self.tab.on("console", self._hear)
        self.tab.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _serve(self, route):
        address = urlsplit(route.request.url)
        file = SITE / unquote(address.path).removeprefix(UNDER)
        if f"{address.scheme}://{address.netloc}" != HOST:
            self.faults.append(f"asks another host: {route.request.url}")
            route.abort()
            return
        if not file.is_file():
            if not route.request.is_navigation_request():
                self.faults.append(f"asks for what is not there: {route.request.url}")
            file = SITE / "404.html"
        content = file.read_bytes()
        self.size += len(content)
        route.fulfill(body=content, content_type=mimetypes.guess_type(file.name)[0])

    def _hear(self, message):
        if message.type == "error":
            self.faults.append(f"console: {message.text}")

    def open(self, page):
        """Go to a page; to 404 by an address that is of no page."""
        self.faults, self.size = [], 0
        place = page.relative_to(SITE).as_posix()
        self.tab.goto(f"{HOST}{UNDER}{'no/such/page' if place == '404.html' else place}")
        return self.tab


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reader(browser):
    return Reader(browser, WIDE)


@pytest.fixture(scope="module")
def without_scripts(browser):
    return Reader(browser, NARROW, java_script_enabled=False)


@functools.cache
def shared():
    """A digest of what pages share: styles, scripts, pictures, and this test."""
    files = [*SITE.glob("_static/**/*"), *SITE.glob("_images/*"), Path(__file__), AXE]
    contents = (each.read_bytes() for each in sorted(files) if each.is_file())
    return hashlib.sha256(b"".join(contents)).hexdigest()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_page_is_for_everyone(page, reader, without_scripts, pytestconfig):
    key = f"site/{page.relative_to(SITE)}"
    digest = shared() + hashlib.sha256(page.read_bytes()).hexdigest()
    if pytestconfig.cache.get(key, "") == digest:
        pytest.skip("the page is as it was when it passed")
    tab = reader.open(page)
    faults = reader.faults
    if reader.size > MOST_BYTES:
        faults.append(f"{reader.size} bytes to see it first")
    tab.add_style_tag(content=PLAIN)
    tab.evaluate(UNFOLD)
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    for width, system, chosen in LOOKS:
        tab.set_viewport_size({"width": width, "height": HIGH})
        tab.emulate_media(color_scheme=system)
        tab.evaluate(RESIZED, width)
        tab.evaluate("(chosen) => (document.body.dataset.theme = chosen)", chosen)
        look = f"{width} px, {system if chosen == 'auto' else chosen}"
        if tab.evaluate(TOO_WIDE):
            faults.append(f"{look}: scrolls sideways")
        # Only the theme's head has other colours on a narrow page, and it is the same on each. The
        # contrast takes most of the time.
        contrast = width == WIDE or page.name == "index.html"
        faults += [f"{look}: {words}" for words in tab.evaluate(VIOLATIONS, contrast)]
    lines = tab.evaluate(LINES)
    tab.set_viewport_size({"width": WIDE, "height": HIGH})
    tab = without_scripts.open(page)
    tab.evaluate(UNFOLD)
    if tab.evaluate(TOO_WIDE):
        faults.append("without scripts: scrolls sideways")
    faults += without_scripts.faults
    hidden = set(lines).difference(tab.evaluate(LINES))
    faults += [f"without scripts, hidden: {line}" for line in sorted(hidden)]
    assert not faults, "\n".join(faults)
    pytestconfig.cache.set(key, digest)


def test_a_reader_searches(reader):
    tab = reader.open(HOME)
    tab.locator("input[name=q]").fill("record_stream")
    tab.keyboard.press("Enter")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    first.click()
    tab.wait_for_url(re.compile(r"/(?!search\.html)[^/?]*(\?|#|$)"))
    assert "record_stream" in tab.locator("article").inner_text()
    assert not reader.faults


@used
def test_a_reader_turns_to_the_second_tab_by_keyboard(reader):
    tab = reader.open(HOME)
    tabs = tab.locator(".sd-tab-set").first
    panels = tabs.locator(":scope > .sd-tab-content")
    assert [each.is_visible() for each in panels.all()] == [True, False]
    tabs.locator(":scope > input").first.focus()
    tab.keyboard.press("ArrowRight")
    assert [each.is_visible() for each in panels.all()] == [False, True]
    assert not reader.faults


@used
def test_a_reader_looks_into_a_timeline(reader):
    tab = reader.open(SITE / "auto_gallery" / "first_steps" / "plot_4_compute_and_copy.html")
    figure = tab.locator(".autopar-figure").first
    told = figure.locator(".autopar-tools")
    bars = figure.locator("g[data-lane] > rect")
    bars.first.hover()
    by_pointer = told.inner_text()
    assert re.search(r" · .*s, from .* to .* · \S", by_pointer)
    bars.first.focus()
    tab.keyboard.press("ArrowRight")
    assert told.inner_text() not in ("", by_pointer)
    width = figure.locator("svg").first.bounding_box()["width"]
    tab.keyboard.press("+")
    assert figure.locator("svg").first.bounding_box()["width"] == pytest.approx(2 * width, abs=1)
    assert not reader.faults


@used
def test_a_reader_changes_the_simulator_by_keyboard(reader):
    tab = reader.open(CHAPTER_3)
    simulator = tab.locator(".autopar-simulator")
    assert simulator.count() == 1, "section 3 of the chapter has no simulator"
    makespan, limit = (simulator.locator(f"[data-part={part}]") for part in ("makespan", "limit"))
    overlapped, least = makespan.inner_text(), limit.inner_text()
    assert overlapped
    simulator.locator("[name=streams]").focus()
    tab.keyboard.press("ArrowUp")  # one stream for everything
    assert makespan.inner_text() != overlapped
    assert limit.inner_text() == least
    simulator.locator("[name=chunks]").focus()
    tab.keyboard.press("ArrowLeft")
    assert limit.inner_text() != least
    assert not reader.faults
