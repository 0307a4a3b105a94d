"""Use: who may use a pipeline: one thread at a time, of one process, inside of its `with`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from autopar.refusal import Turns

_NEW, _OPEN, LEFT = "not open yet", "open", "left"


class Use:
    """Whether the pipeline on a device can be used, and by whom; `state` says it in words."""

    def __init__(self, device: torch.device) -> None:
        self.state = _NEW
        self._device = device
        self._process = os.getpid()
        self._turns = Turns()
        self._in_use = (
            f"the pipeline on {device} is in use by another thread; expected one thread at a time. "
            f"Make a pipeline for each thread."
        )

    def begin(self) -> None:
        """Open it, which can be done once."""
        if self.state != _NEW:
            raise RuntimeError(self.refusal())
        self.state = _OPEN

    def is_here(self) -> bool:
        """Whether it was made in this process."""
        return self._process == os.getpid()

    def turn(self) -> Iterator[None]:
        """Let one thread in at a time, in a `for` loop; it may come again, as in a generator."""
        for _ in self._turns.take(self._in_use, again=True):
            if self.state != _OPEN or not self.is_here():
                raise RuntimeError(self.refusal())
            yield

    def refusal(self) -> str:
        """Why it can't be used, or opened."""
        state = f"{'was' if self.state == LEFT else 'is'} {self.state}"
        if not self.is_here():
            state = "is another process's"
        return (
            f"the pipeline on {self._device} {state}; it works inside one `with` block. "
            f"Make a new one: with CopyPipeline({str(self._device)!r}) as pipeline: ..."
        )
