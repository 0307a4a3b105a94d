"""Use: who may use a pipeline: one thread at a time, of one process, inside of its `with`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import torch

_NEW, _OPEN, LEFT = "not open yet", "open", "left"


class Use:
    """Whether the pipeline on a device can be used, and by whom; `state` says it in words."""

    def __init__(self, device: torch.device) -> None:
        self.state = _NEW
        self._device = device
        self._process = os.getpid()
        self._turns: dict[None, tuple[int]] = {}  # whose turn it is

    def begin(self) -> None:
        """Open it, which can be done once."""
        if self.state != _NEW:
            raise RuntimeError(self.refusal())
        self.state = _OPEN

    def is_here(self) -> bool:
        """Whether it was made in this process."""
        return self._process == os.getpid()

    def turn(self) -> Iterator[None]:
        """Let one thread in at a time, in a loop of one round: `for _ in use.turn(): ...`.

        The same thread may come again, as in a generator. Ctrl-C may come after any call.
        """
        turn = (threading.get_ident(),)
        try:
            holder = self._turns.setdefault(None, turn)  # one step, whatever thread comes between
            if holder != turn:
                msg = (
                    f"the pipeline on {self._device} is in use by another thread; expected one "
                    f"thread at a time. Make a pipeline for each thread."
                )
                raise RuntimeError(msg)
            if self.state != _OPEN or self._process != os.getpid():
                raise RuntimeError(self.refusal())
            yield
        finally:
            if None in self._turns and self._turns[None] is turn:
                del self._turns[None]

    def refusal(self) -> str:
        """Why it can't be used, or opened."""
        state = f"{'was' if self.state == LEFT else 'is'} {self.state}"
        if not self.is_here():
            state = "is another process's"
        return (
            f"the pipeline on {self._device} {state}; it works inside one `with` block. "
            f"Make a new one: with CopyPipeline({str(self._device)!r}) as pipeline: ..."
        )
