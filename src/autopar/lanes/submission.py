"""Submission: a function given to a lane, with its arguments and all that it has to wait for."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch

from autopar.lanes.handle import Handle, cuda_tensors, use_on_current_streams
from autopar.lanes.modes import caller_modes
from autopar.ranges import annotate
from autopar.torch_private import pytree

T = TypeVar("T")


class Submission(Generic[T]):
    """A task, what it has to wait for, and what holds where it was submitted."""

    def __init__(
        self,
        handle: Handle[T],
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        after: tuple[Handle[Any], ...],
    ) -> None:
        self.handle = handle
        self._fn = fn
        self._modes, self._context = caller_modes(), contextvars.copy_context()
        leaves = pytree.tree_leaves((args, kwargs))
        self._given = [leaf for leaf in leaves if isinstance(leaf, Handle)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_cuda]
        # What it uses without being given it, if there can be tensors of a GPU.
        reached = reached_by(fn) if torch.cuda.is_initialized() else ()
        self._tensors = [*tensors, *cuda_tensors(reached)]
        gpus = {tensor.device for tensor in self._tensors}
        if handle.device.type == "cuda":
            self._modes = self._modes._replace(gpu=handle.device.index)
            gpus.add(handle.device)
        streams = {gpu: torch.cuda.current_stream(gpu) for gpu in gpus}
        # After what the submitter has queued on each GPU until now, where that is not done.
        self.ready = {gpu: at.record_event() for gpu, at in streams.items() if not at.query()}
        self.after = (*after, *self._given)
        self._arguments: Callable[[], tuple[Iterable[Any], dict[str, Any]]] = lambda: (args, kwargs)
        if self._given:
            gets = [_getter(argument) for argument in args]
            by_name = {name: _getter(argument) for name, argument in kwargs.items()}
            self._arguments = lambda: (
                [get() for get in gets],
                {name: get() for name, get in by_name.items()},
            )

    def call(self) -> T:
        """Run it in the calling thread, on its current streams; what it waits for is issued."""
        args, kwargs = self._arguments()
        values = [handle._issued.value() for handle in self._given]
        use_on_current_streams([*self._tensors, *values])
        with annotate(self.handle.name):
            value: T = self._modes.call(self._context.run, self._fn, *args, **kwargs)
        return value

    def wait_for_dependencies(self) -> None:
        """Wait until what the task waits for is issued; no longer than until it is dropped."""
        for before in self.after:
            if not self.handle._issued.dropped():
                before._wait_until_issued()

    def require_dependencies(self) -> None:
        """Refuse to run without what the task waits for."""
        for before in self.after:
            if before.failed():
                self.handle._blocked_by = before
                ending = "was dropped" if before._issued.dropped() else "failed"
                msg = f"not run, because {before}, which it waits for, {ending}"
                raise RuntimeError(msg) from before._issued.error()
            before._note_span()


def reached_by(fn: Callable[..., Any]) -> list[object]:
    """What a function can use without being given it, as far as it shows.

    >>> x = torch.tensor(5)
    >>> reached_by(lambda y=[3]: x + y[0])
    [([3],), tensor(5)]
    """
    reached: list[object] = []
    if isinstance(fn, functools.partial):
        reached += [fn.args, fn.keywords, *reached_by(fn.func)]
    bound_to = getattr(fn, "__self__", None)
    if isinstance(bound_to, torch.Tensor):
        reached.append(bound_to)
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if inspect.isfunction(fn):
        reached += [defaults for defaults in (fn.__defaults__, fn.__kwdefaults__) if defaults]
        for cell in fn.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell may be empty still
                reached.append(cell.cell_contents)
        named = (fn.__globals__.get(name) for name in fn.__code__.co_names)
        reached += [value for value in named if isinstance(value, torch.Tensor)]
    return reached


def _getter(argument: Any) -> Callable[[], Any]:
    """How to get an argument, with values in place of handles, once their tasks are issued."""
    leaves, containers = pytree.tree_flatten(argument)
    if not any(isinstance(leaf, Handle) for leaf in leaves):
        return lambda: argument  # its containers are the caller's own
    return lambda: pytree.tree_unflatten(
        [leaf._issued.value() if isinstance(leaf, Handle) else leaf for leaf in leaves], containers
    )
