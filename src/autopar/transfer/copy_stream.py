"""Copy stream: where a pipeline's copies between host and device queue, and its caller's stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from typing_extensions import override

from autopar.device import new_stream
from autopar.torch_private import InferenceMode, current_gpu, current_stream_key


class Waitable(Protocol):
    """Something that ends, such as a CUDA event; where nothing has to be waited for, it is None."""

    def synchronize(self) -> None:
        """Wait until it has ended."""

    def query(self) -> bool:
        """Whether it has ended."""


Copy = tuple[torch.Tensor, torch.Tensor]  # where to, and from where


class CopyStream:
    """An in-order queue of copies beside the caller's computing.

    This one is for the CPU: there each copy is done when it is queued.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Bytes of host memory that the device copies to and from by itself."""
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")  # whatever the default

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor lies in such memory."""
        return False

    def wait(self, end: Waitable) -> None:
        """Let what is queued from now on wait for an end."""
        end.synchronize()

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        to.copy_(source)

    def copy_all(
        self, copies: Iterable[Copy], *after: Waitable | None, timed: bool = False
    ) -> Waitable | None:
        """Queue some copies from the calling thread, to be done after some ends; mark theirs."""
        for end in after:
            if end is not None:
                self.wait(end)
        with InferenceMode(True):  # the only one in which all tensors may be written to
            for to, source in copies:
                self.copy(to, source)
        return self.mark(timed=timed)

    def mark(self, *, timed: bool = False) -> Waitable | None:
        """The end of what was queued so far; a timed one can tell when that was."""
        return None

    def caller(self) -> torch.cuda.Stream | None:
        """The stream that the calling thread computes on."""
        return None

    def caller_follows(self, caller: torch.cuda.Stream | None, tensor: torch.Tensor) -> None:
        """Let a stream that was the caller's use a tensor of the one that is so now."""

    def caller_mark(self) -> Waitable | None:
        """The end of what the calling thread has queued on its current stream."""
        return None

    def caller_receives(self, end: Waitable, tensors: Iterable[torch.Tensor]) -> None:
        """Let what the calling thread queues from now on find tensors filled, and keep them."""
        end.synchronize()

    def outlives(self, tensor: torch.Tensor) -> None:
        """Keep a tensor's memory, should it be freed, until the copies queued by then are done."""


class CudaCopyStream(CopyStream):
    """Copies on a CUDA stream of their own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = new_stream(device)
        self._caller: tuple[object, torch.cuda.Stream] | None = None

    @override
    def pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    @override
    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    @override
    def wait(self, end: Waitable) -> None:
        if isinstance(end, torch.cuda.Event):
            self._stream.wait_event(end)
        else:
            end.synchronize()  # the host's work: whoever queues waits

    @override
    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)

    @override
    def copy_all(
        self, copies: Iterable[Copy], *after: Waitable | None, timed: bool = False
    ) -> Waitable | None:
        if current_gpu() != self.device.index:
            with torch.cuda.stream(self._stream):
                return super().copy_all(copies, *after, timed=timed)
        before = self.caller()
        try:
            torch.cuda.set_stream(self._stream)  # in a third of the time
            return super().copy_all(copies, *after, timed=timed)
        finally:
            torch.cuda.set_stream(before)

    @override
    def mark(self, *, timed: bool = False) -> Waitable:
        event = torch.cuda.Event(enable_timing=timed)
        event.record(self._stream)
        return event

    @override
    def caller(self) -> torch.cuda.Stream:
        key = current_stream_key(self.device.index)
        last = self._caller  # one read: another thread may change it meanwhile
        if last is None or last[0] != key:
            # Torch makes a new object each time, which takes longer than all the rest of this.
            last = self._caller = key, torch.cuda.current_stream(self.device)
        return last[1]

    @override
    def caller_follows(self, caller: torch.cuda.Stream | None, tensor: torch.Tensor) -> None:
        current = self.caller()
        if caller is not None and caller != current and tensor.is_cuda:
            caller.wait_event(current.record_event())
            tensor.record_stream(caller)

    @override
    def caller_mark(self) -> Waitable:
        event = torch.cuda.Event()
        event.record(self.caller())
        return event

    @override
    def caller_receives(self, end: Waitable, tensors: Iterable[torch.Tensor]) -> None:
        stream = self.caller()
        if isinstance(end, torch.cuda.Event):
            stream.wait_event(end)
        for tensor in tensors:  # it may not be the stream that they were allocated for
            tensor.record_stream(stream)

    @override
    def outlives(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)


def copy_stream(device: torch.device) -> CopyStream:
    """A new one for a device."""
    return CudaCopyStream(device) if device.type == "cuda" else CopyStream(device)
