"""Modes: what holds in one thread until it is switched back, taken along to another.

`with torch.no_grad():` and its like hold in the thread that enters them, and in no other. What a
thread gives away to others runs under what held where it was given away:

    grad mode and inference mode, autocast, the default device, other function and dispatch modes,
    hooks for saved tensors and that there may be none, the current GPU

The default dtype, deterministic algorithms and the choice of kernels hold for all threads anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from autopar import torch_private as private

T = TypeVar("T")
Hooks = tuple[tuple[Any, Any], ...]  # to pack and to unpack what is saved

# Each is looked up once, as all are asked for with every task.
_grad_on, _inference_on = torch.is_grad_enabled, torch.is_inference_mode_enabled
_autocast_on, _cuda_is_used = private.autocast_is_on, torch.cuda.is_initialized
_function_modes, _dispatch_modes = private.function_mode_count, private.dispatch_mode_count
_last_hooks, _hooks_disabled = private.last_hooks, private.hooks_disabled

_AUTOCAST_KINDS = ("cpu", "cuda")  # of devices
_NOTHING = contextlib.nullcontext()


class Autocast(NamedTuple):
    """Autocast in a thread, by kind of device."""

    on: tuple[bool, ...]
    dtypes: tuple[torch.dtype, ...]
    caches: bool


_AUTOCAST_OFF = Autocast((False, False), (torch.bfloat16, torch.float16), True)


class Modes(NamedTuple):
    """What holds in a thread."""

    grad: bool
    inference: bool
    gpu: int | None  # the current one's index, where CUDA is used
    autocast: Autocast | None = None  # None if it is off
    functions: tuple[Any, ...] = ()
    dispatches: tuple[Any, ...] = ()
    hooks: Hooks = ()
    no_hooks: str | None = None  # what is said to who enters some, where that is refused
    device: Any = None  # the function mode of the default device, where one was set

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function under them, in any thread, and give back what held there before."""
        before = _modes()
        if self.autocast and not before.autocast:
            before = before._replace(autocast=_autocast())  # its dtypes are given back, too
        is_other = self.inference != before.inference
        try:
            with private.InferenceMode(self.inference) if is_other else _NOTHING:
                self._switch_from(_modes() if is_other else before)  # it switches grad mode, too
                return fn(*args, **kwargs)
        finally:
            before._switch_from(_modes())

    def _switch_from(self, now: Modes) -> None:
        """Let hold in the calling thread what doesn't yet; inference mode needs a guard."""
        if self == now:
            return
        if self.functions != now.functions:  # first and last: they would see what is done between
            while _function_modes():
                private.pop_function_mode()
        if self.dispatches != now.dispatches:
            while _dispatch_modes():
                private.pop_dispatch_mode()
            for mode in self.dispatches:
                private.push_dispatch_mode(mode)
        if (self.hooks, self.no_hooks) != (now.hooks, now.no_hooks):
            private.enable_hooks()
            _pop_hooks()
            _push_hooks(self.hooks)
            if self.no_hooks is not None:
                private.disable_hooks(self.no_hooks)
        if self.autocast != now.autocast:
            every_on, dtypes, caches = self.autocast or _AUTOCAST_OFF
            for kind, on, dtype in zip(_AUTOCAST_KINDS, every_on, dtypes, strict=True):
                torch.set_autocast_enabled(kind, on)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(caches)
            torch.clear_autocast_cache()  # as at the end of every `with torch.autocast`
        if self.gpu is not None and self.gpu != now.gpu:
            private.exchange_gpu(self.gpu)
        if self.grad != now.grad:
            private.set_grad_enabled(self.grad)
        if self.functions != now.functions:
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
    modes = _modes()
    if modes.autocast:
        modes = modes._replace(autocast=modes.autocast._replace(caches=False))
    return modes


def _modes() -> Modes:
    """What holds in the calling thread."""
    gpu = private.current_gpu() if _cuda_is_used() else None
    modes = Modes(_grad_on(), _inference_on(), gpu)
    no_hooks = _hooks_disabled()
    some = _autocast_on() or _function_modes() or _dispatch_modes() or _last_hooks(True)
    if no_hooks is None and not some:
        return modes
    _push_hooks(hooks := _pop_hooks())  # only the last can be looked at
    return modes._replace(
        autocast=_autocast() if _autocast_on() else None,
        functions=tuple(private.function_modes()),
        dispatches=tuple(private.dispatch_modes()),
        hooks=hooks,
        no_hooks=no_hooks,
        device=getattr(private.DEFAULT_DEVICE, "device_context", None),
    )


def _autocast() -> Autocast:
    on = tuple(torch.is_autocast_enabled(kind) for kind in _AUTOCAST_KINDS)
    dtypes = tuple(torch.get_autocast_dtype(kind) for kind in _AUTOCAST_KINDS)
    return Autocast(on, dtypes, torch.is_autocast_cache_enabled())


def _pop_hooks() -> Hooks:
    hooks = []
    while last := _last_hooks(True):
        hooks.append(last)
        private.pop_hooks()
    return tuple(reversed(hooks))


def _push_hooks(hooks: Hooks) -> None:
    for pair in hooks:
        private.push_hooks(*pair)
