"""What the site makes of pages that Sphinx has read: places, folds, origins, links to terms."""

import re
from types import SimpleNamespace

import pytest
from docutils import nodes

from autopar import Measurement, Span, Timeline, compare, draw

WHERE = "recorded on 2 × NVIDIA H200, 2026-11-23, torch 2.11.0"
EARLIER = f"{WHERE}, with an earlier version of autopar"
HERE, CPU = "measured live on CPU", "recorded on CPU, 8 threads"
_TERMS = "stream", "side stream", "CUDA graph", "spread", "95 % interval", "host", "record", "GIL"
_GLOSSARY = "glossary.html#term-"
_CARD = nodes.container("", nodes.paragraph(text="a stream"), classes=["sd-card"])
_NAME = nodes.emphasis("", "one stream", classes=["autopar-name"])
_STAY = "Put its name in the place of HOST. They host it, and record it."
_CLAIM = "<p>Measured: 2 × (1 × to 3 ×: 95 % interval, 7 samples)</p>"
_RANGE = _CLAIM.replace("95 % interval", "range")
_TABLE = "<th>spread (IQR)</th><td>spread</td>"


def as_node(part):
    """A node as it is, what is shown as HTML or says so, and else words of a sentence."""
    if isinstance(part, nodes.Node):
        return part.deepcopy()
    text = part._repr_html_() if hasattr(part, "_repr_html_") else part
    return nodes.raw("", text, format="html") if "<" in text else nodes.Text(text)


def page_of(parts):
    """A page with a title, and its section, in which these parts stand below the title."""
    document, section = nodes.document(None, None), nodes.section("", nodes.title(text="A page"))
    document += section
    for part in map(as_node, parts):
        section += nodes.paragraph("", "", part) if isinstance(part, nodes.Text) else part
    return document, section


def page_named(name):
    """Sphinx, as it reads a page of some name."""
    return SimpleNamespace(env=SimpleNamespace(docname=name))


def run(origin=WHERE):
    return draw(Timeline([Span("mm", "GPU 0 stream 7", 0, 1)], origin=origin), title="t")


RUN = run().panels[0][1]


def table(origin):
    return compare([Measurement("a", (1.0, 1.0, 1.0), origin=origin)])


@pytest.fixture
def arrange(extension):
    pages = extension("gallery_pages")

    def arranged(*parts, docname="auto_gallery/folder/plot_1"):
        """The parts of a page after its title, once they are in their places, as text."""
        doctree, page = page_of(["opening", *parts])
        pages.arrange(page_named(docname), doctree)
        return [node.astext() for node in page[1:]]

    return arranged


def cell(text="code"):
    return nodes.literal_block(text, text)


def image(*classes, words="image"):
    return nodes.container("", nodes.paragraph(text=words), classes=list(classes))


def test_a_drawing_goes_to_the_opening_with_its_image_in_its_own_details(arrange):
    box = image("autopar-image", "autopar-picture")
    origin, opening, head, shown, tail, *rest = arrange(cell("a"), cell("b"), box, run())
    assert "autopar-origins" in origin
    assert (opening, shown, rest) == ("opening", "image", ["a", "b"])
    assert head.endswith("</summary>")
    assert head.count("<details>") == tail.count("</details>") == 1
    assert "<table" in tail


def test_an_image_that_is_the_picture_goes_there_alone_and_no_other_moves(arrange):
    picture, inner = image("autopar-picture"), image("autopar-image")
    _, *rest = arrange(cell("a"), picture, cell("b"), inner, run())
    assert rest[:4] == ["opening", "image", "a", "b"]
    assert rest[5] == "image"
    assert arrange(cell("a"), image()) == ["opening", "a", "image"]
    assert arrange(image("autopar-picture"), cell("a")) == ["opening", "image", "a"]
    assert arrange(image("autopar-picture")) == ["opening", "image"]


def test_what_to_look_at_goes_with_the_picture_and_no_table_does(arrange):
    picture, note = image("autopar-picture"), '<div><p class="autopar-note">Look.</p></div>'
    assert arrange(cell("a"), picture, note, cell("b")) == ["opening", "image", note, "a", "b"]
    table = '<table></table><p class="autopar-note">Look.</p>'
    assert arrange(cell("a"), picture, table) == ["opening", "image", "a", table]


