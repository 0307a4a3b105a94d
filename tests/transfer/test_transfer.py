"""Copy pipelines on the CPU: what comes out, whose it is, when it comes, and what is refused."""

import gc
import queue
import random
import threading
import time
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, TensorDataset

from autopar.timeline.span import Span
from autopar.transfer import ring
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.pipeline import CopyPipeline

pytestmark = pytest.mark.usefixtures("threads_gone")
_WAIT_S = 10  # for what should come at once

_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.float8_e5m2),
    *(torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
    *(torch.float4_e2m1fn_x2, torch.bits8, torch.bits16),
)

Pair = namedtuple("Pair", "first second")


@pytest.fixture
def pipeline():
    with CopyPipeline("cpu", slots=3, slot_bytes=1024, threads=2) as pipeline:
        yield pipeline


@pytest.fixture
def together(monkeypatch):
    """Let small items travel together, which otherwise depends on how soon they come."""
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)


@pytest.fixture(params=["alone", "together"])
def company(request, monkeypatch):
    """How small items travel."""
    monkeypatch.setattr(
        "autopar.transfer.parcel._SOON_S", {"alone": 0, "together": 1e9}[request.param]
    )


class Noting(CopyStream):
    """A stream that counts its copies, and can be waited for."""

    def __init__(self, device):
        super().__init__(device)
        self.copies = 0
        self._copied = threading.Condition()

    def copy(self, to, source):
        super().copy(to, source)
        with self._copied:
            self.copies += 1
            self._copied.notify_all()

    def wait_for_copies(self, count):
        with self._copied:
            assert self._copied.wait_for(lambda: self.copies >= count, _WAIT_S)


@pytest.fixture
def streams(monkeypatch):
    """The streams of pipelines, as they come to use them."""
    made = []

    def stream(device):
        made.append(Noting(device))
        return made[-1]

    monkeypatch.setattr("autopar.transfer.pipeline.copy_stream", stream)
    return made


