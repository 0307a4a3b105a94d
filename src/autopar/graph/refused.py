"""Refused: why code can't be traced: its line, the reason in plain words, and the next step."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

from autopar.torch_private import DATA_DEPENDENT

_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parents[1]
_PYTHON = Path(random.__file__).parent
_TRACER = Path(__file__).with_name("tracing.py")  # which calls the code
_DATA = (
    "what it does depends on the data, which only a run has. Compute both ways, split the code "
    "there, or let that part be a task of its own, by graph.add()."
)
COMPILED = (
    "it calls compiled code, as torch.compile makes it, torch.cond and flex_attention too, whose "
    "operators are not seen. Call what was compiled, or let it be a task, by graph.add()."
)


class Refused(ValueError):
    """Why code can't be traced, and what to do instead."""


def line_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The line of the code that is traced, which is the first that isn't torch's, from inside."""
    for frame in traceback.StackSummary.extract(frames):
        path = Path(frame.filename)
        if path == _TRACER:
            return ""
        libraries = {_TORCH, _OWN} if "site-packages" in path.parts else {_OWN, _PYTHON}
        if path.is_file() and libraries.isdisjoint(path.parents):
            return f"line {frame.lineno} of {path.name}, `{frame.line}`: "
    return ""


def by_torch(frame: FrameType) -> bool:
    """Whether a frame is of torch's own code."""
    return _TORCH in Path(frame.f_code.co_filename).parents


def raised_in(error: Exception) -> list[tuple[FrameType, int]]:
    """The frames that an error went through, from inside."""
    return [*traceback.walk_tb(error.__traceback__)][::-1]


def reason(error: Exception) -> str:
    """What an error says, and what to do; torch's own may say little of the code."""
    if isinstance(error, Refused):
        return str(error)
    text = traceback.format_exception_only(error)[0].replace("FakeTensor", "Tensor")
    first, *more = text.splitlines()
    if "TorchScript interpreter" in first:  # which puts the error behind the code
        first = next((line for line in more if "Error: " in line), first)
    if isinstance(error, DATA_DEPENDENT) or "data-dependent" in first:
        return _DATA
    if "dynamo-optimized" in first:
        return COMPILED
    raised_by = Path(raised_in(error)[0][0].f_code.co_filename)
    if {_TORCH, _OWN / "graph"}.isdisjoint(raised_by.parents):
        return first  # as in a plain call
    return (
        f"torch has stricter rules for tensors that have no numbers yet, as here, than for a plain "
        f"call ({first}). If that fails as well, mend it; else compute it in another way, or let "
        f"it be a task of its own, by graph.add()."
    )
