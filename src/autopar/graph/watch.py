"""Watch: what sees traced code's operators first, and refuses what can't be noted."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.fx.experimental import proxy_tensor

from autopar import torch_private as private
from autopar.device import synchronize
from autopar.effects.memory import tensors_of
from autopar.effects.operators import written_arguments
from autopar.graph.chance import Chance
from autopar.graph.known import Known
from autopar.graph.refused import Refused, line_of
from autopar.graph.traced_call import origin_of
from autopar.torch_private import FakeTensor, pytree

_BY_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_DETACH = torch.ops.aten.detach.default
_MOVE_MEMORY = {"aten::set_", "aten::resize_", "aten::resize_as_", "aten::resize_as_sparse_"}

_NESTED = (
    "it uses a nested tensor, whose memory the graph doesn't know. Use one that is padded; "
    "nn.TransformerEncoder does with enable_nested_tensor=False."
)
_TRACKED = (
    "it writes, with gradients on, a tensor that was there before, which autograd would track from "
    "then on; a run only repeats operators. Write it under torch.no_grad(), or write x.detach()."
)


class Watch(private.TorchDispatchMode):
    """Sees each operator first: refuses some, and shows tensors without memory for all others."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.tracer: Any = None  # what notes operators, once it has begun
        self.found: dict[torch.fx.Node, torch.Tensor] = {}  # by the code, as a module's parameters
        self.refused: Exception | None = None  # the first reason, which the code may catch
        self.line = ""  # where that was
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._shown: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._known = Known()

    def begin(self, chance: Chance) -> None:
        """Watch what torch's tracer, which has begun, notes from now on."""
        self._chance, self._dtype = chance, torch.get_default_dtype()
        self.tracer = proxy_tensor.get_proxy_mode().tracer  # type: ignore[union-attr]
        self._mode = private.get_dispatch_mode(private.FAKE)
        env = self._mode.shape_env  # of this trace alone; it decides by numbers, or refuses that
        env.evaluate_expr = self.keeping()(env.evaluate_expr)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if private.is_composite(func):  # as in inference mode alone
            with self:
                return _as_called(func).decompose(*args, **kwargs)
        with self.keeping():
            _require_traceable(func, args)
            if torch.get_default_dtype() != self._dtype:
                msg = "it sets torch's default dtype, which no operator shows. Set it before."
                raise Refused(msg)
            if func in self._mode.lift_fns:
                return self._lifted(args[0])
            self._require_untracked(func, args, kwargs)
            args, kwargs = pytree.tree_map_only(torch.Tensor, self.shown, (args, kwargs))
        result = self._noted(func, args, kwargs)
        strides = _strides_of_view(args[0], result) if func in private.VIEWS else None
        if strides is None or strides == result.stride():
            return result
        return self._noted(torch.ops.aten.as_strided.default, (result, result.shape, strides), {})

    def _noted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator with tensors without memory, and note it."""
        decides = not _BY_DATA.isdisjoint(func.tags)
        if decides and self._known.has((args, kwargs)):
            value = self._known.call(func, args, kwargs)
            return pytree.tree_map_only(torch.Tensor, self._lifted, value)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        last = next(iter(reversed(self.tracer.graph.nodes)), None)
        try:
            with self.keeping(decides or draws):
                generators = self._chance.given((args, kwargs)) if draws else []
                result = func(*args, **kwargs)
                if draws:
                    self._chance.drawn(generators, result)
            self._known.note(func, args, kwargs, result)
            return result
        except Exception:  # which the code may catch: a run must not repeat it
            back = [*reversed(self.tracer.graph.nodes)]
            for node in itertools.takewhile(lambda node: node is not last, back):
                self.tracer.graph.erase_node(node)
            raise

    def _lifted(self, numbers: torch.Tensor) -> Any:
        """A tensor without memory for numbers in the code."""
        result = torch.ops.aten.lift_fresh.default(numbers)
        if not isinstance(numbers, FakeTensor):
            self._known.note_literal(result, numbers)
        return result

    def _require_untracked(self, func: Any, args: Any, kwargs: Any) -> None:
        """Refuse to write by autograd what was there before: a call would have it tracked after."""
        writes = any(one.alias_info and one.alias_info.is_write for one in func._schema.returns)
        given = tensors_of((args, kwargs)) if writes and torch.is_grad_enabled() else []
        if not any(tensor.requires_grad for tensor in given):
            return
        for tensor in tensors_of(written_arguments(func._schema, args, kwargs)):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue  # which autograd does not track
            slot = proxy_tensor.get_proxy_slot(tensor, self.tracer, None)
            origin = "get_attr" if slot is None else origin_of(slot.proxy.node, _DETACH).op
            if origin == "get_attr" or (origin == "placeholder" and not tensor.requires_grad):
                raise Refused(_TRACKED)

    @contextlib.contextmanager
    def keeping(self, keeps: object = True) -> Iterator[None]:
        """Keep the first error that is raised here."""
        try:
            yield
        except Exception as error:
            if keeps and self.refused is None:
                self.refused, self.line = error, line_of(traceback.walk_stack(None))
            raise

    def insist(self, call: Callable[[], Any]) -> Any:
        """What a function returns, unless it was refused, whatever came of that."""
        value = None
        try:
            value = call()
        except Exception:
            if self.refused is None:
                raise
        if self.refused is not None:
            raise self.refused
        return value

    def refuse(self, msg: str, *_: Any, **__: Any) -> NoReturn:
        """Refuse the code, with a message, where it would call something else."""
        with self.keeping():
            raise Refused(msg)

    def shown(self, tensor: torch.Tensor) -> torch.Tensor:
        """One without memory in a tensor's place: torch computes at once with others alone."""
        if isinstance(tensor, FakeTensor):
            return tensor
        require_memory(tensor)
        if id(tensor) not in self._shown:
            with private.disable_current_modes():
                alike = self._mode.from_tensor(tensor.detach())
                node = self.tracer.create_arg(tensor)
                proxy = torch.fx.Proxy(node, self.tracer)
                proxy_tensor.track_tensor_tree(alike, proxy, constant=None, tracer=self.tracer)
            self.found[node] = tensor
            if not tensor.is_inference():
                self._versions.append((tensor, tensor._version))
            self._shown[id(tensor)] = tensor, alike
        return self._shown[id(tensor)][1]

    def fold(self, results: Any) -> None:
        """Note what each run can use as it is here, as if the code had found it."""
        for tensor, value in self._known.constants(results):
            slot = proxy_tensor.get_proxy_slot(tensor, self.tracer)
            self.found[slot.proxy.node] = value
            if value.is_cuda:  # it is there before any stream of a run reads it
                synchronize(value.device)

    def end(self) -> None:
        """Take back that torch has counted changes of tensors, which there were none of."""
        del self._mode.shape_env.evaluate_expr
        changed = [both for both in self._versions if both[0]._version != both[1]]
        if changed:
            private.set_versions(*map(tuple, zip(*changed, strict=True)))


