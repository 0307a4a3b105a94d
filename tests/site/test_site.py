"""Checks of the built site: `nox -s docs` runs them after each build."""

import functools
import html
import importlib
import json
import re
from collections import Counter
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import html5lib
import pytest
from reader import PAGES, ROOT, SITE, needs_site
from sphinx.util import inventory

import autopar

SCRIPTS = sorted((ROOT / "gallery").rglob("plot_*.py"))
_NOT_WRITTEN = {"404.html", "genindex.html", "py-modindex.html", "search.html"}  # or no place to go
_WIDEST = 480  # pixels of a figure, of which a phone shows 358

pytestmark = needs_site


@functools.cache
def anchors(page):
    """What addresses on a page may end in."""
    found = re.findall(r'\s(?:id|name)="([^"]*)"', page.read_text(encoding="utf-8"))
    return set(map(html.unescape, found))


def resolves(page, reference):
    """Whether a relative reference on a page means a file that is there, and its anchor."""
    parts = urlsplit(reference)
    path, anchor = (page.parent / unquote(parts.path)).resolve(), unquote(parts.fragment)
    path = page if not parts.path else path / "index.html" if path.is_dir() else path
    return path.is_file() and (not anchor or path.suffix != ".html" or anchor in anchors(path))


def faults(page):
    """What is wrong with the HTML of a page, in words."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(page.read_text(encoding="utf-8"))
    yield from (f"line {line}: {code} {data}" for (line, _), code, data in parser.errors)
    elements = [element for element in tree.iter() if isinstance(element.tag, str)]
    ids = Counter(filter(None, (element.get("id") for element in elements)))
    yield from (f"{count} elements have the id {name}" for name, count in ids.items() if count > 1)
    for element in elements:
        for address in addresses(element):
            scheme, host, *_ = urlsplit(address)
            is_loaded = element.tag != "a" and element.get("rel") != "canonical"
            if not scheme and not host and not resolves(page, address) and element.tag != "base":
                yield f"{address} leads nowhere"
            elif is_loaded and (host or scheme not in ("", "data")):
                yield f"{address} is loaded from elsewhere"
    if page.name.startswith("plot_"):
        script = ROOT / "gallery" / page.relative_to(SITE / "auto_gallery").with_suffix(".py")
        yield from faults_of_gallery_page(elements, script)


def addresses(element):
    """Where an element leads, and what a browser fetches for it."""
    one, several = map(element.get, ("href", "src", "data")), element.get("srcset", "").split(",")
    return [address.split()[0] for address in (*one, *several) if address]


def of_class(name, elements):
    return [element for element in elements if name in element.get("class", "").split()]


def faults_of_gallery_page(elements, script):
    """What a gallery page lacks that each of them has, in words."""
    if not of_class("autopar-live", elements) + of_class("autopar-recorded", elements):
        yield "does not say where its numbers are from"
    terms = [term.get("href", "") for term in of_class("term", elements)]
    if len(terms) < 2 or len(terms) > len(set(terms)):
        yield f"links few terms, or one twice: {terms}"
    yield from (f"{term} is no entry" for term in terms if "glossary.html#term-" not in term)

    (row,) = of_class("autopar-row", elements)
    links = [link.get("href", "") for link in row.iter("a") if not of_class("term", [link])]
    ends = [".ipynb", ".py"]
    if importlib.import_module("addresses").PUBLISHED:
        ends = [f"/{script.stem}.ipynb", *ends, f"/gallery/{script.parent.name}/{script.name}"]
    if len(links) != len(ends) or not all(map(str.endswith, links, ends)):
        yield f"has other files in its row than {ends}: {links}"
    said, levels = " ".join("".join(row.itertext()).split()), "beginner|intermediate|advanced"
    if not re.search(rf"level: ({levels}) \d+ minutes; needs .*GPU", said):
        yield "does not say in its row its level, how long it takes, and whether it needs a GPU"

    details = [element for element in elements if element.tag == "details"]
    images = {box for one in details for box in of_class("autopar-image", one.iter("div"))}
    drawn = script.read_text(encoding="utf-8").count("ap.show_timelines(")
    if len(images) != drawn:
        yield f"has {len(images)} images in the details of {drawn} drawings"


@pytest.mark.parametrize("page", PAGES)
def test_page_is_whole(page):
    assert list(faults(SITE / page)) == []


def test_each_script_has_run_and_has_its_page():
    for script in SCRIPTS:
        page = f"auto_gallery/{script.parent.name}/{script.stem}"
        assert f"{page}.html" in PAGES
        # The time of the last run stays beside the page, also when a build need not run it.
        cost = json.loads((ROOT / "docs" / f"{page}.cost.json").read_text(encoding="utf-8"))
        assert cost["time"] > 0, script
    suite = ElementTree.parse(SITE.parent / "gallery-junit.xml").getroot()
    assert suite.get("failures") == suite.get("skipped") == suite.get("errors") == "0"


def test_style_sheets_load_nothing_from_elsewhere():
    sheets = {sheet: sheet.read_text(encoding="utf-8") for sheet in SITE.rglob("*.css")}
    assert sheets
    for sheet, text in sheets.items():
        assert not re.search(r"""(url\(|@import)\s*["']?\s*(http|//)""", text), sheet


def test_sitemap_has_every_page():
    places = [element.text or "" for element in ElementTree.parse(SITE / "sitemap.xml").iter()]
    written = set(PAGES) - _NOT_WRITTEN
    assert len(written) > len(SCRIPTS)
    for page in written:
        assert any(place.endswith(f"/{page}") for place in places), page


@pytest.mark.parametrize("page", sorted({*PAGES} - _NOT_WRITTEN))
def test_page_is_told_by_whole_sentences(page):
    text = (SITE / page).read_text(encoding="utf-8")
    said = html.unescape(re.search(r'"og:description" content="([^"]*)"', text)[1])
    assert re.fullmatch(r"(autopar|[A-Z]).{30,250}[.?]", said)


def test_letters_of_figures_can_be_read_on_a_phone():
    figures = [path for path in SITE.glob("_images/sphx_glr_*.png") if "_2_00x" not in path.name]
    widths = {path.name: int.from_bytes(path.read_bytes()[16:20]) for path in figures}
    assert widths
    assert {name: width for name, width in widths.items() if width > _WIDEST} == {}


def test_public_names_are_documented():
    entries = inventory.InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind in entries if kind.startswith("py:") for name in entries[kind]}
    assert {f"autopar.{name}" for name in autopar.__all__} <= documented


def test_the_search_knows_no_word_of_a_drawing_or_of_what_a_cell_prints():
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = {
        word: {pages} if isinstance(pages, int) else {*pages}
        for word, pages in index["terms"].items()
    }
    words = {word for word, places in pages.items() if places}  # as after a change
    assert {"stream", "lost"} <= words
    assert [word for word in words if word.startswith(("sgemm", "magma", "cutlass"))] == []
    assert index["docnames"].index("five_minutes") not in pages["lost"]  # which its reports say