def bits_of(tensor):
    """All the bits of a dense tensor, as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).tolist()


def filled(shape, dtype, seed=0):
    """Any bits; of bools, those that there are."""
    dice = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.randint(256, (count,), dtype=torch.uint8, generator=dice)
    return (bits > 100 if dtype == torch.bool else bits.view(dtype)).view(shape)


def ahead(slots):
    """How many large items may be asked for ahead: one for each slot, and as many that wait."""
    return slots + max(slots, 2)


def numbers(count, size=4):
    """Small tensors, each full of its own number."""
    return [torch.full((size,), i) for i in range(count)]


def first_elements(tensors):
    return [tensor.flatten()[0].item() for tensor in tensors]


WAYS = {
    "to_host, a list": lambda pipeline, xs: pipeline.to_host(list(xs)),
    "to_host, a tuple": lambda pipeline, xs: pipeline.to_host(tuple(xs)),
    "to_host, a generator": lambda pipeline, xs: pipeline.to_host(x for x in xs),
    "to_host, an iterator": lambda pipeline, xs: pipeline.to_host(iter(xs)),
    "prefetch, a list": lambda pipeline, xs: pipeline.prefetch(list(xs)),
    "prefetch, a generator": lambda pipeline, xs: pipeline.prefetch(x for x in xs),
    "map": lambda pipeline, xs: pipeline.map(lambda x: x, xs),
    "to_host_async": lambda pipeline, xs: [
        handle.result() for handle in [pipeline.to_host_async(x) for x in xs]
    ],
}


def all_ways(pipeline, items):
    """The items once through each way."""
    for way in WAYS.values():
        yield from way(pipeline, items)


every_way = pytest.mark.parametrize("way", WAYS)


# -- bit for bit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.usefixtures("company")
def test_any_dtype_and_shape(pipeline, dtype):
    shapes = [(), (5,), (5,), (0,), (3, 8), (2, 0, 3), (40, 56), (1,), (1,), (1,)]
    items = [filled(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    for item, result in zip(items * len(WAYS), all_ways(pipeline, items), strict=True):
        assert (result.dtype, result.shape) == (item.dtype, item.shape)
        assert result.stride() == item.stride()
        assert bits_of(result) == bits_of(item)


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "with gaps": lambda x: x[:, ::2, :, 1::3],
    "with an offset": lambda x: x[1:],
    "a column": lambda x: x[0, 0, :, 1],
    "expanded": lambda x: x[:1].expand(9, -1, -1, -1),
    "overlapping": lambda x: x.flatten().unfold(0, 4, 1),
    "flipped": lambda x: x.flip(0, 3),
    "conjugate": lambda x: x.conj(),
    "conjugate, transposed": lambda x: x.conj().transpose(1, 3),
    "conjugate, with gaps": lambda x: x[:, ::2].conj(),
    "negative": lambda x: x.conj().imag,
    "negative, dense": torch._neg_view,
    "real": lambda x: x.real,
    "an element": lambda x: x[1, 1, 1, 1],
    "none of them": lambda x: x[:, :0],
    "as bytes": lambda x: x.view(torch.uint8),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("slot_bytes", "sizes"), [(512, (2, 9, 9)), (8192, (2, 2, 2, 2, 2)), (8192, (2, 9, 2))]
)
@pytest.mark.usefixtures("together")
def test_any_layout(layout, slot_bytes, sizes):
    views = [
        LAYOUTS[layout](filled((2, 4, size, 5), torch.complex64, seed))
        for seed, size in enumerate(sizes)
    ]
    with CopyPipeline("cpu", slot_bytes=slot_bytes) as pipeline:
        results = list(all_ways(pipeline, views))
    for view, result in zip(views * len(WAYS), results, strict=True):
        expected = torch.empty_like(view).copy_(view)  # as .to() does it from device to device
        assert bits_of(result) == bits_of(expected)
        assert result.stride() == expected.stride()
        assert not result.is_conj()
        assert not result.is_neg()


@every_way
@pytest.mark.usefixtures("company")
def test_random_mixtures(way):
    chance = random.Random(way)
    for _ in range(10):
        items = [
            filled((chance.choice((0, 1, 3, 17, 200, 3000)),), chance.choice(_DTYPES[4:11]), seed)
            for seed in range(chance.randrange(20))
        ]
        slots, slot_bytes = chance.randint(1, 4), chance.choice((64, 300, 4096))
        threads = chance.randint(1, 3)
        with CopyPipeline("cpu", slots=slots, slot_bytes=slot_bytes, threads=threads) as pipeline:
            results = list(WAYS[way](pipeline, items))
        assert [(x.dtype, bits_of(x)) for x in results] == [(x.dtype, bits_of(x)) for x in items]


@pytest.mark.parametrize("alike", [True, False])
def test_small_ones_travel_together(streams, together, alike):
    items = [torch.full((3 if alike else i % 5,), i) for i in range(100)]
    with CopyPipeline("cpu", slots=2, slot_bytes=512) as pipeline:
        results = list(pipeline.to_host(items))
        assert streams[0].copies < 50
    assert all(map(torch.equal, results, items))


@pytest.mark.usefixtures("together")
def test_a_batchs_small_ones_travel_together(streams):
    batch = {i: filled((i,), _DTYPES[i % 5]) for i in range(20)}
    with CopyPipeline("cpu", slots=2, slot_bytes=4096) as pipeline:
        (result,) = pipeline.prefetch([batch])
        assert streams[0].copies == 1
    assert list(result) == list(batch)
    assert all(torch.equal(result[i], batch[i]) for i in batch)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_ones_travel_in_chunks(streams, slots, threads):
    large = filled((3, 1 << 20), torch.uint8)
    with CopyPipeline("cpu", slots=slots, slot_bytes=1 << 19, threads=threads) as pipeline:
        (result,) = pipeline.to_host([large])
        assert streams[0].copies == 6
        (back,) = pipeline.prefetch([result.mT])
        assert streams[1].copies == 6
    assert torch.equal(result, large)
    assert torch.equal(back, large.mT)


def test_a_slot_is_no_larger_than_asked():
    assert CopyPipeline("cpu", slot_bytes=1000).slot_bytes == 512
    assert CopyPipeline("cpu", slot_bytes=1).slot_bytes == 1
    assert CopyPipeline("cpu", slot_bytes=1024).slot_bytes == 1024


@every_way
@pytest.mark.parametrize("slot_bytes", [1, 4, 32])
def test_tiny_slots(way, slot_bytes):
    items = [torch.arange(20) + i for i in range(4)]
    with CopyPipeline("cpu", slots=2, slot_bytes=slot_bytes) as pipeline:
        assert all(map(torch.equal, WAYS[way](pipeline, items), items))


@pytest.mark.parametrize("threads", [1, 2])
def test_slots_smaller_than_the_gaps_in_a_block(in_time, threads):
    """Some chunks of it hold nothing at all."""
    batch = [torch.full((n,), n, dtype=torch.uint8) for n in (1, 70, 0, 3)]

    def run():
        with CopyPipeline("cpu", slots=2, slot_bytes=16, threads=threads) as pipeline:
            return list(pipeline.prefetch([batch] * 3))

    for result in in_time(run, 5):
        assert all(map(torch.equal, result, batch))


@every_way
def test_nothing_to_copy(pipeline, way):
    assert list(WAYS[way](pipeline, [])) == []


@every_way
@pytest.mark.usefixtures("company")
def test_tensors_of_inference_mode(pipeline, way):
    with torch.inference_mode():
        items = numbers(10)
        inside = list(WAYS[way](pipeline, items))
    outside = list(WAYS[way](pipeline, items))
    assert first_elements(inside) == first_elements(outside) == list(range(10))
    assert not any(result.is_inference() for result in outside)


# -- sources that change or end -------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.usefixtures("company")
class TestASourceMayOverwrite:
    """What it has handed over."""

    def hold(self, pipeline, verb, source):
        args = (torch.clone, source) if verb == "map" else (source,)
        results = list(getattr(pipeline, verb)(*args))
        assert [x.unique().tolist() for x in results] == [[i] for i in range(20)]

    def test_its_only_tensor(self, pipeline, verb, size):
        def source():
            kept = torch.zeros(size)
            for i in range(20):
                yield kept.fill_(i)
            kept.fill_(-1)

        self.hold(pipeline, verb, source())

    def test_what_a_view_shares(self, pipeline, verb, size):
        def source():
            kept = torch.zeros(2, size)
            for i in range(20):
                yield kept.fill_(i)[1]

        self.hold(pipeline, verb, source())

    def test_a_local_of_its_own(self, pipeline, verb, size):
        def source():
            for i in range(20):
                fresh = torch.full((size,), i)
                yield fresh
                fresh.fill_(-1)

        self.hold(pipeline, verb, source())

    def test_what_an_array_shares(self, pipeline, verb, size):
        def source():
            kept = np.zeros(size)
            for i in range(20):
                kept[:] = i
                yield torch.from_numpy(kept)

        self.hold(pipeline, verb, source())

    def test_what_a_buffer_shares(self, pipeline, verb, size):
        def source():
            kept = bytearray(size)
            for i in range(20):
                kept[:] = bytes([i] * size)
                yield torch.frombuffer(kept, dtype=torch.uint8)

        self.hold(pipeline, verb, source())

    def test_the_elements_of_a_sequence_that_makes_them(self, pipeline, verb, size):
        class Frames(Sequence):
            def __init__(self):
                self._kept = torch.zeros(size)

            def __len__(self):
                return 20

            def __getitem__(self, i):
                if i >= 20:
                    raise IndexError
                return self._kept.fill_(i)

        self.hold(pipeline, verb, Frames())

    def test_what_is_freed(self, pipeline, verb, size):
        self.hold(pipeline, verb, (torch.full((size,), i) for i in range(20)))


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize("gaps", [1, 2])
@pytest.mark.usefixtures("company")
def test_elements_of_a_list_are_taken_whole_and_as_they_are_when_they_are_asked_for(
    pipeline, size, gaps
):
    """The consumer overwrites all of them all the time."""
    items = [torch.zeros(size * gaps)[::gaps] for _ in range(30)]
    last = 0
    for step, result in enumerate(pipeline.to_host(items)):
        values = result.unique().tolist()
        assert len(values) == 1
        assert last <= values[0] <= step
        last = values[0]
        for item in items:
            item.fill_(step + 1)
    assert last > 0 or size == 4  # small ones may all be asked for at once


# -- results are the caller's ---------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("sizes", [(4,), (0, 2, 4), (1000,)])
@pytest.mark.usefixtures("together")
def test_writing_to_a_result_leaves_the_others_as_they_were(pipeline, way, sizes):
    items = [torch.full((sizes[i % len(sizes)],), float(i)) for i in range(12)]
    taken = []
    for i, result in enumerate(WAYS[way](pipeline, items)):
        taken.append(result)
        if i % 2:
            result.fill_(-1)
    for i, result in enumerate(taken):
        assert torch.equal(result, torch.full_like(items[i], -1 if i % 2 else i))


@every_way
@pytest.mark.parametrize("sizes", [(4,), (1, 2, 4), (1000,)])
@pytest.mark.usefixtures("together")
def test_autograd_takes_each_result_by_itself(pipeline, way, sizes):
    items = [torch.full((sizes[i % len(sizes)],), float(i)) for i in range(12)]
    weight = torch.tensor(3.0, requires_grad=True)
    results = list(WAYS[way](pipeline, items))
    assert all(result.is_leaf and not result.requires_grad for result in results)
    losses = []
    for i, result in enumerate(results):
        if i % 3 == 0:
            losses.append(result.mul_(weight).sum())
        elif i % 3 == 1:
            losses.append((result.requires_grad_() ** 2).sum())
        else:
            losses.append((weight * result).sum())  # keeps the result for backward
            continue
    for i, result in enumerate(results):
        if i % 3 == 0:
            assert torch.equal(result, items[i] * 3)
    for loss in losses:
        loss.backward()
    expected = sum(items[i].sum() for i in range(12) if i % 3 != 1)
    assert weight.grad == expected
    assert all(torch.equal(results[i].grad, 2 * items[i]) for i in range(1, 12, 3))


def all_gone(watched):
    """Whether they go as soon as threads that are on their way out of a copy have left it."""
    give_up_s = time.perf_counter() + _WAIT_S
    while any(each() is not None for each in watched):
        if time.perf_counter() > give_up_s:
            return False
        time.sleep(1e-3)
    return True


@pytest.fixture
def no_collector():
    """Let cycles of references keep what they hold."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "to_host_async"])