def _strides_of_view(tensor: torch.Tensor, view: torch.Tensor) -> tuple[int, ...]:
    """The strides of a view of memory: those of size 1 tell nothing, but matmul looks at them."""
    if 1 not in view.shape or not all(type(size) is int for size in (*tensor.shape, *view.shape)):
        return view.stride()
    with private.disable_current_modes():
        there = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        return there.view(view.shape).stride()


@functools.cache
def _as_called(func: Any) -> Any:
    """An operator without what torch makes it of in Python, which rounds and draws otherwise."""
    operator = copy.copy(func)
    operator.py_kernels = {}
    return operator


def _require_traceable(func: Any, args: tuple[Any, ...]) -> None:
    if isinstance(func, private.HigherOrderOperator):
        msg = f"it calls {func}, which holds code of its own. Call that code directly."
        raise Refused(msg)
    name = func._schema.name
    if "_nested_" in name:
        raise Refused(_NESTED)
    moves = torch.Tag.inplace_view in func.tags and not isinstance(args[0], FakeTensor)
    if name in _MOVE_MEMORY or (moves and name != "aten::detach_"):
        name = name.partition("::")[2]
        msg = f"it calls {name}, which gives a tensor other memory or shape. Make a new one."
        raise Refused(msg)


def require_memory(tensor: torch.Tensor) -> None:
    """Refuse tensors that stand for others, or have functions of their own."""
    kind = type(tensor)
    if tensor.is_nested:
        raise Refused(_NESTED)
    if isinstance(tensor, FakeTensor) or private.is_traceable_wrapper_subclass(tensor):
        msg = f"it is given one {kind.__name__}, which has no memory of its own. Give it another."
        raise Refused(msg)
    if kind is not torch.Tensor and kind.__torch_function__ is not private.plain_functions:
        msg = (
            f"it uses one {kind.__name__}, whose own functions the operators don't show. Use "
            f"x.as_subclass(torch.Tensor)."
        )
        raise Refused(msg)
