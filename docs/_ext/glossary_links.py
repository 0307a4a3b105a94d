"""Glossary links: the first use of each of the glossary's terms on a page leads to its entry.

Pages use a term in their paragraphs; some stand in the tables and claims that cells put out, too.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_PAGES = (
    *("chapter/", "recipes", "auto_gallery/", "howto/"),
    *("benchmarks", "book_against_hardware"),
)
# Where a term is a name or a label, or leads somewhere already.
_LEFT_ALONE = (nodes.reference, nodes.literal, nodes.title, nodes.caption, nodes.table, nodes.raw)
_IN_OUTPUTS = re.compile(
    r"(?<=>)(spread)(?= \(IQR\)</th>)|(?<=>share of )(makespan)(?=</th>)"
    r"|(?<=: )(95 % interval|range)(?=, \d+ samples\))"
    r"|(?<=, with an )(earlier version)(?= of autopar</span>)"
)
_TOLD_WITH = {"range": "95 % interval"}  # of a few samples; in prose a range is something else


def link_first_uses(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Link the first use of each term in the paragraphs of a page."""
    objects = app.env.get_domain("std").objects  # type: ignore[attr-defined]
    entries = {name: place for (kind, name), place in objects.items() if kind == "term"}
    if not page.startswith(_PAGES) or not entries:
        return
    linked: set[str] = set()

    def address(words: str) -> str:
        """Where a term's entry is, at its first use; of none, or one linked before, nothing."""
        term = next((name for name in entries if name.lower() == words.lower()), None)
        if term is None or term in linked:
            return ""
        linked.add(term)
        place, anchor = entries[term]
        return f"{app.builder.get_relative_uri(page, place)}#{anchor}"

    def link_in_output(match: re.Match[str]) -> str:
        uri = address(_TOLD_WITH.get(match[0], match[0]))
        return (
            f'<a class="reference internal term" href="{uri}">{match[0]}</a>' if uri else match[0]
        )

    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.raw) and text.parent.get("format") == "html":
            text.parent.replace(text, nodes.Text(_IN_OUTPUTS.sub(link_in_output, text)))
            continue
        parents = list(_parents(text))
        if not any(isinstance(parent, nodes.paragraph) for parent in parents) or any(
            isinstance(parent, _LEFT_ALONE) for parent in parents
        ):
            continue
        parts: list[nodes.Node] = []
        done = 0
        for match in _terms(tuple(entries)).finditer(text):
            if uri := address(match[1]):
                link = nodes.reference("", match[0], refuri=uri, internal=True, classes=["term"])
                parts += [nodes.Text(text[done : match.start()]), link]
                done = match.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[done:])])


@functools.cache
def _terms(names: tuple[str, ...]) -> re.Pattern[str]:
    """Any of the terms as a word, the longest first; a plural may be a verb, as in `it records`."""
    alternatives = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"\b({alternatives})\b", re.IGNORECASE)


def _parents(node: Any) -> Any:
    while (node := node.parent) is not None:
        yield node


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", link_first_uses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