@pytest.mark.parametrize("sizes", [(0, 1, 2, 4), (4,), (1000,)])
@pytest.mark.usefixtures("company", "no_collector")
def test_a_result_that_the_caller_drops_is_gone(pipeline, way, sizes):
    for result in WAYS[way](pipeline, [torch.ones(sizes[i % len(sizes)]) for i in range(12)]):
        watched = [weakref.ref(result)]
        del result
        assert all_gone(watched)


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
@pytest.mark.parametrize("size", [0, 1, 1000])
@pytest.mark.usefixtures("company", "no_collector")
def test_a_source_that_was_copied_is_gone(pipeline, verb, size):
    watched = []

    def source():
        for i in range(20):
            made = torch.full((size,), i)
            watched.append(weakref.ref(made))
            yield made
            del made

    args = (torch.clone, source()) if verb == "map" else (source(),)
    deque(getattr(pipeline, verb)(*args), maxlen=0)
    assert all_gone(watched)


@pytest.mark.usefixtures("no_collector")
def test_a_handles_result_goes_with_it(pipeline):
    handle = pipeline.to_host_async(torch.ones(1000))
    watched = [weakref.ref(handle.result()), weakref.ref(handle)]
    del handle
    assert all_gone(watched)


@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
@pytest.mark.usefixtures("no_collector")
def test_what_was_given_up_is_gone(pipeline, verb):
    watched = []

    def source():
        for _ in range(20):
            made = torch.ones(1000)
            watched.append(weakref.ref(made))
            yield made
            del made

    results = getattr(pipeline, verb)(source())
    next(results)
    results.close()
    assert all_gone(watched)


@pytest.mark.usefixtures("no_collector")
def test_what_a_pipeline_held_goes_when_it_is_left(monkeypatch):
    slots, pinned = [], CopyStream.pinned

    def watched(stream, size_bytes):
        slot = pinned(stream, size_bytes)
        slots.append(weakref.ref(slot))
        return slot

    monkeypatch.setattr(CopyStream, "pinned", watched)
    with CopyPipeline("cpu", slots=3, slot_bytes=1024, threads=2) as pipeline:
        results = pipeline.map(torch.clone, numbers(9, 1000))
        next(results)  # who goes on holding this holds no slots
        assert len(slots) == 6
    assert all_gone(slots)
    del results


@pytest.mark.usefixtures("no_collector")
def test_an_error_that_the_caller_drops_is_gone(streams, monkeypatch):
    class BrokenError(Exception):
        pass

    def copy(stream, to, source):
        raise BrokenError

    def run(use):
        try:
            list(use)
        except BrokenError as error:
            return [weakref.ref(error)]

    monkeypatch.setattr(Noting, "copy", copy)
    with CopyPipeline("cpu", slots=2, slot_bytes=1024) as pipeline:
        assert all_gone(run(pipeline.to_host(numbers(9, 1000))))
        assert all_gone(run(pipeline.prefetch(numbers(9, 1000))))
        assert all_gone(run(pipeline.map(torch.clone, numbers(9, 1000))))


# -- out and pin ----------------------------------------------------------------------------------

PLACES = {
    "dense": lambda shape: torch.zeros(shape),
    "with gaps": lambda shape: torch.zeros(*shape, 3)[..., 1],
    "transposed": lambda shape: torch.zeros(shape[::-1]).T,
    "with an offset": lambda shape: torch.zeros(2, *shape)[1],
    "conjugate": lambda shape: torch._neg_view(torch.zeros(shape)),
    "of inference mode": lambda shape: torch.inference_mode()(torch.zeros)(shape),
}


