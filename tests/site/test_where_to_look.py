"""Pages as they were built: what to look at beneath all they show, ways with code, whole words."""

import re
from itertools import takewhile

import html5lib
import pytest
from reader import PAGES, SITE, needs_site

_TOLD = [page for page in PAGES if "/plot_" in page or page == "benchmarks.html"]
_CUT = "\u2026"  # how a name ends that had no room
_WORDS = {"text", "th", "td"}  # what drawings and tables are made of
_LOOK = re.compile(r"Look at .*\d")
# Drawn before anything is measured, by code that records rest on: the text beside them says it.
_SAID_BESIDE = ["4 × 4 tiles: purple on GPU 0, pink on GPU 1", "A block of four paths"]
# Its timelines are those of two tools, of which no code is shown.
_OF_TOOLS = "auto_gallery/tools/plot_2_three_clocks_one_answer.html"

pytestmark = needs_site


class Page:
    """The elements of a page in order, and what each stands in."""

    def __init__(self, text):
        tree = html5lib.parse(text, namespaceHTMLElements=False)
        self.elements = [one for one in tree.iter() if isinstance(one.tag, str)]
        self.parents = {child: one for one in tree.iter() for child in one}

    def of(self, name, without=()):
        """What has a class, and stands in nothing that has one of the others."""
        return [
            one
            for one in self.elements
            if name in classes(one) and not any(map(self.within(one).__contains__, without))
        ]

    def within(self, element):
        found = set()
        while (element := self.parents.get(element)) is not None:
            found |= {element.tag, *classes(element)}
        return found


def cut(page):
    """Words in drawings and tables that had no room; a record of earlier code may have others."""
    if page.of("autopar-earlier"):
        return []
    shown = (one for one in page.elements if one.tag.rpartition("}")[2] in _WORDS)
    return [words(one) for one in shown if _CUT in words(one)]


def classes(element):
    return element.get("class", "").split()


def words(element):
    return " ".join("".join(element.itertext()).split())


def unsaid(page):
    """What a page shows without a line beneath that says what to look at, in figures."""
    for table in page.of("autopar-table-box", without=["autopar-figure"]):
        notes = [words(one) for one in table.iter("p")]
        if not any(map(_LOOK.match, notes)):
            yield f"a table of {words(next(table.iter('th')))}"
    for table in page.of("autopar-machines"):
        above = [one for one in page.elements[: page.elements.index(table)] if one.tag == "p"]
        if not _LOOK.match(words(above[-1])):
            yield f"a table of {words(next(table.iter('th')))} by machine"
    for figure in page.of("autopar-figure"):
        if not any(_LOOK.match(words(one)) for one in figure.find("figcaption").iter("p")):
            yield words(figure.find("p"))
    shown = {*page.of("highlight"), *page.of("autopar-table-box"), *page.of("autopar-note")}
    for image in page.of("sphx-glr-single-img", without=["autopar-figure"]):
        beneath = next(one for one in page.elements[page.elements.index(image) :] if one in shown)
        title = image.get("alt").partition(". ")[0]
        if not _LOOK.match(words(beneath)) and title not in _SAID_BESIDE:
            yield title


def bare(page):
    """Names of the timelines of a page's picture, above its first part, that lack code or place."""
    above = takewhile(lambda one: one.tag != "h2", page.elements)
    captions = [
        one for one in above if one.tag == "caption" and "autopar-figure" in page.within(one)
    ]
    beside = {one.get("data-name"): one for one in page.of("autopar-way")}
    for name in (words(caption).removesuffix(": lanes") for caption in captions):
        if name not in beside or not code_before(page, beside[name]):
            yield name


def code_before(page, way):
    """Whether code stands before it, in the section that it is in."""
    section = way
    while section.tag != "section":
        section = page.parents[section]
    inside = list(section.iter())
    return any("highlight" in classes(one) for one in inside[: inside.index(way)])


@pytest.fixture(params=_TOLD)
def page(request):
    return Page((SITE / request.param).read_text(encoding="utf-8"))


def test_beneath_tables_and_pictures_a_line_says_what_to_look_at_in_figures(page):
    assert list(unsaid(page)) == []


def test_timelines_of_a_page_s_picture_stand_beside_code_too(page, request):
    known = _OF_TOOLS in request.node.nodeid
    assert bool(list(bare(page))) == known


def test_no_word_in_a_drawing_or_a_table_is_cut():
    texts = {page: (SITE / page).read_text(encoding="utf-8") for page in PAGES}
    assert {page: found for page, text in texts.items() if (found := cut(Page(text)))} == {}


_CODE = '<div class="highlight">1</div>'
_TABLE = '<div class="autopar-table-box"><table><tr><th>work</table><p>{}</div>'
_FIGURE = """<figure class="autopar-figure"><p>Two</p><figcaption><p>{}</figcaption>
<table><caption>one: lanes</caption></table></figure>"""
_IMAGE = '<img class="sphx-glr-single-img" alt="A. B"><p class="autopar-note">{}</p>'
_WAY = '<figure class="autopar-way" data-name="one"></figure>'


def test_what_says_nothing_is_found():
    goals = '<p>{}</p><table class="autopar-machines"><th>Goal</table>'
    assert list(unsaid(Page(goals.format("Look at 1.")))) == []
    assert list(unsaid(Page(goals.format("On 1:")))) == ["a table of Goal by machine"]
    for shown, called in ((_TABLE, "a table of work"), (_FIGURE, "Two"), (_IMAGE, "A")):
        for said, found in (("Look at 1.", []), ("Look at it.", [called]), ("", [called])):
            assert list(unsaid(Page(shown.format(said)))) == found
    assert list(unsaid(Page(_IMAGE.format("Look at 1.").replace("<p", f"{_CODE}<p")))) == ["A"]


def test_a_word_that_is_cut_is_found():
    for shown in ("<svg><text>{}</text></svg>", "<table><td>{}</table>"):
        assert cut(Page(shown.format(f"wo{_CUT}"))) == [f"wo{_CUT}"]
        assert cut(Page(shown.format("word"))) == []
        assert cut(Page(shown.format(_CUT) + '<p class="autopar-earlier">')) == []


def test_a_timeline_without_code_is_found():
    sections = (f"<section>{_FIGURE}{part}</section>" for part in ("", _CODE, _WAY, _WAY + _CODE))
    assert [list(bare(Page(section))) for section in sections] == [["one"]] * 4
    assert list(bare(Page(f"<section>{_FIGURE}{_CODE}{_WAY}</section>"))) == []
