"""Binder: what a task's Python code did while it was watched, beyond what operators declare.

Code is known to leave nothing behind where each of its instructions is one that only loads, calls
and computes, and each function of C that it calls is an operator of torch's, or one that only
looks. Of torch's own layers, which set attributes at times, the names that they bind are noted. All
else, listed or not, is taken to change what nobody sees.
"""

from __future__ import annotations

import dis
import functools
import gc
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, MethodWrapperType
from typing import Any, Self

import torch

from autopar.effects.objects import IN_CELL
from autopar.effects.operators import operator_of_method, schemas_of

_OWN = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
# Torch's files whose code may be trusted to do no more than it binds and its operators declare.
_TRUSTED = tuple(
    f"{_TORCH}/{place}"
    for place in (
        *("nn/modules/", "nn/functional.py", "functional.py", "_jit_internal.py", "amp/"),
        *("autograd/grad_mode.py", "utils/_contextlib.py", "nn/init.py", "nn/parameter.py"),
        *("overrides.py", "backends/", "storage.py", "_utils.py"),
        *("utils/_python_dispatch.py", "_library/"),  # by which operators are watched
    )
)
_ONLY_LOOK = {
    *(abs, all, any, callable, divmod, getattr, hasattr, hash, id, isinstance, issubclass, len),
    *(max, min, pow, repr, round, sorted, sum),
    *(time.sleep, time.perf_counter, time.perf_counter_ns, time.time, time.monotonic),
}
_FROZEN = (str, bytes, int, float, complex, tuple, frozenset)
_READS = {"get", "keys", "values", "items", "copy", "index", "count"}  # of dicts and lists
_DUNDERS = {"__class__", "__name__", "__qualname__", "__doc__", "__init__", "__call__", "__len__"}
_SAFE = (  # how the names of instructions begin that only load, call and compute
    *("LOAD_", "STORE_FAST", "DELETE_FAST", "COPY", "SWAP", "POP_", "PUSH_", "CALL", "KW_NAMES"),
    *("PRECALL", "RETURN_", "RESUME", "CACHE", "NOP", "BINARY_", "UNARY_", "COMPARE_", "IS_OP"),
    *("CONTAINS_OP", "JUMP", "FOR_ITER", "END_", "GET_ITER", "GET_LEN", "BUILD_", "LIST_", "SET_"),
    *("MAP_ADD", "DICT_", "UNPACK_", "FORMAT_", "CONVERT_", "MAKE_", "EXTENDED_ARG", "RAISE_"),
    *("RERAISE", "CHECK_EXC_", "BEFORE_WITH", "WITH_EXCEPT_", "SETUP_", "ROT_", "DUP_", "TO_BOOL"),
    *("NOT_TAKEN", "YIELD_", "GEN_START", "MATCH_", "INTERPRETER_EXIT", "ASYNC_GEN_WRAP"),
)


class Binder:
    """Notes what this thread's code does, in a `with`: names it may bind, and what is not known.

    >>> names = []
    >>> def note(name):
    ...     names.append(name)
    >>> with Binder() as binder:
    ...     note("x")
    >>> binder.unknown
    'list.append in note'
    """

    def __init__(self, fn: Callable[..., Any] | None = None) -> None:
        self.names: set[str] = set()  # that torch's own code may bind; `cell_contents` for closures
        self.unknown = ""  # what was done first that may change anything
        self._is_operator = False
        while isinstance(fn, functools.partial):
            fn = fn.func
        if type(fn) in (BuiltinFunctionType, MethodWrapperType):  # which no event tells
            self._note_routine(fn, "the task")

    def __enter__(self) -> Self:
        self._other, self._collects = sys.getprofile(), gc.isenabled()
        gc.disable()  # as what it deletes is no deed of the task's
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._other)
        if self._collects:
            gc.enable()

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN):
            if code.co_name == "__torch_dispatch__" and event in ("call", "return"):
                self._is_operator = event == "call"  # that is watched, and declares all
        elif self._is_operator:
            pass
        elif event == "call":
            if code.co_filename.startswith(_TRUSTED):
                self.names |= _bound_in(code)
            else:
                self.unknown = self.unknown or _unknown_in(code)
        elif event == "c_call" and not code.co_filename.startswith(_TRUSTED):
            self._note_routine(called, code.co_name)

    def _note_routine(self, called: Any, caller: str) -> None:
        if not self.unknown and not _only_looks(called):
            self.unknown = f"{getattr(called, '__qualname__', type(called).__name__)} in {caller}"


def _only_looks(called: Any) -> bool:
    """Whether a routine of C is an operator that declares what it does, or changes nothing."""
    if type(called) is not BuiltinFunctionType:  # of a class, as torch.Tensor.add
        return bool(operator_of_method(called))
    owner, name = called.__self__, called.__name__
    if issubclass(type(owner), torch.Tensor):
        return type(owner) in (torch.Tensor, torch.nn.Parameter) and bool(
            operator_of_method(called)
        )
    if schemas_of(called)[1] or called in _ONLY_LOOK:
        return True
    if str(called.__module__).startswith("torch."):
        return name.startswith(("_has_torch_function", "_get_", "_is_", "is_"))
    if owner is math or issubclass(type(owner), _FROZEN):
        return True
    return type(owner) in (dict, list) and name in _READS


@functools.cache
def _unknown_in(code: CodeType) -> str:
    """The first instruction of code that may change what others see, if there is one."""
    for step in dis.get_instructions(code):
        name, value = step.opname, str(step.argval)
        is_safe = name.startswith(_SAFE) or (name == "STORE_DEREF" and value in code.co_cellvars)
        is_hidden = name.startswith(("LOAD_ATTR", "LOAD_METHOD")) and value[:2] == "__"
        in_place = name.startswith("INPLACE") or (name == "BINARY_OP" and step.argrepr[-1:] == "=")
        if not is_safe or in_place or (is_hidden and value not in _DUNDERS):
            return f"{name} in {code.co_name}"
    return ""


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