@pytest.mark.parametrize("verb", ["to_host", "map"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(2, 3), (40, 30)])
@pytest.mark.usefixtures("company")
def test_results_go_where_they_are_told_to(pipeline, verb, place, shape):
    for kind in (list, tuple, iter):
        items = [torch.rand(shape) for _ in range(12)]
        out = [PLACES[place](shape) for _ in items]
        args = (torch.clone, items) if verb == "map" else (items,)
        results = list(getattr(pipeline, verb)(*args, out=kind(out)))
        assert all(result is given for result, given in zip(results, out, strict=True))
        assert all(map(torch.equal, out, items))


@pytest.mark.usefixtures("company")
def test_memory_around_out_is_left_alone(pipeline):
    whole = torch.full((12, 7, 5), -1.0)
    out = [each[2:5, 1::2] for each in whole]
    list(pipeline.to_host([torch.full((3, 2), float(i)) for i in range(12)], out))
    for i, each in enumerate(whole):
        assert each.unique().tolist() == [-1, i]
        assert (each == i).sum() == 6


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.usefixtures("company")
def test_one_stacked_tensor_takes_results_row_by_row(pipeline, size):
    items = [torch.rand(size) for _ in range(12)]
    out = torch.zeros(12, size)
    for i, row in enumerate(pipeline.to_host(items, out)):
        assert row.data_ptr() == out[i].data_ptr()
    assert torch.equal(out, torch.stack(items))


@pytest.mark.usefixtures("company")
def test_out_may_be_longer_and_is_taken_as_it_is_needed(pipeline):
    out = (torch.zeros(3, dtype=torch.int64) for _ in range(99))
    assert first_elements(pipeline.to_host(numbers(7, 3), out)) == list(range(7))
    assert len(list(out)) == 92


@pytest.mark.usefixtures("company")
def test_out_is_no_more_touched_once_its_item_was_yielded(pipeline):
    out = [torch.zeros(300, dtype=torch.int64) for _ in range(20)]
    for result in pipeline.to_host(numbers(20, 300), out):
        result.fill_(-1)
    assert torch.equal(torch.stack(out), torch.full((20, 300), -1))


@pytest.mark.parametrize("where", ["leader", "leader, sharing", "mover"])
def test_out_is_no_more_touched_once_a_turn_is_broken_off(gate, monkeypatch, where):
    """Closing waits for whoever is at it; here that is the second item."""
    out = [torch.zeros(1 << 18) for _ in range(3)]

    def hold_back(values):
        addresses = (x for x in pytree.tree_leaves(values) if isinstance(x, int))
        if any(0 <= address - out[1].data_ptr() < out[1].nbytes for address in addresses):
            gate()

    def holding(own):
        return lambda *args: (hold_back(args), own(*args))[1]

    class Pieces(queue.SimpleQueue):
        def get(self, *args, **options):
            item = super().get(*args, **options)
            hold_back(item)
            return item

    if where == "leader":
        monkeypatch.setattr(ring.Ring, "_move", holding(ring.Ring._move))
    elif where == "mover":
        names = SimpleNamespace(SimpleQueue=Pieces, Empty=queue.Empty)
        monkeypatch.setattr(ring, "queue", names)
    else:
        monkeypatch.setattr(ring, "_split", holding(ring._split))
    with CopyPipeline("cpu", slots=3, slot_bytes=1 << 20, threads=2) as pipeline:
        results = pipeline.to_host([torch.ones(1 << 18) for _ in range(3)], out)
        next(results)
        assert gate.begun.wait(_WAIT_S)
        opening = threading.Timer(0.05, gate.open)
        opening.start()
        results.close()
        out[1].fill_(-1)
        opening.join()
    assert out[1].unique().tolist() == [-1]


def test_what_backward_needs_is_not_overwritten_in_silence(pipeline):
    out = [torch.zeros(300)]
    weight = torch.ones(300, requires_grad=True)
    (result,) = pipeline.to_host([torch.ones(300)], out)
    loss = (weight * result).sum()
    list(pipeline.to_host([torch.zeros(300)], out))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


BAD_PLACES = {
    "shape": (lambda: torch.zeros(5), ValueError, r"\(5,\).*expected \(4,\) of torch.float32"),
    "dtype": (lambda: torch.zeros(4).int(), ValueError, r"torch.int32; expected \(4,\)"),
    "device": (lambda: torch.zeros(4, device="meta"), ValueError, "on meta; expected it on cpu"),
    "grad": (lambda: torch.zeros(4, requires_grad=True), ValueError, "requires grad.*detach"),
    "sparse": (lambda: torch.zeros(4).to_sparse(), TypeError, "sparse tensor.*to_dense"),
    "no tensor": (lambda: [0.0] * 4, TypeError, "of type list; expected a tensor on cpu"),
    "overlapping": (lambda: torch.zeros(1).expand(4), ValueError, "elements that share memory"),
}


@pytest.mark.parametrize("bad", BAD_PLACES)
@pytest.mark.parametrize("where", [0, 3, 11])
@pytest.mark.usefixtures("company")
def test_a_place_that_does_not_fit_is_named(pipeline, bad, where):
    make, error, match = BAD_PLACES[bad]
    out = [torch.zeros(4) for _ in range(12)]
    out[where] = make()
    got = []
    with pytest.raises(error, match=rf"out\[{where}\].*{match}") as caught:
        got.extend(pipeline.to_host([torch.full((4,), float(i)) for i in range(12)], out))
    assert f"in item {where} of to_host from cpu" in caught.value.__notes__
    assert first_elements(out[:where]) == list(range(where))


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("count", [0, 1, 7])
def test_too_few_places_are_named(pipeline, count):
    got = []
    with pytest.raises(ValueError, match=rf"out has only {count} tensors; expected one for each"):
        for result in pipeline.to_host(numbers(12), out=torch.zeros(count, 4).long()):
            got.append(result[0].item())
    assert got == list(range(count))


