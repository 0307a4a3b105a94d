"""Checks of the built site: `nox -s docs` runs them after each build."""

import functools
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

import autopar

html5lib = pytest.importorskip("html5lib", reason="html5lib comes with the group docs")
inventory = pytest.importorskip("sphinx.util.inventory", reason="Sphinx comes with the group docs")

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
PAGES = sorted(SITE.rglob("*.html"))
SCRIPTS = sorted((ROOT / "gallery").rglob("plot_*.py"))
_NOT_WRITTEN = {"404.html", "genindex.html", "py-modindex.html", "search.html"}  # or no place to go
_WIDEST = 480  # pixels of a figure, of which a phone shows 358

# What a browser fetches by itself; plain links to elsewhere are welcome.
LOADS = {"audio", "embed", "iframe", "img", "input", "object", "script", "source", "track", "video"}
LOADING_LINKS = {"icon", "stylesheet", "preload", "modulepreload", "manifest", "mask-icon"}

pytestmark = pytest.mark.skipif(not PAGES, reason="no site in docs/_build/html: run `nox -s docs`")


def class_of(element: ElementTree.Element) -> list[str]:
    return element.get("class", "").split()


class Anchors(HTMLParser):
    """What addresses on a page may end in."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: set[str | None] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {value for name, value in attrs if name in ("id", "name")}


@functools.cache
def anchors(page: Path) -> set[str | None]:
    return Anchors(page).names


def target(page: Path, reference: str) -> tuple[Path, str]:
    """The file and the anchor that a relative reference on a page means."""
    parts = urlsplit(reference)
    path = unquote(parts.path)
    return (page.parent / path).resolve() if path else page, unquote(parts.fragment)


def resolves(page: Path, reference: str) -> bool:
    path, anchor = target(page, reference)
    path = path / "index.html" if path.is_dir() else path
    return path.is_file() and (not anchor or path.suffix != ".html" or anchor in anchors(path))


def faults(page: Path) -> Iterator[str]:
    """What is wrong with the HTML of a page, in words."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(page.read_text(encoding="utf-8"))
    yield from (f"line {line}: {code} {data}" for (line, _), code, data in parser.errors)
    elements = [element for element in tree.iter() if isinstance(element.tag, str)]
    ids = Counter(filter(None, (element.get("id") for element in elements)))
    yield from (f"{count} elements have the id {name}" for name, count in ids.items() if count > 1)
    for element in elements:
        link = element.get("href", "")
        if element.tag == "a" and link and not urlsplit(link).scheme and not resolves(page, link):
            yield f"{link} leads nowhere"
        if element.tag == "img" and element.get("alt") is None:
            yield f"{element.get('src')} has no alternative text"
        for source in loaded(element):
            if source.startswith(("http:", "https:", "//")):
                yield f"{source} is loaded from elsewhere"
            elif not source.startswith("data:") and not target(page, source)[0].is_file():
                yield f"{source} is missing"
    if page.name.startswith("plot_"):
        script = ROOT / "gallery" / page.relative_to(SITE / "auto_gallery").with_suffix(".py")
        yield from faults_of_gallery_page(elements, script)


def loaded(element: ElementTree.Element) -> Iterator[str]:
    """The addresses that a browser fetches for an element."""
    if element.tag in LOADS:
        sources = element.get("srcset", "").split(",")
        sources = [source.strip().split(" ")[0] for source in sources]
        yield from filter(None, [element.get("src"), element.get("data"), *sources])
    elif element.tag == "link" and set(element.get("rel", "").split()) & LOADING_LINKS:
        yield element.get("href", "")


def faults_of_gallery_page(elements: list[ElementTree.Element], script: Path) -> Iterator[str]:
    """What a gallery page lacks that each of them has, in words."""
    by_class: dict[str, list[ElementTree.Element]] = {}
    for element in elements:
        for name in class_of(element):
            by_class.setdefault(name, []).append(element)
    if not {"autopar-live", "autopar-recorded"} & by_class.keys():
        yield "does not say where its numbers are from"

    (row,) = by_class["autopar-row"]
    links = [link.get("href", "") for link in row.iter("a") if "term" not in class_of(link)]
    ends = [".ipynb", ".py"]
    if importlib.import_module("addresses").PUBLISHED:
        ends = [f"/{script.stem}.ipynb", *ends, f"/gallery/{script.parent.name}/{script.name}"]
    if len(links) != len(ends) or not all(map(str.endswith, links, ends)):
        yield f"has other files in its row than {ends}: {links}"
    if not re.search(r"\d+ minutes to read, .*GPU", "".join(row.itertext())):
        yield "does not say in its row how long it takes, and whether it needs a GPU"

    terms = [term.get("href", "") for term in by_class.get("term", [])]
    if len(terms) < 2 or len(terms) > len(set(terms)):
        yield f"links few terms, or one twice: {terms}"
    yield from (f"{term} is no entry" for term in terms if "glossary.html#term-" not in term)

    details = [element for element in elements if element.tag == "details"]
    images = {box for one in details for box in one.iter("div") if "autopar-image" in class_of(box)}
    drawn = script.read_text(encoding="utf-8").count("ap.show_timelines(")
    if len(images) != drawn:
        yield f"has {len(images)} images in the details of {drawn} drawings"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_page_is_whole(page: Path) -> None:
    assert list(faults(page)) == []


def test_each_script_has_run_and_has_its_page() -> None:
    for script in SCRIPTS:
        page = Path("auto_gallery") / script.relative_to(ROOT / "gallery").with_suffix(".html")
        assert (SITE / page).is_file()
        # The time of the last run stays beside the page, also when a build need not run it.
        cost = (ROOT / "docs" / page).with_suffix(".cost.json")
        assert json.loads(cost.read_text(encoding="utf-8"))["time"] > 0, script
    suite = ElementTree.parse(SITE.parent / "gallery-junit.xml").getroot()
    assert suite.get("failures") == suite.get("skipped") == suite.get("errors") == "0"


def test_style_sheets_load_nothing_from_elsewhere() -> None:
    sheets = {sheet: sheet.read_text(encoding="utf-8") for sheet in SITE.rglob("*.css")}
    assert sheets
    for sheet, text in sheets.items():
        assert not re.search(r"""(url\(|@import)\s*["']?\s*(http|//)""", text), sheet


def test_sitemap_has_every_page() -> None:
    places = [element.text or "" for element in ElementTree.parse(SITE / "sitemap.xml").iter()]
    written = {page.relative_to(SITE).as_posix() for page in PAGES} - _NOT_WRITTEN
    assert len(written) > len(SCRIPTS)
    for page in written:
        assert any(place.endswith(f"/{page}") for place in places), page


def test_letters_of_figures_can_be_read_on_a_phone() -> None:
    figures = [path for path in SITE.glob("_images/sphx_glr_*.png") if "_2_00x" not in path.name]
    widths = {path.name: int.from_bytes(path.read_bytes()[16:20]) for path in figures}
    assert widths
    assert {name: width for name, width in widths.items() if width > _WIDEST} == {}


def test_public_names_are_documented() -> None:
    entries = inventory.InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind in entries if kind.startswith("py:") for name in entries[kind]}
    assert {f"autopar.{name}" for name in autopar.__all__} <= documented


def test_no_word_of_a_drawing_is_in_the_index_of_the_search() -> None:
    index = (SITE / "searchindex.js").read_text(encoding="utf-8")
    pages_of = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    words = {word for word, pages in pages_of.items() if pages != []}  # as after a change
    assert "stream" in words
    assert [word for word in words if word.startswith(("sgemm", "magma", "cutlass"))] == []
