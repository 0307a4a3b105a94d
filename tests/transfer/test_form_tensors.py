"""Every form of tensors, batches and modes: right, or refused by name; never silent."""

import dataclasses
import threading
from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pipeline_ways import VERBS, call, on_devices
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

from autopar import CopyPipeline

_WAIT_S = 20
_IGNORED = "ignore:.*(prototype|CSR|quantize|torch.ao|deprecated|sparse)"
# -- tensors without memory of their own ----------------------------------------------------------


class Plain(torch.Tensor):
    """A subclass that has memory of its own, and more than that."""


class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A subclass that has no memory, as DTensor and FakeTensor are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrapped(value):
            return value.inner if isinstance(value, cls) else value

        found = function(*map(unwrapped, args), **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


def without_its_memory(x, left=0):
    x = x.clone()
    x.untyped_storage().resize_(left)
    return x


def view_of_memory_that_is_gone(x):
    base = torch.cat([x, x])
    view = base[len(x) :]
    base.untyped_storage().resize_(0)
    return view


STRANGE = {
    "wrapper subclass": (Wrapped, TypeError, "a Wrapped, a subclass of torch.Tensor"),
    "two tensors": (lambda x: TwoTensor(x, x), TypeError, "a TwoTensor, a subclass"),
    "fake": (
        *(lambda x: FakeTensorMode().from_tensor(x), TypeError),
        "a FakeTensor, a subclass of torch.Tensor",
    ),
    "subclass": (lambda x: x.as_subclass(Plain), TypeError, "a Plain.*as_subclass"),
    "subclass with functions": (lambda x: x.as_subclass(Noted), TypeError, "a Noted, a subclass"),
    "functional": (torch._to_functional_tensor, TypeError, "without memory of its own"),
    "freed": (without_its_memory, TypeError, "without memory of its own"),
    "freed, a view": (view_of_memory_that_is_gone, TypeError, "without memory of its own"),
    "freed in part": (lambda x: without_its_memory(x, 8), TypeError, "without memory"),
    "meta": (lambda x: x.to("meta"), ValueError, "is on meta; expected it on .*Move it there"),
    "sparse": (torch.Tensor.to_sparse, TypeError, r"a sparse tensor.*to_dense\(\)"),
    "csr": (lambda x: x.view(2, 2).to_sparse_csr(), TypeError, "a sparse tensor .*csr"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), TypeError, "a nested tensor"),
    "jagged": (
        *(lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), TypeError),
        "a nested tensor",
    ),
    "quantized": (
        *(lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8), TypeError),
        "a quantized tensor",
    ),
    "mkldnn": (lambda x: x.cpu().to_mkldnn(), TypeError, "an mkldnn tensor"),
    "parameter": (torch.nn.Parameter, ValueError, "requires grad"),
    "uninitialized": (
        *(lambda x: torch.nn.UninitializedParameter(requires_grad=False), TypeError),
        "an? UninitializedParameter, a subclass",
    ),
    "with grad": (lambda x: x.clone().requires_grad_(), ValueError, r"requires grad.*x.detach\(\)"),
    "an array": (lambda x: x.cpu().numpy(), TypeError, "of type ndarray; expected a tensor"),
    "a storage": (torch.Tensor.untyped_storage, TypeError, "expected a tensor"),
    "a number": (lambda x: 3, TypeError, "is 3; expected a tensor on "),
    "nothing": (lambda x: None, TypeError, "is None; expected a tensor"),
    "a list": (lambda x: [x], TypeError, "is of type list; expected a tensor"),
    "a long text": (lambda x: "x" * 99, TypeError, r"is 'x{59}\.\.\.; expected a tensor"),
}
NO_TENSORS = ("an array", "a storage", "a number", "nothing", "a list", "a long text")


@pytest.mark.filterwarnings(_IGNORED)
@on_devices
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("way", ["list", "two of a list", "generator", "async", "result", "batch"])
def test_what_has_no_memory_of_its_own_is_refused_by_name(in_time, way, kind, device):
    make, error, match = STRANGE[kind]
    if way == "batch" and kind in NO_TENSORS:
        return  # as other things in a batch, they are passed on
    on = "cpu" if way == "batch" else device
    strange = make(torch.ones(4, device=on))
    two = [torch.ones(4, device=on), strange] if way != "two of a list" else [strange] * 2

    def run(pipeline):
        if way == "async":
            return pipeline.to_host_async(strange).result()
        if way == "batch":
            return list(pipeline.prefetch([two[:1], two]))
        if way == "result":
            return list(pipeline.map(lambda i: two[i], range(2)))
        return list(pipeline.to_host(two if "list" in way else iter(two)))

    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        with pytest.raises(error, match=match):
            in_time(lambda: run(pipeline), _WAIT_S)
        assert [x[0].item() for x in pipeline.to_host([torch.ones(3, device=device)])] == [1]


@pytest.mark.parametrize("kind", ["wrapper subclass", "freed", "functional"])
def test_memory_to_copy_to_has_to_be_there(kind):
    make, error, match = STRANGE[kind]
    with (
        CopyPipeline("cpu", slot_bytes=1 << 20) as pipeline,
        pytest.raises(error, match=rf"out\[0\] is .*{match}"),
    ):
        list(pipeline.to_host([torch.ones(4)], out=[make(torch.ones(4))]))