def test_pinning_on_the_cpu_gives_ordinary_memory(pipeline):
    results = list(pipeline.to_host(numbers(9), pin=True))
    results += pipeline.map(torch.clone, numbers(9), pin=True)
    results.append(pipeline.to_host_async(torch.zeros(3), pin=True).result())
    assert first_elements(results) == [*range(9), *range(9), 0]
    assert not any(result.is_pinned() for result in results)


# -- one at a time --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_many_handles_in_any_order(pipeline, size):
    tensors = [torch.full((size + 1,), i) for i in range(20)]
    handles = [pipeline.to_host_async(tensor) for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(-1)
    order = list(range(20))
    random.Random(0).shuffle(order)
    for i in order:
        assert handles[i].result().unique().tolist() == [i]
        assert handles[i].done()
        assert handles[i].result() is handles[i].result()


def test_a_handle_outlives_its_pipeline_and_tells_when_it_ran():
    with CopyPipeline("cpu") as pipeline:
        handles = [pipeline.to_host_async(torch.full((1 << 20,), i)) for i in range(3)]
    for i, handle in enumerate(handles):
        assert handle.result()[-1] == i
        span = handle.span
        assert isinstance(span, Span)
        assert span.kind == "copy"
        assert span.name == handle.name
        assert "to host" in span.lane
        assert span.start_s <= span.end_s
        assert handle.alignment_error_s == 0
        assert handle.device == torch.device("cpu")
    assert handles[0].span.end_s <= handles[1].span.end_s <= handles[2].span.end_s


def test_a_span_reaches_from_the_first_chunk_to_the_last(monkeypatch):
    copied_s = []

    def copy(stream, to, source):
        copied_s.append(time.perf_counter())
        to.copy_(source)

    monkeypatch.setattr(CopyStream, "copy", copy)
    with CopyPipeline("cpu", slots=2, slot_bytes=1024) as pipeline:
        span = pipeline.to_host_async(torch.ones(1 << 13)).span
        assert span.start_s <= copied_s[0]
        assert span.end_s >= copied_s[-1]
        assert len(copied_s) == 32
        nothing = pipeline.to_host_async(torch.ones(0)).span
        assert nothing.start_s == nothing.end_s


def test_memory_that_a_handles_copy_reads_is_kept_for_it(pipeline, monkeypatch):
    kept = []
    monkeypatch.setattr(CopyStream, "outlives", lambda stream, tensor: kept.append(tensor.nbytes))
    pipeline.to_host_async(torch.ones(1000)).result()
    assert kept == [4000]


def test_a_handle_is_not_done_before_its_copy(streams, gate, monkeypatch):
    monkeypatch.setattr(Noting, "copy", lambda self, to, source: (gate(), to.copy_(source)))
    with CopyPipeline("cpu") as pipeline:
        handle = pipeline.to_host_async(torch.ones(3))
        assert gate.begun.wait(_WAIT_S)
        assert not handle.done()
        gate.open()
        assert handle.result().tolist() == [1, 1, 1]


# -- batches --------------------------------------------------------------------------------------

BATCHES = {
    "tuple": lambda x: (x, x + 1),
    "list": lambda x: [x, [x + 1], []],
    "dict": lambda x: {"b": x, "a": {"c": x + 1}, 3: None},
    "ordered": lambda x: OrderedDict(b=x, a=x + 1),
    "named": lambda x: Pair(x, Pair(x + 1, "text")),
    "mixed": lambda x: ({"x": [x, (x + 1,)]}, 3, "text", None, 2.5, {1, 2}, b"bytes"),
    "twice": lambda x: (x, x),
    "none": lambda x: ("no", ["tensor", {}]),
    "number": lambda x: 3,
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.parametrize("verb", ["a list", "a generator", "map"])
def test_batches_keep_their_form(pipeline, kind, size, verb):
    batches = [BATCHES[kind](torch.full((size,), i)) for i in range(8)]
    if verb == "map":
        results = []
        list(pipeline.map(lambda batch: (results.append(batch), torch.ones(1))[1], batches))
    else:
        results = list(pipeline.prefetch(batches if verb == "a list" else iter(batches)))
    assert len(results) == 8
    for batch, result in zip(batches, results, strict=True):
        before, form = pytree.tree_flatten(batch)
        after, form_after = pytree.tree_flatten(result)
        assert form == form_after
        for x, y in zip(before, after, strict=True):
            if isinstance(x, torch.Tensor):
                assert torch.equal(x, y)
                assert y is not x
            else:
                assert y is x


@pytest.mark.parametrize("names", [True, False])
def test_a_data_loader(pipeline, names):
    data = TensorDataset(torch.arange(30).reshape(10, 3), torch.arange(10.0))
    if names:
        data = [{"x": x, "y": y, "name": str(i)} for i, (x, y) in enumerate(data)]
    loader = DataLoader(data, batch_size=4, num_workers=0)
    count = 0
    for batch, plain in zip(pipeline.prefetch(loader), loader, strict=True):
        assert type(batch) is type(plain)
        assert batch.keys() == plain.keys() if names else len(batch) == 2
        pairs = zip(pytree.tree_leaves(batch), pytree.tree_leaves(plain), strict=True)
        assert all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)
        count += 1
    assert count == 3


# -- map ------------------------------------------------------------------------------------------

FUNCTIONS = {
    "fresh": lambda x: 2 * x + 1,
    "in place": lambda x: x.mul_(2).add_(1),
    "its input": lambda x: x,
    "a view": lambda x: x[::2],
    "an expanded view": lambda x: x[:1].expand(5, 1),
    "another dtype": lambda x: x.to(torch.float64),
    "of various sizes": lambda x: x[: int(x[0].item())],
    "a sum": torch.sum,
}


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.usefixtures("company")
def test_map_is_what_calling_the_function_on_each_gives(pipeline, fn, size, kind):
    batches = [torch.full((size,), float(i)) for i in range(12)]
    expected = [FUNCTIONS[fn](batch.clone()) for batch in batches]
    results = list(pipeline.map(FUNCTIONS[fn], kind(batches)))
    assert [x.dtype for x in results] == [x.dtype for x in expected]
    assert all(map(torch.equal, results, expected))
    assert first_elements(batches) == list(range(12))


def test_a_function_may_keep_one_result_and_overwrite_it(pipeline):
    kept = torch.zeros(1000)
    results = list(
        pipeline.map(lambda x: kept.copy_(x), [torch.full((1000,), i) for i in range(9)])
    )
    assert [x.unique().tolist() for x in results] == [[i] for i in range(9)]


# -- order, and how far ahead ---------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("size", [4, 100])
@pytest.mark.usefixtures("company")
def test_only_so_many_items_are_asked_for_ahead(verb, slots, size):
    """Of large items a fixed number, of small ones as many as fit into the slots."""
    asked = 0

    def source():
        nonlocal asked
        for asked in range(1, 101):
            yield torch.full((size,), asked, dtype=torch.int32)

    with CopyPipeline("cpu", slots=slots, slot_bytes=128) as pipeline:
        args = (torch.clone, source()) if verb == "map" else (source(),)
        results = getattr(pipeline, verb)(*args)
        assert asked == 0
        most = ahead(slots)
        if verb == "map":  # one lot on the device, one on the way to the host
            most *= 2
        if size == 4 and verb != "prefetch":
            most *= 8
        for i, result in enumerate(results, 1):
            assert result[0] == i
            assert asked <= i + most
            # What is to be worked on comes soon, and others after it.
            early = i + 1 if verb != "to_host" and i <= 5 else i - 1 + ahead(slots)
            assert asked >= min(100, early)
        assert asked == 100


@pytest.mark.usefixtures("together")
def test_a_small_item_does_not_bring_many_large_ones_with_it():
    """After it the next ones may be of any size, and memory is bounded all the same."""
    asked_bytes = 0

    def source():
        nonlocal asked_bytes
        for i in range(100):
            size = 1024 if i % 8 else 1
            asked_bytes += size
            yield torch.full((size,), i, dtype=torch.uint8)

    got_bytes = 0
    with CopyPipeline("cpu", slots=2, slot_bytes=1024) as pipeline:
        for result in pipeline.to_host(source()):
            got_bytes += result.nbytes
            assert asked_bytes - got_bytes <= (ahead(2) + 1) * 2 * 1024


def test_items_are_copied_while_the_next_one_is_computed(streams):
    def source():
        for i in range(8):
            if i:
                streams[0].wait_for_copies(i)
            yield torch.full((100,), i, dtype=torch.int64)

    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        assert first_elements(pipeline.to_host(source())) == list(range(8))


def test_batches_are_copied_while_the_caller_works_on_one(streams):
    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        for i, batch in enumerate(pipeline.prefetch(numbers(8, 100))):
            streams[0].wait_for_copies(min(8, i + 2))
            assert batch[0] == i


def test_map_copies_both_ways_while_it_computes(streams):
    calls = 0

    def fn(batch):
        nonlocal calls
        calls += 1
        streams[0].wait_for_copies(min(8, calls + 1))  # the next batch has come
        if calls > 1:
            streams[1].wait_for_copies(calls - 1)  # the result before has gone
        return -batch

    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        # The way from the host is the first to be used.
        assert first_elements(pipeline.map(fn, numbers(8, 100))) == [-i for i in range(8)]


@pytest.mark.usefixtures("company")
def test_two_turns_taken_by_turns(pipeline):
    pairs = zip(
        pipeline.to_host(numbers(20)),
        pipeline.to_host(numbers(20, 300)),
        pipeline.prefetch(numbers(20)),
        pipeline.map(torch.neg, numbers(20)),
        strict=True,
    )
    for i, tensors in enumerate(pairs):
        assert first_elements(tensors) == [i, i, i, -i]
        assert pipeline.to_host_async(tensors[0]).result()[0] == i


@pytest.mark.usefixtures("company")
def test_a_source_that_uses_the_pipeline(pipeline):
    def source():
        for batch in pipeline.prefetch(numbers(20)):
            yield pipeline.to_host_async(batch).result() + 1

    assert first_elements(pipeline.to_host(source())) == list(range(1, 21))


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.usefixtures("together")
def test_a_turn_that_is_broken_off(pipeline, verb, taken, size):
    closed = []

    def source():
        try:
            yield from (torch.full((size,), i) for i in range(100))
        finally:
            closed.append(True)

    for _ in range(3):
        args = (torch.clone, source()) if verb == "map" else (source(),)
        results = getattr(pipeline, verb)(*args)
        for i in range(taken):
            assert next(results)[0] == i
        results.close()
        del results, args
        assert first_elements(pipeline.to_host(numbers(5))) == list(range(5))
        assert first_elements(pipeline.prefetch(numbers(5))) == list(range(5))
    assert len(closed) == (3 if taken else 0)


def test_an_error_comes_in_its_place(pipeline):
    def source():
        yield from numbers(7)
        raise KeyError("on purpose")

    got = []
    with pytest.raises(KeyError, match="on purpose") as caught:
        for result in pipeline.to_host(source()):
            got.append(result[0].item())
    assert got == list(range(7))
    assert caught.value.__notes__ == ["in item 7 of to_host from cpu"]
    assert first_elements(pipeline.to_host(numbers(3))) == [0, 1, 2]


def test_what_waits_is_given_up_while_somebody_holds_the_error(pipeline, monkeypatch):
    """An error holds on to frames, and these to the batches that were under way."""
    kept = []
    monkeypatch.setattr(CopyStream, "outlives", lambda stream, tensor: kept.append(tensor.nbytes))
    with pytest.raises(ZeroDivisionError) as caught:
        list(pipeline.map(lambda batch: 1 / 0, numbers(9, 1000)))
    assert kept
    assert set(kept) == {8000}
    del caught


def test_a_copy_that_fails_beside_others_that_did_not(streams, in_time, monkeypatch):
    """Of a batch with a pinned tensor and one that goes through slots, the pinned one fails."""

    def copy(stream, to, source):
        raise OSError("on purpose")

    monkeypatch.setattr(Noting, "copy", copy)
    monkeypatch.setattr(Noting, "is_pinned", lambda stream, tensor: tensor.numel() > 1 << 20)

    def run():
        with CopyPipeline("cpu") as pipeline:
            batch = (torch.ones(1 << 21), torch.ones(1 << 19))
            with pytest.raises(OSError, match="on purpose"):
                next(pipeline.prefetch([batch]))

    in_time(run, 5)


# -- leaving --------------------------------------------------------------------------------------


def test_left_by_an_exception_it_drops_what_waits(streams, gate, monkeypatch):
    monkeypatch.setattr(Noting, "copy", lambda self, to, source: (gate(), to.copy_(source)))
    with pytest.raises(ZeroDivisionError), CopyPipeline("cpu", slots=1) as pipeline:
        handles = [pipeline.to_host_async(torch.ones(3)) for _ in range(5)]
        assert gate.begun.wait(_WAIT_S)
        opening = threading.Timer(0.05, gate.open)
        opening.start()
        _ = 1 / 0
    opening.join()
    with pytest.raises(BaseException, match="dropped") as caught:
        handles[-1].result()
    assert type(caught.value).__name__ == "CancelledError"
    assert handles[-1].done()


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
def test_results_that_were_not_taken_do_not_come_after_leaving(verb):
    with CopyPipeline("cpu", slots=2, slot_bytes=64) as pipeline:
        args = (torch.clone,) if verb == "map" else ()
        results = getattr(pipeline, verb)(*args, numbers(9, 100))
        assert next(results)[0] == 0
    with pytest.raises(RuntimeError, match="was left; it works inside one `with` block"):
        next(results)


# -- refused --------------------------------------------------------------------------------------


BAD_TENSORS = {
    "elsewhere": (
        *(lambda: torch.ones(4, device="meta"), ValueError),
        "is on meta; expected it on cpu. Move it there first",
    ),
    "grad": (lambda: torch.ones(4, requires_grad=True), ValueError, "requires grad.*x.detach()"),
    "sparse": (lambda: torch.eye(2).to_sparse(), TypeError, "a sparse tensor.*to_dense()"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), TypeError, "sparse_csr.*expected a dense one"),
    "nested": (
        *(lambda: torch.nested.nested_tensor([torch.ones(4)] * 2), TypeError),
        "a nested tensor",
    ),
    "jagged": (
        *(
            lambda: torch.nested.nested_tensor([torch.ones(4)] * 2, layout=torch.jagged),
            TypeError,
        ),
        "a nested tensor",
    ),
    "quantized": (
        *(lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), TypeError),
        "a quantized tensor",
    ),
}
NO_TENSORS = {
    "number": (lambda: 3, TypeError, "is 3 of type int; expected a tensor on cpu"),
    "none": (lambda: None, TypeError, "is None of type NoneType; expected a tensor"),
    "list": (lambda: [torch.ones(1)], TypeError, r"is \[tensor.*of type list; expected a tensor"),
    "long": (lambda: "x" * 99, TypeError, r"is 'x{59}\.\.\. of type str; expected a tensor"),
}
_IGNORED = "ignore:.*(prototype|CSR|quantize|torch.ao|deprecated)"


