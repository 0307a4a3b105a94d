"""Report page: reports as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterable

from autopar.display.page import page
from autopar.traces.report import SITE, Section


def as_page(sections: Iterable[Section], *, title: str) -> str:
    """Sections of one or more reports as an HTML document."""
    heading = f"<h1>{html.escape(title)}</h1>"
    return page(title, "\n".join([heading, *map(_section, sections)]))


def _section(section: Section) -> str:
    level, address = section.level + 1, html.escape(SITE + section.page)
    parts = [f"<h{level}>{html.escape(section.heading)}</h{level}>"]
    for block in section.blocks:
        if isinstance(block, str):
            parts.append(f"<p>{html.escape(block)}</p>")
        else:
            parts.append(block._repr_html_())
    if section.page:
        parts.append(f'<p>How to mend it: <a href="{address}">{address}</a></p>')
    return "\n".join(parts)