@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "to_host_async"])
def test_inside_of_transforms_what_is_wrapped_is_refused(verb, transform):
    def copied(x):
        if verb == "to_host_async":
            return pipeline.to_host_async(x).result().sum()
        return next(getattr(pipeline, verb)([x])).sum()

    with CopyPipeline("cpu", slot_bytes=1 << 20) as pipeline:
        with pytest.raises(RuntimeError, match="inside of a transform of torch.func"):
            if transform == "jvp":
                torch.func.jvp(copied, (torch.ones(4),), (torch.ones(4),))
            else:
                getattr(torch.func, transform)(copied)(
                    torch.ones(4, 4) if transform == "vmap" else torch.ones(4)
                )
        assert next(pipeline.to_host([torch.ones(3)])).tolist() == [1, 1, 1]


@pytest.mark.filterwarnings(_IGNORED)
@on_devices
def test_a_tangent_is_not_lost_in_silence(device):
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline, forward_ad.dual_level():
        x = torch.ones(4, device=device)
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for source in ([dual], iter([dual])):
            with pytest.raises(ValueError, match=r"has a tangent.*detach\(\)"):
                list(pipeline.to_host(source))
        assert next(pipeline.to_host([x])).tolist() == [1] * 4


@on_devices
def test_kinds_of_tensors_that_are_plain_come_out_right(device):
    base = torch.arange(64, dtype=torch.float32, device=device)
    kinds = [
        torch.nn.Parameter(base.clone(), requires_grad=False),
        torch.nn.Buffer(base.clone()),
        base.view(8, 8).t(),
        base[::3],
        base[5:5],
        base[:1].expand(9),
        torch.view_as_complex(base.view(32, 2)).conj(),
        torch._neg_view(base),
        base.to(torch.bfloat16),
        base.to(torch.float8_e4m3fn),
        base > 3,
        torch.tensor(7.0, device=device),
    ]
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        ways = [
            lambda: list(pipeline.to_host(kinds)),
            lambda: list(pipeline.to_host(iter(kinds))),
            lambda: [pipeline.to_host_async(x).result() for x in kinds],
            lambda: [x.cpu() for x in next(pipeline.prefetch([[x.cpu() for x in kinds]]))],
        ]
        for way in ways:
            for result, x in zip(way(), kinds, strict=True):
                expected = x.detach().cpu().resolve_conj().resolve_neg()
                assert (result.dtype, result.shape) == (x.dtype, x.shape)
                assert type(result) in (torch.Tensor, torch.nn.Parameter)
                assert torch.equal(*(each.to(torch.complex64) for each in (result, expected)))


# -- batches --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Sample:
    x: torch.Tensor


class Encoding(UserDict):
    """As tokenizers give it: no dict, but it holds one."""


class Holder:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


HIDDEN = {
    "set": lambda x: {x},
    "frozenset": lambda x: {"set": frozenset([x])},
    "dict key": lambda x: {x: 1},
    "dict view": lambda x: [{"x": x}.values()],
    "generator": lambda x: (each for each in [x]),
    "iterator": lambda x: [map(torch.neg, [x])],
    "dataclass": Sample,
    "object": Holder,
    "object with slots": lambda x: (Slotted(x), 3),
    "namespace": lambda x: SimpleNamespace(x=x),
    "namespace with a list": lambda x: SimpleNamespace(x=[3, [x]]),
    "user dict": lambda x: Encoding(x=x),
    "array of objects": lambda x: np.array([x, None], dtype=object)[:1],
}


@on_devices
@pytest.mark.parametrize("kind", HIDDEN)
def test_tensors_that_a_batch_hides_are_not_passed_on_in_silence(kind, device):
    batch = HIDDEN[kind](torch.ones(3))
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        with pytest.raises(TypeError, match=r"batches\[1\] holds a .*; expected .*Pass "):
            list(pipeline.prefetch([torch.ones(3), batch]))
        assert next(pipeline.prefetch([torch.ones(3)])).device == torch.device(device)


# -- where it is used -----------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("default", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_default_device_changes_nothing(default, device):
    with torch.device(default), CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        hosts = [torch.full((100_000,), float(i), device="cpu") for i in range(4)]
        hosts += [torch.full((3,), float(i), device="cpu") for i in range(4, 8)]
        results = list(pipeline.map(lambda x: x + 1, hosts))
        results += pipeline.to_host(pipeline.prefetch(hosts))
        out = [torch.empty_like(host) for host in hosts]
        results += pipeline.to_host(pipeline.prefetch(iter(hosts)), out=out)
    assert all(result.device.type == "cpu" for result in results)
    assert [result[0].item() for result in results] == [*range(1, 9), *range(8), *range(8)]


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_a_default_dtype_changes_nothing(default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with CopyPipeline("cpu", slot_bytes=1 << 20) as pipeline:
            results = list(pipeline.to_host([torch.ones(3, dtype=torch.float32)] * 3))
    finally:
        torch.set_default_dtype(before)
    assert [result.dtype for result in results] == [torch.float32] * 3


@pytest.mark.parametrize("verb", [*VERBS, "to_host_async"])
def test_under_a_fake_tensor_mode_nothing_is_copied_and_nothing_crashes(in_time, verb):
    def run():
        x = torch.ones(4)
        with CopyPipeline("cpu", slot_bytes=1 << 20) as pipeline, FakeTensorMode():
            if verb == "to_host_async":
                return pipeline.to_host_async(x).result()
            return list(call(pipeline, verb, [x]))

    with pytest.raises(Exception, match="(?i)fake"):
        in_time(run, _WAIT_S)


def test_threads_of_torch_are_as_before():
    before = torch.get_num_threads()
    with CopyPipeline("cpu", threads=4) as pipeline:
        list(pipeline.map(torch.neg, [torch.ones(3)]))
        assert torch.get_num_threads() == before
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [before]
