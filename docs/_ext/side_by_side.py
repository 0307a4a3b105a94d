"""Side by side: a table with a column for each machine, which a telephone shows as cards."""

import re
from typing import NamedTuple

from docutils import nodes
from sphinx.addnodes import pending_xref

_NONE = "autopar-none"  # what a telephone does not show, nor for which machine it is


class Row(NamedTuple):
    """What a row is of, and what each machine has of it, as pieces of text."""

    place: nodes.Node  # a link, shown once above the rows that have the same
    said: list[nodes.Node]
    by_machine: dict[str, list[nodes.Node]]


def table(first, machines, rows):
    """A table of rows, whose first column is called so."""
    group = nodes.tgroup(cols=1 + len(machines))
    group += [nodes.colspec(colwidth=width) for width in (2, *(1 for _ in machines))]
    group += nodes.thead("", line([nodes.Text(first)], *([nodes.Text(it)] for it in machines)))
    body, last = nodes.tbody(), None
    for row in rows:
        if str(row.place) != last:
            whole = nodes.entry("", nodes.paragraph("", "", row.place), morecols=len(machines))
            body += nodes.row("", whole, classes=["autopar-page"])
            last = str(row.place)
        cells = (
            [
                nodes.inline(text=machine, classes=["autopar-where"]),
                *row.by_machine.get(machine, [nodes.inline(text="no record", classes=[_NONE])]),
            ]
            for machine in machines
        )
        body += line(row.said, *cells)
    group += body
    return nodes.table("", group, classes=["autopar-machines", "autopar-cards"])


def line(*cells):
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def small(text):
    """Text on a line of its own."""
    return nodes.inline(text=unbroken(text), classes=["autopar-small"])


def unbroken(text):
    """Words with each unit on the line of its number, and no break in a date."""
    text = re.sub(r"(?<=\d)-(?=\d)", "\N{NON-BREAKING HYPHEN}", text)
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace(" ×", "\N{NO-BREAK SPACE}×")


def link(page, on="claims"):
    """A link to a page, under its title, on another page."""
    said = {"refdomain": "std", "reftype": "doc", "refexplicit": False, "refwarn": True}
    return pending_xref("", nodes.inline(), refdoc=on, reftarget=page, **said)


def link_to(title):
    """A link to a section of the same page."""
    return nodes.reference("", title, internal=True, refid=nodes.make_id(title))
