"""Modes: what holds in one thread until it is switched back, taken along to another.

`with torch.no_grad():` and its like hold in the thread that enters them, and in no other. What a
thread gives away to others runs under what held where it was given away:

    grad mode and inference mode, autocast, the default device, other function and dispatch modes,
    hooks for saved tensors and that there may be none, the current GPU

Current streams are not taken along, only put back. The default dtype, deterministic algorithms and
the choice of kernels hold for all threads anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from autopar import torch_private as private

T = TypeVar("T")
Hooks = tuple[tuple[Any, Any], ...]  # to pack and to unpack what is saved
Stream = tuple[int, int, int]  # its number, and the number and the type of its device
_DEVICES = ("cpu", "cuda")  # of which autocast has settings of their own
_NO_STREAMS: tuple[Stream, ...] = ()
_guards = threading.local()  # what has put inference mode back, by thread


class Modes(NamedTuple):
    """What holds in a thread."""

    grad: bool
    inference: bool
    gpu: int  # the current one's index
    casts: tuple[Any, ...]  # what autocast does, on or off: dtypes by device, whether it caches
    autocast: tuple[bool, ...] = (False, False)  # whether it is on, for each of `_DEVICES`
    functions: tuple[Any, ...] = ()
    dispatches: tuple[Any, ...] = ()
    hooks: Hooks = ()
    no_hooks: str | None = None  # what is said to who enters some, where that is refused
    device: Any = None  # the function mode of the default device, where one was set
    streams: tuple[Stream, ...] = ()  # the current one of each GPU, where CUDA is used

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function under them, in any thread, and give back what held there before."""
        if self.inference != torch.is_inference_mode_enabled():
            with private.InferenceMode(self.inference):
                return self.call(fn, *args, **kwargs)
        before = thread_modes()
        try:
            self._switch_from(before)
            return fn(*args, **kwargs)
        finally:
            before.hold()

    def hold(self) -> None:
        """Let hold in the calling thread again what did before a task, whatever that has left."""
        if self.inference != torch.is_inference_mode_enabled():
            # Only a guard can switch it, and what ends one puts back what was before that.
            _guards.last = None
            _guards.last = private.InferenceMode(self.inference)
            _guards.last.__enter__()
        now = thread_modes()
        if self.streams != now.streams:
            self._put_streams_back(now.streams)
            now = thread_modes()
        self._switch_from(now)

    def _put_streams_back(self, now: tuple[Stream, ...]) -> None:
        """Make those current again that were, or the default ones where CUDA was not used then."""
        earlier = self.streams or [(0, *key[1:]) for key in now]
        for left, before in zip(now, earlier, strict=True):
            if left != before:
                stream = _stream_of(before)
                torch.cuda.set_stream(stream)  # which makes its GPU the current one
                stream.wait_stream(_stream_of(left))  # what the task has queued is part of it

    def _switch_from(self, now: Modes) -> None:
        """Let hold in the calling thread what doesn't yet; inference mode needs a guard."""
        if self == now or self[:-1] == now[:-1]:  # but for the streams
            return
        while private.function_mode_count():  # first, as they would see what is done here
            private.pop_function_mode()
        if self.dispatches != now.dispatches:
            while private.dispatch_mode_count():
                private.pop_dispatch_mode()
            for mode in self.dispatches:
                private.push_dispatch_mode(mode)
        if (self.hooks, self.no_hooks) != (now.hooks, now.no_hooks):
            private.enable_hooks()
            _pop_hooks()
            _push_hooks(self.hooks)
            if self.no_hooks is not None:
                private.disable_hooks(self.no_hooks)
        if (self.casts, self.autocast) != (now.casts, now.autocast):
            *dtypes, caches = self.casts
            for device, dtype, is_on in zip(_DEVICES, dtypes, self.autocast, strict=True):
                torch.set_autocast_dtype(device, dtype)
                torch.set_autocast_enabled(device, is_on)
            torch.set_autocast_cache_enabled(caches)
            torch.clear_autocast_cache()  # as at the end of every `with torch.autocast`
        if self.gpu != now.gpu:
            private.exchange_gpu(self.gpu)
        private.set_grad_enabled(self.grad)
        for mode in self.functions:
            private.push_function_mode(mode)
        private.DEFAULT_DEVICE.device_context = self.device


def caller_modes() -> Modes:
    """What holds in the calling thread, for what it gives away to others.

    Autocast's cache of weights is one for all threads and streams: a task could read there what
    another has yet to write, or would have written anew. So they do without it.
    """
    if private.transform() is not None:
        msg = (
            "a task was given away inside a transform of torch.func, such as vmap or grad, which "
            "other threads know nothing of; expected it outside. Transform the task's function."
        )
        raise RuntimeError(msg)
    modes = thread_modes()
    return modes._replace(casts=(*modes.casts[:-1], False)) if True in modes.autocast else modes


def thread_modes() -> Modes:
    """What holds in the calling thread."""
    gpu, streams = 0, _NO_STREAMS
    if torch.cuda.is_initialized():
        gpu = private.current_gpu()  # to ask for a stream makes no context
        streams = tuple(map(private.current_stream_key, range(torch.cuda.device_count())))
    dtypes = torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")
    casts = (*dtypes, torch.is_autocast_cache_enabled())
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    modes = Modes(grad, inference, gpu, casts, streams=streams)
    no_hooks, autocast_is_on = private.hooks_disabled(), private.autocast_is_on()
    some = private.function_mode_count() or private.dispatch_mode_count()
    if no_hooks is None and not (autocast_is_on or some or private.last_hooks(True)):
        return modes
    _push_hooks(hooks := _pop_hooks())  # only the last can be looked at
    return modes._replace(
        autocast=tuple(map(torch.is_autocast_enabled, _DEVICES)),
        functions=tuple(private.function_modes()),
        dispatches=tuple(private.dispatch_modes()),
        hooks=hooks,
        no_hooks=no_hooks,
        device=getattr(private.DEFAULT_DEVICE, "device_context", None),
    )


def _stream_of(key: Stream) -> torch.cuda.Stream:
    number, index, kind = key
    return torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)


def _pop_hooks() -> Hooks:
    hooks = []
    while last := private.last_hooks(True):
        hooks.append(last)
        private.pop_hooks()
    return tuple(reversed(hooks))


def _push_hooks(hooks: Hooks) -> None:
    for pair in hooks:
        private.push_hooks(*pair)
