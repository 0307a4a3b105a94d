"""Every form of tensors, batches and modes: right, or refused by name; never silent."""

import dataclasses
from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pipeline_ways import on_devices
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

from autopar import CopyPipeline

_WAIT_S = 20
_IGNORED = "ignore:.*(prototype|CSR|quantize|torch.ao|deprecated|sparse)"
# -- tensors without memory of their own ----------------------------------------------------------


class Plain(torch.Tensor):
    """A subclass that has memory of its own, and more than that."""


def without_its_memory(x, left=0):
    x = x.clone()
    x.untyped_storage().resize_(left)
    return x


def view_of_memory_that_is_gone(x):
    base = torch.cat([x, x])
    view = base[len(x) :]
    base.untyped_storage().resize_(0)
    return view


def _nested(x, **options):
    return torch.nested.nested_tensor([x, x], **options)


def _quantized(x):
    return torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8)


_GONE = (TypeError, "a tensor without memory of its own; expected a dense one")
_QUANTIZED = (TypeError, "a quantized tensor")
STRANGE = {  # how to make it, and the error
    "two tensors": (lambda x: TwoTensor(x, x), TypeError, "a TwoTensor, a subclass"),
    "fake": (lambda x: FakeTensorMode().from_tensor(x), TypeError, "a FakeTensor, a subclass"),
    "subclass": (lambda x: x.as_subclass(Plain), TypeError, "a Plain, a subclass of torch.Tensor"),
    "functional": (torch._to_functional_tensor, *_GONE),
    "freed": (without_its_memory, *_GONE),
    "freed, a view": (view_of_memory_that_is_gone, *_GONE),
    "freed in part": (lambda x: without_its_memory(x, 8), *_GONE),
    "zeros of autograd": (lambda x: torch._efficientzerotensor(x.shape, device=x.device), *_GONE),
    "meta": (lambda x: x.to("meta"), ValueError, "is on meta; expected it on .*Move it there"),
    "sparse": (torch.Tensor.to_sparse, TypeError, r"a torch.sparse_coo tensor.*to_dense\(\)"),
    "csr": (lambda x: x.view(2, 2).to_sparse_csr(), TypeError, "a torch.sparse_csr tensor"),
    "nested": (_nested, TypeError, "a nested tensor"),
    "jagged": (lambda x: _nested(x, layout=torch.jagged), TypeError, "a nested tensor"),
    "quantized": (_quantized, *_QUANTIZED),
    "quantized, a view": (lambda x: torch._neg_view(_quantized(x)), *_QUANTIZED),
    "mkldnn": (lambda x: x.cpu().to_mkldnn(), TypeError, "a torch._mkldnn tensor"),
    "with grad": (lambda x: x.clone().requires_grad_(), ValueError, r"requires grad.*x.detach\(\)"),
    "an array": (lambda x: x.cpu().numpy(), TypeError, "of type ndarray; expected a tensor"),
    "a number": (lambda x: 3, TypeError, "is 3; expected a tensor on "),
}
NO_TENSORS = ("an array", "a number")


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


TRANSFORMS = {
    "vmap": lambda fn: torch.func.vmap(fn)(torch.ones(4, 4)),
    "grad": lambda fn: torch.func.grad(fn)(torch.ones(4)),
    "jvp": lambda fn: torch.func.jvp(fn, (torch.ones(4),), (torch.ones(4),)),
}


@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "to_host_async"])
def test_inside_of_transforms_what_is_wrapped_is_refused(verb, transform):
    def copied(x):
        if verb == "to_host_async":
            return pipeline.to_host_async(x).result().sum()
        return next(getattr(pipeline, verb)([x])).sum()

    with CopyPipeline("cpu", slot_bytes=1 << 20) as pipeline:
        with pytest.raises((RuntimeError, TypeError), match="without memory|doesn't have storage"):
            TRANSFORMS[transform](copied)
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


# -- batches --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Holder:
    held: object


HIDDEN = {
    "set": lambda x: {x},
    "frozenset": lambda x: {"set": frozenset([x])},
    "dict key": lambda x: {x: 1},
    "dict view": lambda x: [{"x": x}.values()],
    "iterator": lambda x: [map(torch.neg, [x])],
    "dataclass": Holder,
    "three deep": lambda x: Holder([Holder(Holder([x]))]),
    "namespace with a list": lambda x: SimpleNamespace(x=[3, [x]]),
    "user dict": lambda x: UserDict(x=x),
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
