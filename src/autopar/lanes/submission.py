"""Task: a function given to a lane, with its arguments and all that it has to wait for."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from autopar.lanes.handle import Handle, use_on_current_streams
from autopar.lanes.modes import Modes
from autopar.ranges import annotate

T = TypeVar("T")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Task(Generic[T]):
    """What was submitted, and what it has to wait for."""

    handle: Handle[T]
    fn: Callable[..., T]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    captured: tuple[torch.Tensor, ...]  # CUDA tensors that `fn` reaches without an argument
    after: tuple[Handle[Any], ...]
    ready: Mapping[torch.device, torch.cuda.Event]  # after what its submitter had queued there
    modes: Modes  # its submitter's
    context: contextvars.Context  # a copy of its submitter's

    def arguments(self) -> Arguments:
        """Its arguments, with values in place of handles, whose tasks must be issued."""
        kwargs = {name: _value(arg) for name, arg in self.kwargs.items()}
        return tuple(_value(arg) for arg in self.args), kwargs

    def call(self, arguments: Arguments) -> T:
        """Run it in the calling thread, on its current streams."""
        args, kwargs = arguments
        use_on_current_streams((arguments, self.captured))
        with self.modes, annotate(self.handle.name):
            return self.context.run(self.fn, *args, **kwargs)

    def require_dependencies(self) -> None:
        """Refuse to run without what the task waits for."""
        for before in self.after:
            if before.failed():
                self.handle.blocked_by = before
                ending = "was dropped" if before.issued.dropped() else "failed"
                msg = f"not run, because {before}, which it waits for, {ending}"
                raise RuntimeError(msg) from before.issued.error()


def reached_by(fn: Callable[..., Any]) -> list[object]:
    """What a function can use without being given it, as far as it shows.

    >>> x = torch.tensor(5)
    >>> reached_by(lambda y=[3]: x + y[0])
    [([3],), tensor(5)]
    """
    found: list[object] = []
    if isinstance(fn, functools.partial):
        found += [fn.args, fn.keywords, *reached_by(fn.func)]
    bound_to = getattr(fn, "__self__", None)
    if isinstance(bound_to, torch.Tensor):
        found.append(bound_to)
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if inspect.isfunction(fn):
        found += [each for each in (fn.__defaults__, fn.__kwdefaults__) if each]
        for cell in fn.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell may be empty still
                found.append(cell.cell_contents)
        named = (fn.__globals__.get(name) for name in fn.__code__.co_names)
        found += [each for each in named if isinstance(each, torch.Tensor)]
    return found


def _value(argument: Any) -> Any:
    """The value of a handle whose task is issued; anything else as it is."""
    return argument.issued.value() if isinstance(argument, Handle) else argument
