"""Links to the glossary: each term once on a page, at its first use in a sentence or a result."""

import types

import pytest
from docutils import nodes

_ENTRIES = {
    "stream": "stream",
    "side stream": "side-stream",
    "CUDA graph": "cuda-graph",
    "spread": "spread",
    "95 % interval": "interval",
    "host": "host",
    "record": "record",
    "GIL": "gil",
}


@pytest.fixture
def linked(extension):
    """What a paragraph of some page looks like, with links in brackets."""
    objects = {("term", name): ("glossary", f"term-{at}") for name, at in _ENTRIES.items()}
    env = types.SimpleNamespace(get_domain=lambda name: types.SimpleNamespace(objects=objects))
    builder = types.SimpleNamespace(get_relative_uri=lambda page, other: f"{other}.html")
    app = types.SimpleNamespace(env=env, builder=builder)

    def link(*parts, page="auto_gallery/one"):
        document = nodes.document(None, None)
        document += nodes.paragraph("", "", *parts)
        extension("glossary_links").link_first_uses(app, document, page)
        return "".join(
            f"[{node.astext()}]({node['refuri']})"
            if isinstance(node, nodes.reference) and "refuri" in node
            else node.astext()
            for node in document[0]
        )

    return link


def test_the_first_use_of_a_term_leads_to_its_entry(linked):
    text = nodes.Text("A stream differs. It streams to a cuda graph; a side stream, a stream.")
    assert linked(text) == (
        "A [stream](glossary.html#term-stream) differs. It streams to a "
        "[cuda graph](glossary.html#term-cuda-graph); a "
        "[side stream](glossary.html#term-side-stream), a stream."
    )


def test_a_card_has_no_link_but_its_own(linked):
    text = nodes.inline("", "a stream")
    card = nodes.container("", nodes.paragraph("", "", text), classes=["sd-card"])
    assert (
        linked(card, nodes.Text("; a stream")) == "a stream; a [stream](glossary.html#term-stream)"
    )


def test_names_in_code_links_and_other_words_stay(linked):
    parts = nodes.literal("", "stream"), nodes.reference("", "a stream"), nodes.Text(" streaming")
    assert linked(*parts) == "streama stream streaming"


def test_tables_and_claims_link_what_is_not_linked_before(linked):
    claim = "<p>Measured: 2 × (1 × to 3 ×: 95 % interval, 7 samples)</p>"
    table = "<th>spread (IQR)</th><td>spread</td>"
    parts = (nodes.raw("", words, format="html") for words in (table, claim, table))
    assert linked(*parts, nodes.Text("The spread.")) == (
        '<th><a class="reference internal term" href="glossary.html#term-spread">spread</a> '
        "(IQR)</th><td>spread</td><p>Measured: 2 × (1 × to 3 ×: "
        '<a class="reference internal term" href="glossary.html#term-interval">95 % interval</a>, '
        f"7 samples)</p>{table}The spread."
    )


def test_a_range_of_samples_is_told_with_the_interval(linked):
    claim = "<p>Measured: 2 × (1 × to 3 ×: range, 5 samples)</p>"
    assert linked(nodes.raw("", claim, format="html"), nodes.Text("A range.")) == (
        "<p>Measured: 2 × (1 × to 3 ×: "
        '<a class="reference internal term" href="glossary.html#term-interval">range</a>, '
        "5 samples)</p>A range."
    )


def test_verbs_placeholders_and_names_are_no_terms(linked):
    text = nodes.Text("Let it warm up. Then "), nodes.emphasis("", "record"), nodes.Text(" a step.")
    assert linked(*text) == "Let it warm up. Then record a step."
    assert linked(
        nodes.Text("Put its name in the place of HOST. They host it, and record it.")
    ) == ("Put its name in the place of HOST. They host it, and record it.")
    assert linked(nodes.Text("To the host, by the GIL.")) == (
        "To the [host](glossary.html#term-host), by the [GIL](glossary.html#term-gil)."
    )


def test_other_pages_stay(linked):
    assert linked(nodes.Text("a stream"), page="glossary") == "a stream"
