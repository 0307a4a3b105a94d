"""Checks of the built site: `nox -s docs` runs them after each build."""

import functools
import importlib
import json
import re
from collections.abc import Iterator
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
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


@functools.cache
def parse(page: Path) -> tuple[ElementTree.Element, list[str]]:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(page.read_text(encoding="utf-8"))
    return tree, [f"line {line}: {code} {data}" for (line, _), code, data in parser.errors]


def elements(page: Path) -> Iterator[ElementTree.Element]:
    return (each for each in parse(page)[0].iter() if isinstance(each.tag, str))


def class_of(each: ElementTree.Element) -> list[str]:
    return each.get("class", "").split()


@functools.cache
def anchors(page: Path) -> set[str]:
    return {each.get(name) for each in elements(page) for name in ("id", "name") if each.get(name)}


@functools.cache
def documented_names() -> set[str]:
    entries = inventory.InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="").data
    return {name for kind in entries if kind.startswith("py:") for name in entries[kind]}


def built_page(script: Path) -> Path:
    return SITE / "auto_gallery" / script.relative_to(ROOT / "gallery").with_suffix(".html")


def target(page: Path, reference: str) -> tuple[Path, str]:
    """The file and the anchor that a relative reference on a page means."""
    parts = urlsplit(reference)
    path = unquote(parts.path)
    return (page.parent / path).resolve() if path else page, unquote(parts.fragment)


def resolves(page: Path, reference: str) -> bool:
    path, anchor = target(page, reference)
    path = path / "index.html" if path.is_dir() else path
    return path.is_file() and (not anchor or path.suffix != ".html" or anchor in anchors(path))


@each_page
def test_page_is_valid_html(page: Path) -> None:
    assert parse(page)[1] == []


@each_page
def test_links_and_anchors_resolve(page: Path) -> None:
    links = [each.get("href", "") for each in elements(page) if each.tag == "a"]
    inside = [link for link in links if link and not urlsplit(link).scheme]
    assert [link for link in inside if not resolves(page, link)] == []


@each_page
def test_ids_are_unique(page: Path) -> None:
    ids = [each.get("id") for each in elements(page) if each.get("id")]
    assert sorted({name for name in ids if ids.count(name) > 1}) == []


@each_page
def test_images_are_there_and_described(page: Path) -> None:
    faults = []
    for image in elements(page):
        if image.tag != "img":
            continue
        sources = [image.get("src", ""), *image.get("srcset", "").split(",")]
        for source in filter(None, (each.strip().split(" ")[0] for each in sources)):
            if not source.startswith("data:") and not target(page, source)[0].is_file():
                faults.append(f"{source} is missing")
        if image.get("alt") is None:
            faults.append(f"{image.get('src')} has no alternative text")
    assert not faults


@each_page
def test_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    loaded = []
    for each in elements(page):
        if each.tag in LOADS:
            loaded += [each.get("src", ""), each.get("data", ""), each.get("srcset", "")]
        elif each.tag == "link" and set(each.get("rel", "").split()) & LOADING_LINKS:
            loaded.append(each.get("href", ""))
    assert [each for each in loaded if each.startswith(("http:", "https:", "//"))] == []


def test_style_sheets_load_nothing_from_elsewhere() -> None:
    sheets = {sheet: sheet.read_text(encoding="utf-8") for sheet in SITE.rglob("*.css")}
    assert sheets
    for sheet, text in sheets.items():
        compact = text.replace(" ", "").replace('"', "").replace("'", "")
        assert "url(http" not in compact, sheet
        assert "url(//" not in compact, sheet
        assert "@importhttp" not in compact, sheet


@each_script
def test_gallery_page_says_where_its_numbers_are_from(script: Path) -> None:
    classes = " ".join(each.get("class", "") for each in elements(built_page(script))).split()
    assert {"autopar-live", "autopar-recorded"} & set(classes)


@each_script
def test_gallery_page_has_its_notebook_script_and_source_in_one_row(script: Path) -> None:
    (row,) = (each for each in elements(built_page(script)) if "autopar-row" in class_of(each))
    links = [each.get("href", "") for each in row.iter("a") if "term" not in class_of(each)]
    if importlib.import_module("addresses").PUBLISHED:
        colab, *links, source = links
        assert colab.endswith(f"/{script.stem}.ipynb")
        assert source.endswith(f"/gallery/{script.parent.name}/{script.name}")
    assert [Path(link).suffix for link in links] == [".ipynb", ".py"]
    assert re.search(r"\d+ minutes to read, .*GPU", "".join(row.itertext()))


def test_sitemap_has_every_page() -> None:
    places = {
        each.text or "" for each in ElementTree.parse(SITE / "sitemap.xml").iter() if each.text
    }
    written = {page.relative_to(SITE).as_posix() for page in PAGES} - _NOT_WRITTEN
    assert len(written) > len(SCRIPTS)
    for page in written:
        assert any(place.endswith(f"/{page}") for place in places), page


@each_script
def test_gallery_page_ran(script: Path) -> None:
    # The time of the last run stays beside the page, also when this build had no need to run it.
    page = built_page(script).relative_to(SITE)
    cost = (ROOT / "docs" / page).with_suffix(".cost.json")
    assert json.loads(cost.read_text(encoding="utf-8"))["time"] > 0


@each_script
def test_gallery_page_links_the_glossary_once_for_a_term(script: Path) -> None:
    links = [
        each.get("href", "")
        for each in elements(built_page(script))
        if "term" in each.get("class", "").split()
    ]
    assert len(links) > 1
    assert all("glossary.html#term-" in link for link in links)
    assert len(links) == len(set(links))


@each_script
def test_an_image_of_what_is_drawn_too_is_in_its_details(script: Path) -> None:
    page = built_page(script)
    inside = {
        box
        for details in elements(page)
        for box in details.iter("div")
        if details.tag == "details" and "autopar-image" in box.get("class", "")
    }
    assert len(inside) == script.read_text(encoding="utf-8").count("ap.show_timelines(")


def test_letters_of_figures_can_be_read_on_a_phone() -> None:
    figures = [path for path in SITE.glob("_images/sphx_glr_*.png") if "_2_00x" not in path.name]
    widths = {path.name: int.from_bytes(path.read_bytes()[16:20]) for path in figures}
    assert widths
    assert {name: width for name, width in widths.items() if width > _WIDEST} == {}


def test_no_gallery_page_failed_or_was_skipped() -> None:
    report = SITE.parent / "gallery-junit.xml"
    suite = ElementTree.parse(report).getroot()
    assert suite.get("failures") == suite.get("skipped") == suite.get("errors") == "0"
    assert all(float(case.get("time", "0")) > 0 for case in suite.iter("testcase"))


@pytest.mark.parametrize("name", autopar.__all__)
def test_public_name_is_documented(name: str) -> None:
    assert f"autopar.{name}" in documented_names()
