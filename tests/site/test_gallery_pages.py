"""Where pictures, images, origins and folds stand on a page of the gallery."""

import re
from types import SimpleNamespace

import pytest

from autopar import Measurement, Span, Timeline, compare, draw

nodes = pytest.importorskip("docutils.nodes", reason="it comes with the group docs")
pytest.importorskip("sphinx_gallery", reason="it comes with the group docs")

WHERE = "recorded on 2 × NVIDIA H200, 2026-11-23, torch 2.11.0"
RUN = Timeline([Span("mm", "GPU 0 stream 7", 0, 1)], origin=WHERE)


@pytest.fixture
def arrange(extension):
    pages = extension("gallery_pages")

    def arranged(*parts, docname="auto_gallery/folder/plot_1"):
        """The parts of a page after its title, once they are in their places, as text."""
        page = nodes.section(
            "", nodes.title(text="A page"), nodes.paragraph(text="opening"), *parts
        )
        doctree = nodes.document(None, None)
        doctree += page
        pages.arrange(SimpleNamespace(env=SimpleNamespace(docname=docname)), doctree)
        return [node.astext() for node in page[1:]]

    return arranged


def cell(text="code"):
    return nodes.literal_block(text, text)


def html(thing):
    return nodes.raw("", thing if isinstance(thing, str) else thing._repr_html_(), format="html")


def image(*classes, words="image"):
    return nodes.container("", nodes.paragraph(text=words), classes=list(classes))


def test_a_drawing_goes_to_the_opening_with_its_image_in_its_own_details(arrange):
    box = image("autopar-image", "autopar-picture")
    origin, opening, head, shown, tail, *rest = arrange(
        cell("a"), cell("b"), box, html(draw(RUN, title="t"))
    )
    assert "autopar-origins" in origin
    assert (opening, shown, rest) == ("opening", "image", ["a", "b"])
    assert head.endswith("</summary>")
    assert head.count("<details>") == tail.count("</details>") == 1
    assert "<table" in tail


def test_an_image_that_is_the_picture_goes_there_alone_and_no_other_moves(arrange):
    later = html(draw(RUN, title="t"))
    _, *rest = arrange(
        cell("a"), image("autopar-picture"), cell("b"), image("autopar-image"), later
    )
    assert rest[:4] == ["opening", "image", "a", "b"]
    assert rest[5] == "image"
    assert arrange(cell("a"), image()) == ["opening", "a", "image"]
    assert arrange(image("autopar-picture"), cell("a")) == ["opening", "image", "a"]
    assert arrange(image("autopar-picture")) == ["opening", "image"]


def test_origins_are_said_once_and_marked_where_they_belong(arrange):
    here = Measurement("a", (1.0, 1.0, 1.0), origin="measured live on CPU")
    there = Measurement("a", (1.0, 1.0, 1.0), origin=WHERE)
    other = Measurement("a", (1.0, 1.0, 1.0), origin="recorded on CPU, 8 threads")
    origins, _, *tables = arrange(*(html(compare([one])) for one in (there, here, other, there)))
    assert origins.count(WHERE) == 1
    marks = [re.findall(r'<span class="autopar-\w+">([^<]*)', table) for table in tables]
    assert marks == [["recorded 1"], ["live"], ["recorded 2"], ["recorded 1"]]
    assert re.search(rf"<span[^>]*>1 {WHERE}", origins)
    assert arrange(cell("a")) == ["opening", "a"]
    table = compare([there])._repr_html_()
    assert arrange(html(table), docname="how_we_measure") == ["opening", table]


def test_cells_that_say_so_and_what_this_machine_measures_are_closed(arrange):
    here = nodes.section(
        "", nodes.title(text="On this machine"), nodes.paragraph(text="live"), cell("b")
    )
    parts = arrange(cell("# Folded: what it is\na = 1\nb = 2"), cell("a"), here)
    assert parts[1] == '<details class="autopar-fold"><summary>What it is: 2 lines</summary>'
    assert parts[3:5] == ["</details>", "a"]
    assert re.sub(r"\s+", " ", parts[5]).startswith("On this machine <details")
    assert "may gain little or nothing." in parts[5]
    assert parts[5].endswith("b\n\n</details>")


def test_cards_say_what_one_does(arrange):
    tip = "| You&#x27;ll do: time  products. | You&#x27;ll learn: why."
    title = '<div class="sphx-glr-thumbnail-title">A page</div>'
    _, opening, _, words = arrange(
        html(f'<div class="sphx-glr-thumbcontainer" tooltip="{tip}">'),
        nodes.paragraph(text="a link"),
        html(title),
        docname="auto_gallery/index",
    )
    assert opening == '<div class="sphx-glr-thumbcontainer">'
    assert words == f'{title}<div class="autopar-line">time products.</div>'


@pytest.mark.parametrize("published", [True, False])
def test_what_a_page_needs_goes_to_a_row_below_its_title_with_its_files(
    extension, monkeypatch, published
):
    pages = extension("gallery_pages")
    monkeypatch.setattr(pages, "PUBLISHED", published)
    line = nodes.line("", "", nodes.strong(text="You need:"), nodes.Text(" 8 minutes.\nRead this."))
    page = nodes.section("", nodes.title(text="A page"), nodes.line_block("", line))
    names = ("of_another_tool.sqlite", "plot_1.ipynb", "plot_1.py", "plot_1.zip")
    files = [pages.download_reference(reftarget=name) for name in names]
    doctree = nodes.document(None, None)
    doctree += [nodes.note("", classes=["sphx-glr-download-link-note"]), page]
    page += [nodes.paragraph("", "", file) for file in files]
    pages.arrange(SimpleNamespace(env=SimpleNamespace(docname="auto_gallery/one/plot_1")), doctree)
    row = [item.astext() for item in page[1].findall(nodes.list_item)]
    files = ["Notebook", "Script"]
    assert row == [*(["Colab", *files, "Source"] if published else files), "8 minutes to read"]
    links = [*page[1].findall(nodes.reference)]
    colab, *own, source = (link.get("refuri", link.get("reftarget")) for link in links)
    if published:
        assert colab.endswith("/plot_1.ipynb")
        assert source.endswith("/gallery/one/plot_1.py")
    assert tuple(own if published else (colab, source)) == names[1:3]
    assert page[2].astext() == "Read this."
    assert list(doctree.findall(nodes.note)) == []
