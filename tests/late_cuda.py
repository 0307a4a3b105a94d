"""Streams that are late, for plain PyTorch where there is no GPU: each runs once it is waited for.

Tensors lie in the CPU's memory. Operators are put into the queue of the current stream, and their
results hold no number until it has come to them. A stream that is waited for goes on as far as it
can, as a fast one would. Memory that is freed holds no number once its own stream comes to that,
unless `record_stream` named another stream, as the caching allocator sees it.
"""

import contextlib
import weakref
from collections import deque

import torch
from torch.overrides import TorchFunctionMode

_LATE = (torch.Tensor.to, torch.mm, torch.Tensor.mm)


class Event:
    def __init__(self, stream):
        self._stream, self._place = stream, stream.taken

    def synchronize(self):
        assert self.is_done(), "streams wait for each other in a circle"

    def is_done(self):
        self._stream.run()
        return self._stream.done >= self._place


class Stream:
    def __init__(self, device=None):
        self.device = torch.device(device or "cpu")
        self.taken = self.done = 0
        self._waiting, self._is_running = deque(), False

    def queue(self, work):
        """Take work that returns False as long as it can't be done."""
        self._waiting.append(work)
        self.taken += 1

    def run(self):
        if self._is_running:  # and waits for another stream, which has come back to it
            return
        self._is_running = True
        while self._waiting and self._waiting[0]() is not False:
            self._waiting.popleft()
            self.done += 1
        self._is_running = False

    def record_event(self):
        return Event(self)

    def wait_event(self, event):
        self.queue(event.is_done)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        self.record_event().synchronize()


class LateCuda(TorchFunctionMode):
    """Take plain tensor operators over, and let them be late."""

    def __init__(self, patch):
        super().__init__()
        self.current, self._frees, self._is_late = Stream(), {}, True
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        patch.setattr(torch.cuda, "synchronize", lambda device=None: self.current.synchronize())
        patch.setattr(torch.Tensor, "record_stream", lambda x, stream: self._keep(x, stream))

    @contextlib.contextmanager
    def _on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def _keep(self, tensor, stream):
        home, free = self._frees.get(tensor.data_ptr(), (stream, None))
        if home is not stream:
            free.detach()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._is_late and func is torch.Tensor.copy_:
            to, source = args[0].detach(), args[1].detach()
            self._queue(lambda: to.copy_(source))
            return args[0]
        if self._is_late and func in _LATE:
            inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
            result = torch.full_like(args[0], torch.nan)
            home, memory = self.current, result.detach()
            self._queue(lambda: memory.copy_(func(*inputs, **kwargs)))
            free = weakref.finalize(result, home.queue, lambda: memory.fill_(torch.nan))
            self._frees[memory.data_ptr()] = home, free
            return result
        return func(*args, **kwargs)

    def _queue(self, work):
        def now():
            before, self._is_late = self._is_late, False
            work()
            self._is_late = before

        self.current.queue(now)
