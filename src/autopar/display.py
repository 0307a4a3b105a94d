"""Display: show a table or a drawing to whoever is looking, at a terminal or on a page."""

from __future__ import annotations

import os
import sys
from typing import TypeVar

_T = TypeVar("_T")
RICH = "AUTOPAR_RICH"  # environment: set by the docs build, which renders what a cell returns


def rich() -> bool:
    """Whether the front end renders what a cell returns: the docs build, or a notebook."""
    if os.environ.get(RICH):
        return True
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show(thing: _T) -> _T:
    """Return `thing` for a notebook or a page to render; at a terminal, print it as well."""
    if not rich():
        print(thing, end="\n\n")
    return thing
