"""Elsewhere: operators that traced code has other threads call, where nobody notes them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from autopar.graph.chance import replaced
from autopar.graph.watch import Watch
from autopar.torch_private import TorchDispatchMode


class Unseen(ValueError):
    """An operator is called by another thread."""


@contextlib.contextmanager
def refused_elsewhere(watch: Watch) -> Iterator[None]:
    """Refuse operators of threads that this one starts, and of what it gives to pools of them."""
    thread, pool = threading.Thread, concurrent.futures.ThreadPoolExecutor
    me, watching, (started, submitted) = threading.get_ident(), [watch], (thread.start, pool.submit)

    def start(self: threading.Thread) -> None:
        if threading.get_ident() == me:
            self.run = functools.partial(_run, self.run, watching)  # type: ignore[method-assign]
        started(self)

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != me:
            return submitted(self, fn, *args, **kwargs)
        with replaced(thread, "start", started):  # as the pool's threads have no end
            return submitted(self, _called, fn, watching, *args, **kwargs)

    with replaced(thread, "start", start), replaced(pool, "submit", submit):
        try:
            yield
        finally:
            watching.clear()


class _Elsewhere(TorchDispatchMode):
    """Refuses all operators while code is traced."""

    def __init__(self, watching: list[Watch]) -> None:
        super().__init__()
        self._watching = watching

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for watch in self._watching:
            with watch.keeping():
                msg = (
                    "another thread, which it starts or gives work to, calls torch's operators, "
                    "and the graph has its own lanes. Call them one after another."
                )
                raise Unseen(msg)
        return func(*args, **(kwargs or {}))


def _called(fn: Callable[..., Any], watching: list[Watch], /, *args: Any, **kwargs: Any) -> Any:
    with _Elsewhere(watching):
        return fn(*args, **kwargs)


def _run(run: Callable[[], None], watching: list[Watch]) -> None:
    with contextlib.suppress(Unseen):  # as a thread would print it
        _called(run, watching)
