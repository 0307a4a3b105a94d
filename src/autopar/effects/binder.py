"""Binder: the names that Python code binds anew while a task runs, torch's code too."""

from __future__ import annotations

import dis
import functools
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import torch

from autopar.effects.objects import IN_CELL

_OWN = str(Path(__file__).parents[1])
_SETTERS = {setattr, delattr}
ANY_NAME = ""  # in place of a name that is not in the code


class Binder:
    """Notes the names that this thread's code may bind anew, in a `with`.

    What is bound and put back looks as before; its name stays here.

    >>> def rename(module):
    ...     module.name = module.name
    >>> with Binder() as binder:
    ...     rename(torch.nn.ReLU())
    Traceback (most recent call last):
    ...
    AttributeError: 'ReLU' object has no attribute 'name'
    >>> "name" in binder.names
    True
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __enter__(self) -> Self:
        self._other = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._other)

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        if frame.f_code.co_filename.startswith(_OWN):
            return
        if event == "call":
            self.names |= _bound_in(frame.f_code)
            if frame.f_code is torch.func.functional_call.__code__:  # it lends a module others
                self.names.add(ANY_NAME)
        elif event == "c_call" and (
            called in _SETTERS or isinstance(getattr(called, "__self__", None), torch.Generator)
        ):
            self.names.add(ANY_NAME)


@functools.cache
def _bound_in(code: CodeType) -> frozenset[str]:
    """Names of attributes and globals that code binds; `cell_contents` for a closure's."""
    names = set[str]()
    for step in dis.get_instructions(code):
        action, _, kind = step.opname.partition("_")
        if action in ("STORE", "DELETE"):
            if kind in ("ATTR", "GLOBAL"):
                names.add(str(step.argval))
            elif kind == "DEREF" and step.argval in code.co_freevars:
                names.add(IN_CELL)
    return frozenset(names)