@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("before", [0, 1, 7])
@pytest.mark.parametrize("bad", BAD_TENSORS | NO_TENSORS)
@pytest.mark.usefixtures("company")
def test_what_cannot_go_to_the_host(pipeline, bad, before):
    make, error, match = (BAD_TENSORS | NO_TENSORS)[bad]
    for count in (1, 9):
        items = numbers(before) + [make() for _ in range(count)]
        fresh = (make() if i >= before else item for i, item in enumerate(items))
        for source in (items, iter(items), fresh):
            results, got = pipeline.to_host(source), []
            with pytest.raises(error, match=rf"tensors\[{before}\] .*{match}") as caught:
                got.extend(result[0].item() for result in results)
            assert f"in item {before} of to_host from cpu" in caught.value.__notes__
            del results


@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("before", [0, 1, 7])
@pytest.mark.usefixtures("company")
def test_what_comes_before_a_bad_item_comes_out(pipeline, kind, before):
    results = pipeline.to_host(kind([*numbers(before), None, torch.ones(4)]))
    assert first_elements(next(results) for _ in range(before)) == list(range(before))
    with pytest.raises(TypeError, match=rf"tensors\[{before}\] is None"):
        next(results)


@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("before", [0, 1, 7])
@pytest.mark.parametrize("bad", BAD_TENSORS)
def test_what_cannot_go_to_the_device(pipeline, bad, before):
    make, error, match = BAD_TENSORS[bad]
    batch = {"good": torch.ones(2), "bad": (3, make())}
    results = pipeline.prefetch([*numbers(before), batch, torch.ones(3)])
    assert first_elements(next(results) for _ in range(before)) == list(range(before))
    with pytest.raises(error, match=rf"tensor 2 of batches\[{before}\] .*{match}") as caught:
        next(results)
    assert f"in item {before} of prefetch to cpu" in caught.value.__notes__
    assert first_elements(pipeline.prefetch(numbers(3))) == [0, 1, 2]