def test_a_way_has_its_timeline_beside_its_code_where_the_page_names_it(arrange, extension):
    def named(*names):
        marks = (extension("gallery_pages").Way("", name) for name in names)
        return nodes.paragraph("", "It waits: ", *marks)

    ways = draw(dict.fromkeys(("<one>", "two", "three"), RUN), title="t")
    shown = {name: ways.panel(name) for name, _ in ways.panels}
    box = nodes.container("", *map(as_node, shown.values()), classes=["autopar-picture"])
    parts = arrange(cell("1"), named("<one>", "two"), cell("2"), box)
    assert [part[:40] for part in parts[1:]] == [
        "opening", "", "1", "It waits: <one>two",
        *(shown[name][:40] for name in ("<one>", "two")), "2",
    ]  # fmt: skip
    with pytest.raises(KeyError, match="four"):
        arrange(cell("1"), named("four"), box)
    old = nodes.paragraph(text="Earlier.", classes=[extension("said_once").OF_OLD])
    assert arrange(cell("1"), named("four"), old)[1:] == ["1", "It waits: four", "Earlier."]


def test_origins_are_said_once_and_marked_where_they_belong(arrange):
    origins, _, *tables = arrange(*map(table, (WHERE, HERE, CPU, WHERE)))
    assert origins.count(WHERE) == 1
    marks = [re.findall(r'<span class="autopar-\w+">([^<]*)', each) for each in tables]
    assert marks == [["recorded 1"], ["live"], ["recorded 2"], ["recorded 1"]]
    assert re.search(rf"<span[^>]*>1 {WHERE}", origins)
    assert arrange(cell("a")) == ["opening", "a"]
    shown = table(WHERE)._repr_html_()
    assert arrange(shown, docname="how_we_measure") == ["opening", shown]


def test_cells_that_say_so_and_what_this_machine_measures_are_closed(arrange):
    here = nodes.section(
        "", nodes.title(text="On this machine"), nodes.paragraph(text="live"), cell("b")
    )
    parts = arrange(cell("# Folded: what it is\na = 1\nb = 2"), cell("a"), here)
    assert parts[1] == '<details class="autopar-fold"><summary>What it is: 2 lines</summary>'
    assert parts[3:5] == ["</details>", "a"]
    assert re.sub(r"\s+", " ", parts[5]).startswith("On this machine <details")
    assert "may gain nothing, or lose." in parts[5]
    assert parts[5].endswith("b\n\n</details>")


def test_cards_say_what_one_does(arrange):
    tip = "| You&#x27;ll do: time  products. | You&#x27;ll learn: why."
    title = '<div class="sphx-glr-thumbnail-title">A page</div>'
    _, opening, _, words = arrange(
        f'<div class="sphx-glr-thumbcontainer" tooltip="{tip}">',
        "a link",
        title,
        docname="auto_gallery/index",
    )
    assert opening == '<div class="sphx-glr-thumbcontainer">'
    assert words == f'{title}<div class="autopar-line">time products.</div>'


def test_what_a_page_needs_goes_to_a_row_below_its_title_with_its_files(extension, monkeypatch):
    pages = extension("gallery_pages")
    monkeypatch.setattr(pages, "PUBLISHED", True)
    line = nodes.line(
        "", "", nodes.strong(text="You need:"), nodes.Text(" 8 minutes, and no GPU.\nRead this.")
    )
    names = "of_another_tool.sqlite", "plot_1.ipynb", "plot_1.py", "plot_1.zip"
    files = [nodes.paragraph("", "", pages.download_reference(reftarget=name)) for name in names]
    doctree, page = page_of([nodes.line_block("", line), *files])
    for name in ("download-link-note", "footer", "timing"):
        doctree.insert(0, nodes.container("", nodes.inline(), classes=[f"sphx-glr-{name}"]))
    pages.arrange(page_named("auto_gallery/graphs/plot_1"), doctree)
    items = [item.astext() for item in page[1].findall(nodes.list_item)]
    named = ["Colab", "Notebook", "Script", "Source"]
    assert items == [*named, "level: advanced", "8 minutes; needs no GPU"]
    links = page[1].findall(nodes.reference)
    colab, *own, source = (link.get("refuri", link.get("reftarget")) for link in links)
    assert colab.endswith("/plot_1.ipynb")
    assert tuple(own) == names[1:3]
    assert source.endswith("/gallery/graphs/plot_1.py")
    assert page[2].astext() == "Read this."
    assert doctree.children == [page]


