"""What is true of all figures and records of a page, and is said by no author."""

from types import SimpleNamespace

import pytest
from docutils import nodes

from autopar import Measurement, Span, Timeline, compare, draw

WHERE = "recorded on H200, 2026"
EARLIER = f"{WHERE}, with an earlier version of autopar"


@pytest.fixture
def said(extension):
    """What is on a page that has these parts, part by part."""

    def say(*parts, page="chapter/1"):
        document = nodes.document(None, None)
        section = nodes.section("", nodes.title(text="A page"))
        document += section
        for part in parts:
            text = part._repr_html_() if hasattr(part, "_repr_html_") else part
            whole = (
                nodes.raw("", text, format="html") if "<" in text else nodes.paragraph(text=text)
            )
            section += whole
        app = SimpleNamespace(env=SimpleNamespace(docname=page))
        extension("said_once").say_once(app, document)
        return [part.astext() for part in section[1:]]

    return say


def run(origin):
    return draw(Timeline([Span("mm", "GPU 0", 0, 1)], origin=origin), title="t")


def test_an_earlier_version_is_told_once_at_the_end_of_a_page(said):
    table = compare([Measurement("a", (1.0, 1.0, 1.0), origin=EARLIER)])
    *parts, note = said(table, run(EARLIER), f"The figure was {EARLIER}.")
    assert len(parts) == 3
    assert all(WHERE in part and "earlier" not in part for part in parts)
    assert note.startswith("Records on this page are of an earlier version of autopar.")
    assert len(said(run(WHERE))) == 1


def test_the_page_of_records_says_it_of_each(said):
    assert said(EARLIER, page="records") == [EARLIER]


def test_a_figure_of_a_run_says_that_it_is_of_one(said):
    (figure,) = said(run(WHERE))
    assert figure.count("The figure shows one run") == 1
    assert figure.index("The figure shows one run") < figure.index("</figcaption>")
    planned = run("")
    assert said(planned) == [planned._repr_html_()]
