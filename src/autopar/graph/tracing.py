"""Tracing: the operators that unmodified PyTorch code calls, one by one.

The code is called on tensors without memory. What it changes beside its results is put back
afterwards: a tensor that it has put in another's place is copied there by each run instead, and
code that changes anything else is refused.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import operator
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx.experimental import proxy_tensor
from torch.nn.parameter import is_lazy

from autopar import torch_private as private
from autopar.effects.memory import held_by, is_size
from autopar.effects.state import HOOKS, State, attributes_of, is_a
from autopar.graph.assignments import assignments, copy_back
from autopar.graph.chance import Chance
from autopar.graph.ctrl_c import held_back
from autopar.graph.refused import Refusals, Refused, answering, line_of, raised_in, reason, refusing
from autopar.graph.traced_call import Call, call_of, filled, remove_idle
from autopar.graph.watch import Watch, require_memory
from autopar.refusal import check_type
from autopar.torch_private import FakeTensor, pytree

_tracing = threading.RLock()  # torch's tracer is one for all threads
_UNSEEN = "it uses a tensor that another thread, or other tracing, has made. Make it in this one."
_COMPUTED = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)


class Traced(NamedTuple):
    """What a function did when it was called."""

    calls: list[tuple[torch.fx.Node, Call]]  # each with the node that stands for its result
    result: Any  # what it returned, with nodes in place of tensors
    # Parameters and buffers that it uses: where modules have them, and their names.
    weights: list[tuple[dict[str, Any], str, torch.Tensor]]


def traced(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Call a function on tensors without memory, and note the operators that it calls.

    What can't be traced is refused with the reason, unless a library has asked whether it is
    traced, and was told no: then the code is called again, and the library has its own answer.
    """
    check_type("fn", fn, Callable, "a function. Write trace(fn, x), not trace(fn(x)).")
    asked: list[bool] = []
    with _tracing, held_back(), _quiet(), answering(private.TORCH_ASKS, _in_other_modes):
        with answering(private.LIBRARIES_ASK, lambda: asked.append(True)):  # which is a no
            try:
                return _traced(fn, args, kwargs)
            except ValueError:
                if not asked:
                    raise
        return _traced(fn, args, kwargs)