@pytest.fixture
def said(extension):
    """What is on a page that has these parts, part by part."""

    def say(*parts, page="chapter/1"):
        document, section = page_of(parts)
        extension("said_once").say_once(page_named(page), document)
        return [part.astext() for part in section[1:]]

    return say


def test_an_earlier_version_is_told_once_at_the_end_of_a_page_but_the_one_of_records(said):
    *parts, note = said(table(EARLIER), run(EARLIER), f"The figure was {EARLIER}.")
    assert len(parts) == 3
    assert all(WHERE in part and "earlier" not in part for part in parts)
    assert note.startswith("Records on this page are of an earlier version of autopar.")
    *parts, note = said(table(EARLIER), run(WHERE))  # of several, each says which it is
    assert [("earlier" in part) for part in parts] == [True, False]
    assert note.startswith("Some records on this page are of an earlier version of autopar.")
    assert len(said(run(WHERE))) == 1
    assert said(EARLIER, page="records") == [EARLIER]


def test_a_figure_of_a_run_says_that_it_is_of_one(said):
    (figure,) = said(run(WHERE))
    assert figure.count("The figure shows one run") == 1
    assert figure.index("The figure shows one run") < figure.index("</figcaption>")
    planned = run("")
    assert said(planned) == [planned._repr_html_()]


@pytest.fixture
def linked(extension):
    """What a paragraph of some page looks like, with links in brackets."""
    objects = {("term", name): ("glossary", f"term-{name}") for name in _TERMS}
    env = SimpleNamespace(get_domain=lambda name: SimpleNamespace(objects=objects))
    builder = SimpleNamespace(get_relative_uri=lambda page, other: f"{other}.html")
    app = SimpleNamespace(env=env, builder=builder)

    def shown(node):
        text, address = node.astext(), getattr(node, "attributes", {}).get("refuri")
        return f"[{text}]({address.removeprefix(_GLOSSARY)})" if address else text

    def link(*parts, page="auto_gallery/one"):
        document = nodes.document(None, None)
        document += nodes.paragraph("", "", *map(as_node, parts))
        extension("glossary_links").link_first_uses(app, document, page)
        text = "".join(map(shown, document[0]))
        return re.sub(
            rf'<a class="[^"]* term" href="{_GLOSSARY}(.*?)">(.*?)</a>', r"[\2](\1)", text
        )

    return link


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            ["A stream differs. It streams to a cuda graph; a side stream, a stream."],
            "A [stream](stream) differs. It streams to a [cuda graph](CUDA graph); "
            "a [side stream](side stream), a stream.",
        ),
        ([_CARD, "; a stream"], "a stream; a [stream](stream)"),  # which has a link of its own
        ([nodes.literal("", "stream"), nodes.reference("", "a stream")], "streama stream"),
        (["streaming. Then ", nodes.emphasis("", "record"), " it."], "streaming. Then record it."),
        ([_NAME, "; a stream"], "one stream; a [stream](stream)"),
        ([_STAY], _STAY),
        (["To the host, by the GIL."], "To the [host](host), by the [GIL](GIL)."),
        (
            [_TABLE, _CLAIM, _TABLE, "A spread."],
            _TABLE.replace("spread (", "[spread](spread) (", 1)
            + _CLAIM.replace("95 % interval", "[95 % interval](95 % interval)")
            + f"{_TABLE}A spread.",
        ),
        ([_RANGE, "A range."], _RANGE.replace("range", "[range](95 % interval)") + "A range."),
    ],
)
def test_the_first_use_of_a_term_and_nothing_else_leads_to_its_entry(linked, parts, expected):
    assert linked(*parts) == expected


def test_other_pages_stay(linked):
    assert linked("a stream", page="glossary") == "a stream"
