"""Every form in which people use copy pipelines: right, or refused by name; never silent or stuck.

Nothing here knows how a pipeline works inside. Where a copy has to be late, it is behind a large
one.
"""

import contextlib
import dataclasses
import dis
import gc
import itertools
import json
import sys
import threading
import time
import weakref
from collections import UserDict, deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

import autopar
from autopar import CopyPipeline

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
on_devices = pytest.mark.parametrize("device", DEVICES)
_WAIT_S = 20
_FIRST = 1 << 22  # bytes of an item that what comes behind it has to wait for
_IGNORED = "ignore:.*(prototype|CSR|quantize|torch.ao|deprecated|sparse)"


def values_of(tensor):
    """The least and the greatest, which are one where nothing of it was overwritten."""
    return {tensor.min().item(), tensor.max().item()}


# -- when what was handed over may be overwritten -------------------------------------------------

VERBS = ["to_host", "prefetch", "map"]
SIZES = [8, 100_000]  # small ones travel together
COUNT = 12


class Overwritten:
    """Tensors that are overwritten as soon as the rule allows it, whichever way they are kept."""

    def __init__(self, device, size, pin=False):
        self.made = [torch.zeros(_FIRST // 4, device=device)]
        self.made += [torch.full((size,), float(i), device=device) for i in range(1, COUNT)]
        if pin:
            self.made = [tensor.pin_memory() for tensor in self.made]

    def named(self):
        for tensor in self.made:
            yield tensor
            tensor.fill_(-1)

    def popped_with_weak_reference(self):
        while self.made:
            seen = weakref.ref(self.made[0])
            yield self.made.pop(0)
            if (tensor := seen()) is not None:
                tensor.fill_(-1)

    def popped_with_weak_reference_to_its_memory(self):
        while self.made:
            seen, like = weakref.ref(self.made[0].untyped_storage()), self.made[0][:0]
            like = torch.empty_like(like)
            yield self.made.pop(0)
            if (memory := seen()) is not None:
                like.set_(memory).fill_(-1)

    def views(self):
        for tensor in self.made:
            yield tensor[:]
            tensor.fill_(-1)

    def detached(self):
        for tensor in self.made:
            yield tensor.detach()
            tensor.fill_(-1)

    def batches(self):
        for tensor in self.made:
            yield {"x": tensor}["x"]
            tensor.fill_(-1)

    def freed(self):
        size = len(self.made[1])
        while self.made:
            yield self.made.pop(0)
            torch.full((size,), -1.0)

    def in_place(self):
        one = self.made[0].clone()
        yield one
        for i in range(1, COUNT):
            yield one.fill_(i)

    def list_that_makes_its_items(self):
        class Frames(list):
            def __iter__(own):
                return self.in_place()

        return Frames([torch.zeros(3)] * COUNT)

    def tuple_that_makes_its_items(self):
        class Frames(tuple):
            __slots__ = ()

            def __iter__(own):
                return self.in_place()

        return Frames([torch.zeros(3)] * COUNT)

    def array(self):
        values = np.zeros(len(self.made[1]))
        yield self.made[0]
        for i in range(1, COUNT):
            values[:] = i
            yield torch.from_numpy(values)

    def deque(self):
        return deque(self.made)

    def iterator_of_a_list(self):
        return iter(self.made)


SOURCES = [name for name in vars(Overwritten) if not name.startswith("_")]


def call(pipeline, verb, source, **options):
    """The results of a verb for a source that is on the side that the verb copies from."""
    if verb == "map":
        return pipeline.map(torch.clone, source, **options)
    return getattr(pipeline, verb)(source, **options)


def side(verb, device):
    """The device that a verb's items have to be on."""
    return device if verb.startswith("to_host") else "cpu"


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_source_may_overwrite_an_item_when_it_is_asked_for_the_next_one(
    in_time, verb, source, size, device
):
    if source == "array" and side(verb, device) != "cpu":
        return
    items = getattr(Overwritten(side(verb, device), size), source)()

    def run():
        with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
            return [values_of(result) for result in call(pipeline, verb, items)]

    assert in_time(run, _WAIT_S) == [{i} for i in range(COUNT)]


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("pin", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("end", ["next", "end", "close", "break"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_lists_element_may_be_overwritten_once_the_next_one_is_there_or_it_ends(
    verb, end, pin, kind, size, device
):
    if pin and (side(verb, device) != "cpu" or device == "cpu"):
        return
    items = kind(Overwritten(side(verb, device), size, pin).made)
    taken = []
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        results = call(pipeline, verb, items)
        if end in ("close", "break"):
            taken += itertools.islice(results, 1 if end == "close" else 3)
            results.close()
            for item in items:
                item.fill_(-1)
        for i, result in enumerate(results):
            taken.append(result)
            if i and end == "next":
                items[i - 1].fill_(-1)
        for item in items:
            item.fill_(-1)
        if device != "cpu":
            torch.cuda.synchronize(device)
    assert [values_of(result) for result in taken] == [{i} for i in range(len(taken))]


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["overwritten", "freed", "view", "weak"])
def test_what_was_given_to_to_host_async_may_be_overwritten_at_once(how, size, device):
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        handles = [pipeline.to_host_async(torch.zeros(_FIRST // 4, device=device))]
        for i in range(1, 6):
            tensor = torch.full((size,), float(i), device=device)
            handles.append(pipeline.to_host_async(tensor[:] if how == "view" else tensor))
            if how != "freed":
                tensor.fill_(-1)
            del tensor
            torch.full((size,), -1.0, device=device)
        results = [values_of(handle.result()) for handle in handles]
    assert results == [{i} for i in range(6)]


@on_devices
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("size", SIZES)
def test_memory_of_out_may_be_used_once_its_item_was_yielded(kind, size, device):
    tensors = Overwritten(device, size).made
    out = [torch.zeros(len(tensor)) for tensor in tensors]
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        for i, result in enumerate(pipeline.to_host(kind(tensors), out=kind(out))):
            assert values_of(result) == {i}
            result.fill_(-1)
    assert all(values_of(each) == {-1} for each in out)


# -- results are the caller's ---------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
def test_small_results_may_share_a_block_and_a_clone_does_not(verb, device):
    """As both verbs say: whoever keeps one of them keeps the block, unless it clones it."""
    items = [torch.full((4,), float(i), device=side(verb, device)) for i in range(8)]
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        found = pipeline.prefetch([items]) if verb == "prefetch" else [pipeline.to_host(items)]
        results = list(next(iter(found)))
    assert "share" in getattr(CopyPipeline, verb).__doc__
    assert results[0].untyped_storage().nbytes() > results[0].nbytes
    assert results[0].clone().untyped_storage().nbytes() == results[0].nbytes
    results[0].fill_(-1)
    assert [result[0].item() for result in results] == [-1, *range(1, 8)]
    assert all(result.is_leaf and result._version == (i == 0) for i, result in enumerate(results))


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
    "meta": (lambda x: x.to("meta"), ValueError, "is on meta"),
    "sparse": (torch.Tensor.to_sparse, TypeError, "a sparse tensor"),
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
    "with grad": (lambda x: x.clone().requires_grad_(), ValueError, "requires grad"),
    "an array": (lambda x: x.cpu().numpy(), TypeError, "of type ndarray; expected a tensor"),
    "a storage": (torch.Tensor.untyped_storage, TypeError, "expected a tensor"),
}


@pytest.mark.filterwarnings(_IGNORED)
@on_devices
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("way", ["list", "two of a list", "generator", "async", "result", "batch"])
def test_what_has_no_memory_of_its_own_is_refused_by_name(in_time, way, kind, device):
    make, error, match = STRANGE[kind]
    if way == "batch" and kind in ("an array", "a storage"):
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
SEEN = {
    "deque": lambda x: deque([x]),
    "named tuple": lambda x: torch.return_types.max((x, x)),
    "words": lambda x: [x, "word", 3, None, 2.5, b"bytes", True, {1, 2}, {"a": {"b"}}, range(3)],
    "array": lambda x: [x, np.ones(3), torch.float32, torch.Size([3]), len, Holder(3)],
    "module": lambda x: [
        x,
        SimpleNamespace(y=3),
        Holder("word"),
        dataclasses.make_dataclass("D", [])(),
    ],
}


@on_devices
@pytest.mark.parametrize("kind", HIDDEN)
def test_tensors_that_a_batch_hides_are_not_passed_on_in_silence(kind, device):
    batch = HIDDEN[kind](torch.ones(3))
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        with pytest.raises(TypeError, match=r"batches\[1\] holds a .*; expected .*Pass "):
            list(pipeline.prefetch([torch.ones(3), batch]))
        assert next(pipeline.prefetch([torch.ones(3)])).device == torch.device(device)


@on_devices
@pytest.mark.parametrize("kind", SEEN)
def test_what_hides_no_tensors_is_passed_on_as_it_is(kind, device):
    batch = SEEN[kind](torch.ones(3))
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        (result,) = pipeline.prefetch([batch])
    assert type(result) is type(batch)
    for one, other in zip(result, batch, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.device == torch.device(device)
            assert torch.equal(one.cpu(), other)
        else:
            assert one is other or one == other


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


# -- how much is under way ------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("slots", [1, 3])
def test_to_host_async_has_a_bound_and_needs_nobody_to_read(in_time, slots, pin, device):
    """Nobody reads a result before the end, and all calls come back."""
    count, size = 60, 1 << 16

    def run():
        with CopyPipeline(device, slots=slots, slot_bytes=size) as pipeline:
            handles = []
            for i in range(count):
                x = torch.full((size,), i, dtype=torch.uint8, device=device)
                handles.append(pipeline.to_host_async(x, pin=pin))
                waiting = sum(not handle.done() for handle in handles)
                assert waiting <= slots + max(slots, 2)
            return [handle.result() for handle in handles]

    assert [values_of(result) for result in in_time(run, _WAIT_S)] == [{i} for i in range(count)]


@pytest.mark.gpu
def test_what_to_host_async_clones_is_bounded(spin):
    """The GPU is busy while far more is handed over than fits under the bound."""
    size = 1 << 22
    x = torch.ones(size, dtype=torch.uint8, device="cuda:0")
    with CopyPipeline("cuda:0", slots=2, slot_bytes=size) as pipeline:
        pipeline.to_host_async(x).result()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            spin(2)
            pipeline.to_host_async(x)
        torch.cuda.synchronize()
    assert (
        torch.cuda.max_memory_allocated() - before <= 6 * size
    )  # one is being made, and one let go
    assert "2 x `slots`" in CopyPipeline.to_host_async.__doc__


def test_many_small_ones_need_not_wait_for_each_other():
    """While nothing can be copied, thousands are taken all the same."""
    held, stream = threading.Event(), autopar.transfer.copy_stream.CopyStream
    copy = stream.copy

    def late(self, to, source):
        assert held.wait(_WAIT_S)
        copy(self, to, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "copy", late)
        with CopyPipeline("cpu", slot_bytes=1 << 25) as pipeline:
            handles = [pipeline.to_host_async(torch.tensor(float(i))) for i in range(3000)]
            assert not handles[0].done()
            held.set()
            assert [handle.result().item() for handle in handles] == list(range(3000))


# -- errors, Ctrl-C and ends ----------------------------------------------------------------------

_OWN = ("cpu to host", "cpu from host", "cuda:0 to host", "cuda:0 from host")
_PARTS = 12
PARTS = [0, *(pytest.param(i, marks=pytest.mark.stress) for i in range(1, _PARTS))]
_HOME = str(Path(autopar.__file__).parent)


class Broken(Exception):
    pass


def whole(device="cpu"):
    """A short pipeline that does everything once."""
    with CopyPipeline(device, slots=2, slot_bytes=1 << 12, threads=2) as pipeline:
        items = [torch.full((3000,), float(i)) for i in range(3)]
        assert [x[0].item() for x in pipeline.map(torch.neg, items)] == [0, -1, -2]
        small = [torch.full((3,), float(i)) for i in range(3)]
        out = [torch.zeros(3) for _ in small]
        there = [x.to(device) for x in small]
        assert [x[0].item() for x in pipeline.to_host(iter(there), out)] == [0, 1, 2]
        handle = pipeline.to_host_async(torch.ones(3000, device=device))
        assert handle.result()[0] == 1


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(_OWN)]


def no_threads_are_left():
    give_up_s = time.monotonic() + _WAIT_S
    while own_threads() and time.monotonic() < give_up_s:
        gc.collect()
        time.sleep(1e-3)
    return not own_threads()


def hearing(code, known={}):  # noqa: B006
    """Where in some code Python hears a signal: as it begins, goes back, or returns from a call."""
    if code not in known:
        before, known[code] = "", set()
        for each in dis.get_instructions(code):
            if each.opname in ("RESUME", "JUMP_BACKWARD") or before in ("CALL", "CALL_FUNCTION_EX"):
                known[code].add(each.offset)
            before = each.opname
    return known[code]


def interrupted_at(number, run):
    """Run something but for a Ctrl-C at one of the places where it can come; how many there are."""
    places = itertools.count()
    heard_in = (_HOME, contextlib.__file__, threading.__file__)

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(heard_in):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in hearing(frame.f_code) and next(places) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this when tracing begins
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return next(places)


@on_devices
@pytest.mark.parametrize("part", PARTS)
def test_ctrl_c_anywhere_from_the_opening_to_the_end_leaves_nothing_that_waits(
    in_time, part, device
):
    """At every place where Python hears a signal, a share of them in each part."""
    threads = torch.get_num_threads()
    whole(device)
    count = interrupted_at(-1, lambda: whole(device))
    assert count > 500
    for number in range(part, count, _PARTS):
        in_time(lambda number=number: interrupted_at(number, lambda: whole(device)), _WAIT_S)
        assert no_threads_are_left(), f"place {number}"
        assert torch.get_num_threads() == threads, f"place {number}"
    in_time(lambda: whole(device), _WAIT_S)
    gc.collect()  # what an interrupted one has left, with its slots


_NEVER_FAIL = {"SimpleQueue", "deque", "lock", "RLock", "dict", "list", "set", "type"}
# Nor can these with numbers that torch gave. In `_thread`, to start a thread can: where a process
# can have no more, nobody puts the default number of torch's threads back. That is not mended yet.
_LEFT_OUT = {torch.get_num_threads, torch.set_num_threads}


def fails_at(number, run):
    """Run something but for an error in a call of its own threads to C code; how many there are."""
    calls = itertools.count()

    def profile(frame, event, function):
        of_python = frame.f_code.co_filename == threading.__file__
        if event != "c_call" or of_python or not threading.current_thread().name.startswith(_OWN):
            return
        of = type(getattr(function, "__self__", None)).__name__
        never = of in _NEVER_FAIL or function.__module__ in ("builtins", "_thread")
        if not (never or function in _LEFT_OUT) and next(calls) == number:
            raise Broken

    threading.setprofile(profile)
    try:
        run()
    except (Broken, RuntimeError):
        pass
    finally:
        threading.setprofile(None)
    return next(calls)


@on_devices
@pytest.mark.parametrize("part", PARTS)
def test_whatever_fails_in_its_threads_nobody_waits_for_ever(in_time, part, device):
    """Each call of theirs to torch or ctypes fails in turn, as while a load is cut into chunks."""
    count = fails_at(-1, lambda: whole(device))
    assert count > 50
    for number in range(part, count, _PARTS):
        in_time(lambda number=number: fails_at(number, lambda: whole(device)), _WAIT_S)
        assert no_threads_are_left(), f"call {number}"
    in_time(lambda: whole(device), _WAIT_S)
    gc.collect()  # what an interrupted one has left, with its slots


_MOST_USUAL = (  # each process takes a second to begin, on a GPU several
    "held_by_a_generator",
    "failed",
    "in_a_thread_that_goes_on",
    "never_left",
    "interrupted",
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("ways", [_MOST_USUAL, pytest.param((), marks=pytest.mark.stress)])
def test_a_process_that_holds_a_pipeline_ends(run_program, device, ways):
    done = run_program("pipeline_ends.py", device, *ways)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == (len(ways) or 14)
    statuses = {name: status for name, (status, _) in found.items()}
    failed = {"failed": 1, "in_a_frame_that_failed": 1, "exited": 7}
    wanted = {name: failed.get(name, 0) for name in found}
    assert statuses == wanted, json.dumps(found, indent=1)
    for name, (_, said) in found.items():
        assert "Fatal" not in said, said
        # A signal may come in any callback of Python's own, which can't pass it on.
        assert "Exception ignored" not in said or name == "interrupted", said
        assert ("ValueError: on purpose" in said) == ("failed" in name), said
