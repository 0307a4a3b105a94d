"""Ranges: one name for a range of work, seen by NVTX tools and by torch.profiler alike."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch.autograd import profiler

from autopar.refusal import check_type
from autopar.torch_private import nvtx

_NOBODY_COUNTS = -2  # NVTX's answer to a push without a tool
# What torch's profiler garbles: it writes `unknown` for the whole name, or no JSON. And `&#`, which
# stands for such a character.
_GARBLED = re.compile(r"[^ -~]|[\"\\]|&(?=#)")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def tools_listen() -> bool:
    """Whether a range may be seen: a profiler runs, or an NVTX tool was there from the start."""
    return profiler._is_profiler_enabled or _nvtx_tool_is_there()


@functools.cache
def _nvtx_tool_is_there() -> bool:
    if nvtx is None:
        return False
    depth = nvtx.rangePushA("")
    nvtx.rangePop()
    return bool(depth != _NOBODY_COUNTS)


class annotate:
    """Name a range of work for profilers; a context manager and a decorator.

    Nsight Systems and other NVTX tools see an NVTX range. `torch.profiler` does not see those, so
    while it runs the range is a `record_function` as well. With neither attached, a range costs
    well under a microsecond. Ranges nest, and an exception closes those it leaves.

    Args:
        name: What the tools show.

    Raises:
        TypeError: The name is no string, as where the decorator's parentheses are forgotten.

    >>> import autopar as ap
    >>> with ap.annotate("forward"):
    ...     pass
    >>> @ap.annotate("step")
    ... def step():
    ...     return 1
    >>> step()
    1
    """

    __slots__ = ("_records", "name")

    def __init__(self, name: str) -> None:
        check_type("name", name, str, "a string, as in annotate('forward').")
        # Half a pair of UTF-16, which no tool takes, becomes a question mark.
        self.name = name if name.isascii() else name.encode(errors="replace").decode()
        self._records: list[profiler.record_function | None] = []

    def __repr__(self) -> str:
        return f"annotate({self.name!r})"

    def __enter__(self) -> None:
        record = None
        if profiler._is_profiler_enabled:
            # As `&#233;`, of which the reader of traces makes the character again.
            name = _GARBLED.sub(lambda garbled: f"&#{ord(garbled[0])};", self.name)
            record = profiler.record_function(name)
            record.__enter__()
        self._records.append(record)  # it may be entered again before it ends
        if nvtx is not None:
            nvtx.rangePushA(self.name)

    def __exit__(self, *raised: Any) -> None:
        if nvtx is not None:
            nvtx.rangePop()
        record = self._records.pop()
        if record is not None:
            record.__exit__(*raised)

    def __call__(self, fn: Callable[_P, _R]) -> Callable[_P, _R]:
        """Annotate every call of `fn`."""
        check_type("fn", fn, Callable, "a function, as in @annotate('step') above its def.")

        @functools.wraps(fn)
        def annotated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with annotate(self.name):  # its own range, so that calls may nest and run on threads
                return fn(*args, **kwargs)

        return annotated
