"""Modes: what holds in one thread until it is switched back, taken along to another.

`with torch.no_grad():` and its like hold in the thread that enters them, and in no other. What a
thread gives away to others runs under what held where it was given away:

    grad mode and inference mode, the current GPU, autocast, the default device, other function and
    dispatch modes, hooks for saved tensors

The default dtype, deterministic algorithms and the choice of kernels hold for all threads anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from autopar import torch_private as private

T = TypeVar("T")
Hooks = tuple[tuple[Any, Any], ...]  # to pack and to unpack what is saved
_DEVICES = ("cpu", "cuda")  # of which autocast has settings of their own


class Others(NamedTuple):
    """What mostly is not there: autocast, modes and hooks. Without arguments, what torch has."""

    autocast: tuple[bool, ...] = (False, False)  # for each of `_DEVICES`, as the dtypes
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    caches: bool = True
    functions: tuple[Any, ...] = ()
    dispatches: tuple[Any, ...] = ()
    hooks: Hooks = ()
    device: Any = None  # the function mode of the default device, where one was set


class Modes(NamedTuple):
    """What holds in a thread."""

    grad: bool
    inference: bool
    gpu: int | None  # the current one's index, where CUDA is used
    others: Others | None  # None where there are none, as that is asked before and after each task

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function under them, in any thread, and give back what held there before."""
        before = thread_modes()
        if self.inference != before.inference:
            with private.InferenceMode(self.inference):  # only a guard can switch it
                return self.call(fn, *args, **kwargs)
        if self.others is not before.others:
            before = before._replace(others=_others())  # dtypes too, where autocast is off
        try:
            self.hold(before)
            return fn(*args, **kwargs)
        finally:
            before.hold()

    def hold(self, now: Modes | None = None) -> None:
        """Let hold in the calling thread what doesn't yet, but for inference mode."""
        now = now or thread_modes()
        if self == now:
            return
        there, here = now.others or Others(), self.others or Others()
        while private.function_mode_count():  # first, as they would see what is done here
            private.pop_function_mode()
        if here.dispatches != there.dispatches:
            while private.dispatch_mode_count():
                private.pop_dispatch_mode()
            for mode in here.dispatches:
                private.push_dispatch_mode(mode)
        if here.hooks != there.hooks:
            _pop_hooks()
            _push_hooks(here.hooks)
        if here[:3] != there[:3]:
            for device, is_on, dtype in zip(_DEVICES, here.autocast, here.dtypes, strict=True):
                torch.set_autocast_dtype(device, dtype)
                torch.set_autocast_enabled(device, is_on)
            torch.set_autocast_cache_enabled(here.caches)
            torch.clear_autocast_cache()  # as at the end of every `with torch.autocast`
        if self.gpu is not None and self.gpu != now.gpu:
            private.exchange_gpu(self.gpu)
        private.set_grad_enabled(self.grad)
        for mode in here.functions:
            private.push_function_mode(mode)
        private.DEFAULT_DEVICE.device_context = here.device


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
    if modes.others is not None and True in modes.others.autocast:
        modes = modes._replace(others=modes.others._replace(caches=False))
    return modes


def thread_modes() -> Modes:
    """What holds in the calling thread."""
    gpu = private.current_gpu() if torch.cuda.is_initialized() else None
    some = (
        private.autocast_is_on()
        or private.function_mode_count()
        or private.dispatch_mode_count()
        or private.last_hooks(True)
    )
    inference = torch.is_inference_mode_enabled()
    return Modes(torch.is_grad_enabled(), inference, gpu, _others() if some else None)


def _others() -> Others:
    _push_hooks(hooks := _pop_hooks())  # only the last can be looked at
    return Others(
        tuple(map(torch.is_autocast_enabled, _DEVICES)),
        tuple(map(torch.get_autocast_dtype, _DEVICES)),
        torch.is_autocast_cache_enabled(),
        tuple(private.function_modes()),
        tuple(private.dispatch_modes()),
        hooks,
        getattr(private.DEFAULT_DEVICE, "device_context", None),
    )


def _pop_hooks() -> Hooks:
    hooks = []
    while last := private.last_hooks(True):
        hooks.append(last)
        private.pop_hooks()
    return tuple(reversed(hooks))


def _push_hooks(hooks: Hooks) -> None:
    for pair in hooks:
        private.push_hooks(*pair)