@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("bad", BAD_TENSORS | NO_TENSORS)
def test_what_cannot_go_to_the_host_alone(pipeline, bad):
    make, error, match = (BAD_TENSORS | NO_TENSORS)[bad]
    with pytest.raises(error, match=f"tensor .*{match}"):
        pipeline.to_host_async(make())


def test_a_parameter_is_refused_wherever_it_comes_from(pipeline):
    weight = torch.ones(3, requires_grad=True)
    for source in ([weight], iter([weight]), (weight for _ in range(1))):
        with torch.no_grad(), pytest.raises(ValueError, match="requires grad"):
            list(pipeline.to_host(source))


@pytest.mark.parametrize("argument", ["slots", "slot_bytes", "threads"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True])
def test_counts_are_at_least_one(argument, value):
    with pytest.raises(ValueError, match=f"{argument} is {value!r}; expected at least one"):
        CopyPipeline("cpu", **{argument: value})


@pytest.mark.parametrize("argument", ["slots", "slot_bytes"])
def test_counts_have_to_be_given_if_at_all(argument):
    with pytest.raises(ValueError, match=f"{argument} is None; expected at least one"):
        CopyPipeline("cpu", **{argument: None})


@pytest.mark.parametrize(
    ("device", "match"), [("meta", "meta"), (99, "cuda:99"), ("nonsense", "'nonsense'")]
)
def test_the_device_has_to_be_there(device, match):
    with pytest.raises(ValueError, match=f"device is {match}"):
        CopyPipeline(device)


