"""Show: a table or a drawing to whoever is looking, at a terminal or on a page."""

from __future__ import annotations

import html
import os
import sys
from typing import Any

RICH = "AUTOPAR_RICH"  # environment: set by the docs build, which renders what a cell returns


def speaks() -> bool:
    """Whether this process is to print: of several that run one program, the first is."""
    return os.environ.get("RANK", "0") == "0"


class _Several(tuple[Any, ...]):
    """Things to show one below the other."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "\n".join(thing._repr_html_() for thing in self)


class Note(str):
    """A sentence beneath what is shown."""

    def _repr_html_(self) -> str:
        return f'<p class="autopar-note autopar-small">{html.escape(self)}</p>'


def show(thing: Any, /, *more: Any) -> Any:
    """Return `thing` for a notebook or a page to render; at a terminal, print it as well.

    Several things, such as tables and claims, are shown one below the other. Of the ranks that
    `torchrun` starts, the first prints.

    >>> import autopar as ap
    >>> table = ap.show("anything")  # doctest: +ELLIPSIS
    anything
    ...
    """
    shown = _Several((thing, *more)) if more else thing
    ipython = sys.modules.get("IPython")
    in_notebook = ipython is not None and ipython.get_ipython() is not None
    if not (os.environ.get(RICH) or in_notebook) and speaks():
        print(shown, end="\n\n")
    return shown