def _traced(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    attempt = _Attempt(fn, args, kwargs)
    try:
        trace = attempt.trace()
        if left := attempt.forget():
            msg = (
                f"it keeps a tensor that it has made in {left}, for later calls. Call it once "
                f"before, if that is for its first call only; or return it."
            )
            raise Refused(msg)
        return trace
    except Exception as error:
        where = attempt.watch.line or line_of(raised_in(error))
        msg = f"can't trace {_name(fn)}: {where}{reason(error)}"
        attempt.forget(error)
        raise ValueError(msg) from error


class _Attempt:
    """One call of a function on tensors without memory, which a watch sees."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.watch = Watch()
        self._fn = fn
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs), is_leaf=is_size)
        self._at = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self._results: list[Any] = []
        self._form: Any = None

    def trace(self) -> Traced:
        """The operators that are called, and the results, as `traced` returns them."""
        tensors = [self._leaves[i] for i in self._at]
        for tensor in tensors:
            require_memory(tensor)
        module = proxy_tensor.make_fx(self._call, tracing_mode="fake")(*tensors)
        remove_idle(module.graph)
        values: dict[torch.fx.Node, Any] = dict(self.watch.found)
        calls: list[tuple[torch.fx.Node, Call]] = []
        given, computed = iter(tensors), iter(())
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values.setdefault(node, operator.attrgetter(str(node.target))(module))
                if isinstance(values[node], FakeTensor):
                    raise Refused(_UNSEEN)
            elif node.op == "output":
                computed = iter(filled(node.args[0], values))
            elif node not in values and getattr(node.target, "namespace", "") != "profiler":
                calls.append((node, call_of(node, values)))
        results = [next(computed) if is_a(one, _COMPUTED) else one for one in self._results]
        try:
            result = pytree.tree_unflatten(results, self._form)
        except Exception as error:  # as a named tuple checks what it is made of
            msg = (
                f"what it returns can't be made of tasks, which stand for tensors there ({error}). "
                f"Return its tensors in tuples, lists and dictionaries."
            )
            raise Refused(msg) from error
        return Traced(calls, result, self._weights())

    def _call(self, *tensors: torch.Tensor) -> list[Any]:
        """Call the function; return those of its results that a run computes."""
        given = list(self._leaves)
        for i, tensor in zip(self._at, tensors, strict=True):
            given[i], real = tensor, self._leaves[i]
            vars(tensor).update({**vars(real), **vars(tensor)})  # the program's attributes
            for part in HOOKS:
                if hooks := getattr(real, part):
                    setattr(tensor, part, hooks)
        args, kwargs = pytree.tree_unflatten(given, self._spec)
        named = [(f"args[{i}]", value) for i, value in enumerate(args)]
        watch = self.watch
        with private.disable_current_modes():
            before = State([(_name(self._fn), self._fn), *named, *kwargs.items(), *_chances()])
            _require_whole(before)
            chance = Chance(before.generators)
        watch.begin(chance)
        with watch:
            with contextlib.ExitStack() as back:
                for end in (watch.end, chance.restore, before.restore):  # last to first
                    back.callback(private.disable_current_modes()(end))
                with refusing(watch.refuse):
                    value = watch.insist(lambda: self._fn(*args, **kwargs))
                results, self._form = pytree.tree_flatten(value, is_leaf=is_size)
                chance.require_only_drawn()
                with private.disable_current_modes():
                    assigned = assignments(before.changes())
            copy_back(assigned, before, results, watch)
        for result in results:
            _require_known(result, tensors)
        watch.fold(results)
        self._results = results
        return [result for result in results if is_a(result, _COMPUTED)]

    def _weights(self) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
        """Parameters and buffers of modules that can be reached, and are used."""
        used = {*map(id, self.watch.found.values())}
        return [
            (place, name, tensor)
            for part in held_by(self._fn, *self._leaves)
            if is_a(part, torch.nn.Module)
            for place in (part._parameters, part._buffers)
            if isinstance(place, dict)  # not so in TorchScript
            for name, tensor in place.items()
            if id(tensor) in used
        ]

    def forget(self, error: BaseException | None = None) -> str:
        """Let go of all tensors without memory; say who holds one nevertheless, if anyone does."""
        errors: list[BaseException] = []
        while error is not None and error not in errors:  # their frames hold what was made there
            errors.append(error)
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        if self.watch.tracer is None:
            return ""
        tracked = self.watch.tracer.tensor_tracker
        for node in self.watch.tracer.graph.nodes:
            node.meta.clear()
        self._results, self.watch = [], Watch()
        if not any(isinstance(tensor, FakeTensor) for tensor in tracked):
            return ""
        gc.collect()
        holders = [_taken_from(tensor) for tensor in tracked if isinstance(tensor, FakeTensor)]
        return next(filter(None, holders), "an object" if holders else "")


def _in_other_modes() -> bool:
    """Whether there are modes that this tracing has not made, as that of a default device."""
    kinds = {type(mode) for mode in private.function_modes()} - {Refusals}
    return any(not kind.__module__.startswith("torch.fx.") for kind in kinds)


def _chances() -> Iterator[tuple[str, Any]]:
    """The generators of random numbers beside torch's that need not be named to be used."""
    yield "Python's random numbers", random.seed.__self__  # type: ignore[attr-defined]
    if (numpy := sys.modules.get("numpy")) is not None:
        yield "NumPy's random numbers", numpy.random.mtrand._rand


def _require_whole(state: State) -> None:
    """Refuse tensors that have no shape or memory yet, and what can't be put back."""
    for name in state.iterators:
        msg = (
            f"it comes to {name}, an iterator, which it may change; a run only repeats operators. "
            f"Take what it needs out of it before, or keep it where the code does not come to it."
        )
        raise Refused(msg)
    for name in (name for name, tensor in state.tensors if is_lazy(tensor)):
        msg = f"{name} has no shape yet, as it is a lazy module's. Call it once before."
        raise Refused(msg)


def _require_known(result: Any, given: tuple[torch.Tensor, ...]) -> None:
    """Refuse a result in which tensors are hidden, or numbers or attributes that a run lacks."""
    if is_a(result, FakeTensor) and not any(result is tensor for tensor in given):
        for name in attributes_of(result):
            msg = (
                f"it sets {name} of a tensor that it returns; a run only repeats operators. Set it "
                f"on what run[...] returns."
            )
            raise Refused(msg)
    kinds = (torch.Tensor, *_COMPUTED)
    hides = private.is_traceable_wrapper_subclass(result)
    if is_a(result, kinds) and not hides:
        return
    parts = held_by(*(result if is_size(result) else [result]))
    if hides or isinstance(result, Iterator) or any(is_a(part, kinds) for part in parts):
        kind = type(result).__name__
        msg = (
            f"it returns one {kind}, which may hold tensors, or numbers that depend on the data, "
            f"where they can't be found. Return them in tuples, lists and dictionaries, or let "
            f"torch.export.register_dataclass know {kind}."
        )
        raise Refused(msg)


def _taken_from(tensor: torch.Tensor) -> str:
    """Take a tensor without memory out of a cache, and say which."""
    for holder in gc.get_referrers(tensor):
        for referrer in (holder, *(gc.get_referrers(holder) if isinstance(holder, dict) else ())):
            if isinstance(referrer, functools._lru_cache_wrapper):
                referrer.cache_clear()
                return f"the cache of {referrer.__qualname__}"
        if isinstance(holder, (dict, list)):
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key in [key for key, value in items if value is tensor]:
                del holder[key]
                return f"one {type(holder).__name__}, at {key!r}"
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's loggers silent: what it has to say is in the error."""
    with contextlib.ExitStack() as back:
        for name, logger in [*logging.root.manager.loggerDict.items()]:
            if name.startswith("torch") and isinstance(logger, logging.Logger):
                back.callback(setattr, logger, "disabled", logger.disabled)
                logger.disabled = True
        yield


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__name__))