def test_attributes():
    pipeline = CopyPipeline("cpu", slots=4)
    assert pipeline.device == torch.device("cpu")
    assert pipeline.slots == 4
    assert pipeline.slot_bytes == 32 << 20


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            *(lambda p: p.to_host(torch.ones(3)), TypeError),
            r"tensors is a single tensor; expected an iterable of them. Pass to_host_async\(x\)",
        ),
        (lambda p: p.prefetch(torch.ones(3)), TypeError, r"batches is a single.*\[x\] for"),
        (lambda p: p.map(torch.neg, torch.ones(3)), TypeError, "batches is a single tensor"),
        (lambda p: p.to_host(3), TypeError, "tensors is 3; expected an iterable, such as a list"),
        (lambda p: p.prefetch(None), TypeError, "batches is None; expected an iterable"),
        (lambda p: p.map(torch.neg, 3), TypeError, "batches is 3; expected an iterable"),
        (
            *(lambda p: p.map(torch.ones(1), [torch.ones(3)]), TypeError),
            r"fn is tensor.*expected a function. Write map\(fn, batches\)",
        ),
        (
            *(lambda p: p.to_host([], out=[], pin=True), ValueError),
            "out and pin are both given; expected one",
        ),
        (lambda p: p.map(torch.neg, [], [], True), ValueError, "out and pin are both given"),
        (lambda p: p.to_host([], out=3), TypeError, "out is 3; expected an iterable"),
    ],
)
def test_calls_that_can_only_be_mistakes_are_refused_at_once(pipeline, call, error, match):
    with pytest.raises(error, match=match):
        call(pipeline)


@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
def test_a_generator_that_is_running_is_refused(pipeline, verb):
    def source():
        args = (torch.clone,) if verb == "map" else ()
        with pytest.raises(ValueError, match="is a generator that is running already"):
            getattr(pipeline, verb)(*args, running)
        yield torch.ones(1)

    running = source()
    assert len(list(pipeline.to_host(running))) == 1


@every_way
def test_it_works_inside_one_with_block(way):
    pipeline = CopyPipeline("cpu")
    with pytest.raises(RuntimeError, match="on cpu is not open yet.*with CopyPipeline"):
        list(WAYS[way](pipeline, numbers(3)))
    with pipeline:
        with pytest.raises(RuntimeError, match="on cpu is open"), pipeline:
            pass
        assert first_elements(WAYS[way](pipeline, numbers(3))) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="on cpu was left.*Make a new one"):
        list(WAYS[way](pipeline, numbers(3)))
    with pytest.raises(RuntimeError, match="on cpu was left"), pipeline:
        pass


def test_no_room_for_slots_says_what_to_do(monkeypatch):
    def pinned(stream, size_bytes):
        raise RuntimeError("no room")

    monkeypatch.setattr(CopyStream, "pinned", pinned)
    with (
        CopyPipeline("cpu", slots=4, slot_bytes=1 << 20) as pipeline,
        pytest.raises(RuntimeError, match="no room") as caught,
    ):
        pipeline.to_host(numbers(3))
    assert caught.value.__notes__ == [
        "while pinning 4 slots of 1,048,576 bytes; give fewer slots or a smaller slot_bytes"
    ]


# -- threads --------------------------------------------------------------------------------------


@every_way
def test_a_second_thread_is_refused_while_the_first_is_at_it(pipeline, gate, in_time, way):
    def source():
        yield torch.zeros(4)
        gate()
        yield torch.ones(4)

    outcome = []
    first = threading.Thread(target=lambda: outcome.extend(pipeline.to_host(source())))
    first.start()
    assert gate.begun.wait(_WAIT_S)
    with pytest.raises(RuntimeError, match="on cpu is in use by another thread; expected one"):
        list(WAYS[way](pipeline, numbers(3)))
    gate.open()
    first.join(_WAIT_S)
    assert first_elements(outcome) == [0, 1]
    assert first_elements(WAYS[way](pipeline, numbers(3))) == [0, 1, 2]


def test_a_refused_thread_leaves_no_trace():
    closed = CopyPipeline("cpu")

    def refused():
        with pytest.raises(RuntimeError, match="is not open yet"):
            closed.to_host([])

    stop, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (refused(), done.set(), stop.wait(_WAIT_S)))
    thread.start()
    assert done.wait(_WAIT_S)
    with closed:
        assert first_elements(closed.to_host(numbers(3))) == [0, 1, 2]
    stop.set()
    thread.join(_WAIT_S)


def test_threads_may_take_turns(pipeline, in_time):
    results = in_time(lambda: pipeline.to_host(numbers(20)))
    assert next(results)[0] == 0
    assert in_time(lambda: next(results))[0] == 1
    assert first_elements(results) == list(range(2, 20))


def test_each_thread_may_have_a_pipeline_of_its_own():
    barrier, outcome = threading.Barrier(4), {}

    def run(number):
        with CopyPipeline("cpu", slots=2, slot_bytes=64) as pipeline:
            barrier.wait(_WAIT_S)
            outcome[number] = first_elements(pipeline.map(lambda x: x + number, numbers(30, 100)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    assert outcome == {number: [i + number for i in range(30)] for number in range(4)}
