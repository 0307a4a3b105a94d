"""Delivery: copies of single tensors to pinned memory, which arrive whether or not anybody asks."""

from __future__ import annotations

import time
from collections import deque

import torch

from autopar.lanes.clock import device_clock
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import Waitable
from autopar.transfer.layout import dense
from autopar.transfer.load import Load, Part, is_over, wait_for_end
from autopar.transfer.ring import Ring

_LEAST_BYTES = 1 << 15  # what the smallest tensor counts as: its handle takes memory, too


class Deliveries:
    """Those of a pipeline, in bounded memory: `room_bytes` or one tensor are under way at most."""

    def __init__(self, room_bytes: int) -> None:
        self._left_bytes = room_bytes
        self._under_way: deque[tuple[int, Waitable | None]] = deque()

    def start(self, ring: Ring, tensor: torch.Tensor) -> Handle[torch.Tensor]:
        """Clone a tensor, and copy it to its result; errors of the copy are the handle's."""
        size_bytes = max(tensor.nbytes, _LEAST_BYTES)
        while self._under_way:
            first_bytes, end = self._under_way[0]
            if self._left_bytes >= size_bytes and not is_over(end):
                break
            wait_for_end(end)
            self._left_bytes += first_bytes
            self._under_way.popleft()
        stream, device = ring.stream, tensor.device
        name = f"item 0 of to_host_async from {device}"
        on_gpu = device.type == "cuda"
        try:
            source = dense(tensor)
            source = source.clone() if source is tensor else source
            result = torch.empty_like(source, device="cpu", pin_memory=on_gpu)
            load = Load(name, stream, [Part(source, ((0, result),), staged=False)], list)
            load.timed = True
            handle: Handle[torch.Tensor] = Handle("copy", f"{device} to host", device, "copy")
            handle._clock = device_clock(device) if on_gpu else None
            handle._start = _time_of(stream.mark(timed=True))
            stream.outlives(source)
            ring.advance(load)
        except Exception as error:
            note(error, f"in {name}")
            raise
        self._left_bytes -= size_bytes
        self._under_way.append((size_bytes, load.copied))
        handle._end = _time_of(load.copied)
        try:
            if load.failed:
                load.wait()
            handle._issued.set_result(result)
        except Exception as error:
            handle._issued.set_exception(error)
        return handle


def _time_of(end: Waitable | None) -> torch.cuda.Event | float:
    """When an end was, to be read later, or now where it is none of a CUDA stream."""
    return end if isinstance(end, torch.cuda.Event) else time.perf_counter()
