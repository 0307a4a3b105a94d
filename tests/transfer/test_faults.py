"""Faults of all kinds: errors name their item, come after the items before, and work goes on."""

import gc
import itertools
import threading
import traceback

import pytest
import torch
from pipeline_faults import (
    AT,
    FROM_HOST,
    HELD,
    NUMBERS,
    SIZES,
    SLOT_BYTES,
    SOURCES,
    STAGED,
    STREAMING,
    VERBS,
    Broken,
    NoRoom,
    blanks,
    breaks,
    ends,
    named,
    number_in,
)
from pipeline_ways import DEVICES, comes_true

pytestmark = pytest.mark.stress


FAULTS = {}  # with which verb, how it begins so that item k fails, and with what


def fault(name, verbs, error, begin):
    FAULTS.update({f"{name}, {verb}": (verb, begin, error) for verb in verbs})


def _broken(kind=Broken):
    breaks(kind("on purpose"))


def _with_a_bad_source(kind="fresh", error=Broken):
    def begin(bench, pipeline, verb, k):
        source = bench.source(verb, lambda: _broken(error), k, kind)
        return VERBS[verb](pipeline, source, bench)

    return begin


for _kind in SOURCES:
    fault(f"source {_kind}", STREAMING, Broken, _with_a_bad_source(_kind))
_RAISING = _with_a_bad_source(error=StopIteration)
fault("source raises StopIteration", STREAMING, RuntimeError, _RAISING)


def _with_a_bad_item(make):
    def begin(bench, pipeline, verb, k):
        source, bad = bench.source(verb), make(bench.tensor(0, bench.device))
        if verb == "prefetch":
            bad = (3, {"x": bench.tensor(0), "y": bad})
        items = itertools.chain(itertools.islice(source, k), [bad], source)
        return VERBS[verb](pipeline, items, bench)

    return begin


_OUTWARD = ["to_host", "to_host out"]
fault("a list", _OUTWARD, TypeError, _with_a_bad_item(torch.Tensor.tolist))
fault("nothing", _OUTWARD, TypeError, _with_a_bad_item(lambda x: None))
_ITEMS = [*_OUTWARD, "prefetch"]
fault("sparse", _ITEMS, TypeError, _with_a_bad_item(torch.Tensor.to_sparse))
fault("grad", _ITEMS, ValueError, _with_a_bad_item(lambda x: x.float().requires_grad_()))
fault("elsewhere", _ITEMS, ValueError, _with_a_bad_item(lambda x: x.to("meta")))


def _with_a_bad_place(bad):
    def places(bench, k):
        yield from itertools.islice(blanks(bench), k)
        yield from bad(NUMBERS[bench.size])
        yield from blanks(bench)

    return lambda bench, pipeline, verb, k: pipeline.to_host(bench.source(verb), places(bench, k))


fault("no place", ["to_host"], ValueError, _with_a_bad_place(lambda n: [torch.zeros(n + 1)]))
fault("no more places", ["to_host"], Broken, _with_a_bad_place(lambda n: _broken()))


def _with_too_few_places(bench, pipeline, verb, k):
    return pipeline.to_host(bench.source(verb), itertools.islice(blanks(bench), k))


fault("too few places", ["to_host"], ValueError, _with_too_few_places)


def _with_a_bad_function(result):
    def begin(bench, pipeline, verb, k):
        calls = itertools.count()
        return pipeline.map(lambda x: -x if next(calls) != k else result(x), bench.source(verb))

    return begin


fault("fn raises", ["map"], Broken, _with_a_bad_function(lambda x: _broken()))
fault("fn returns nothing", ["map"], TypeError, _with_a_bad_function(lambda x: None))
fault("fn's is elsewhere", ["map"], ValueError, _with_a_bad_function(lambda x: x.to("meta")))


def _with_a_bad_copy(kind, sign):
    def begin(bench, pipeline, verb, k):
        bench.when(kind, number_in(bench.size, k), _broken, sign)
        return VERBS[verb](pipeline, bench.source(verb), bench)

    return begin


for _kind, _verbs in (("copy", VERBS), ("move", STAGED)):
    fault(f"{_kind} fails", _verbs, Broken, _with_a_bad_copy(_kind, 1))
    fault(f"{_kind} back fails", ["map"], Broken, _with_a_bad_copy(_kind, -1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
@ends
def test_an_error_names_its_item_and_comes_after_those_before(bench, fault, size, slots, k, device):
    verb, begin, kind = FAULTS[fault]
    with bench.pipeline(device, size, slots, threads=1 + k % 2) as pipeline:
        try:
            received, error = bench.take(verb, begin(bench, pipeline, verb, k))
        except Broken as broken:  # of a source for `to_host_async`
            received, error = 0, broken
        assert type(error) is kind
        if "fails" in fault:  # what travels together fails together
            assert received == k or (size == "packed" and received < k)
            assert k in named(error) or (verb == "to_host_async" and 0 in named(error))
        else:
            assert received == k
            assert named(error) == range(k, k + 1)
        if kind is Broken:
            assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(("slots", "k"), [(1, 1), (3, 4)])
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_exit_in_the_source_is_not_held_up(bench, verb, slots, k, kind, device):
    with bench.pipeline(device, "chunked", slots) as pipeline:
        received, error = bench.run(verb, pipeline, lambda: breaks(kind()), k)
        assert isinstance(error, kind)
        assert received <= k
        assert bench.works(pipeline)


def _failing(at, fail):
    """What stands in for a method of a stream, and fails at one of its calls."""
    calls = itertools.count()

    def called(own, *args, **options):
        if next(calls) == at:
            fail()
        return own(*args, **options)

    return called


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["mark", "copy_all"])
@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_a_stream_that_cannot_be_used_is_an_error(bench, verb, call, method, device):
    bench.on_stream[method] = _failing(call, _broken)
    with bench.pipeline(device, "chunked", threads=1 + call % 2) as pipeline:
        received, error = bench.run(verb, pipeline)
        assert isinstance(error, Broken)
        assert received in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_the_first_error_is_the_first_also_if_a_later_one_is_there_before(
    bench, gate, verb, kind, threads, device
):
    """Item 1 is held back until the source has failed at item 3."""

    def copy():
        gate()
        breaks(Broken("item 1"))

    def fault():
        gate.open()
        breaks(Broken("item 3"))

    with bench.pipeline(device, "alone", slots=3, threads=threads) as pipeline:
        if verb in FROM_HOST and kind == "move":
            gate.open()  # their source is only asked for more once an item was read
        bench.when(kind, number_in("alone", 1), copy)
        opening = threading.Timer(0.05, gate.open)  # of `slots` items, none may be taken before
        opening.start()
        received, error = bench.run(verb, pipeline, fault, 3)
        opening.join()
        assert str(error) == "item 1"
        assert received == 1
        assert named(error) == range(1, 2)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fault", ["source", "copy", "move", "memory"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", STAGED)
@pytest.mark.usefixtures("no_collector")
@ends
def test_what_a_fault_held_is_free_at_once(bench, verb, size, fault, device):
    """Without a search for garbage: until then, there could be no room to go on."""
    with bench.pipeline(device, size) as pipeline:
        if fault in ("copy", "move"):
            bench.when(fault, 2001, _broken)
        fails = _broken if fault == "source" else None
        with NoRoom(6 if fault == "memory" else 10**6, RuntimeError):
            _, error = bench.run(verb, pipeline, fails, 2)
        del error
        assert comes_true(lambda: bench.alive() == len(bench.slots))
        assert bench.works(pipeline)


# -- out of memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError, MemoryError])
@pytest.mark.parametrize(("slots", "call"), [(1, 0), (2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_room_for_a_slot_says_so_and_is_no_end(bench, verb, slots, call, kind, device):
    bench.on_stream["pinned"] = _failing(call, lambda: breaks(kind("no room for a slot")))
    with bench.pipeline(device, "packed", slots) as pipeline:
        with pytest.raises(kind, match="no room for a slot") as caught:
            list(VERBS[verb](pipeline, bench.source(verb), bench))
        note = f"while pinning {slots} slots of {SLOT_BYTES} bytes; give fewer slots or a smaller"
        assert any(note in each for each in caught.value.__notes__)
        del caught
        gc.collect()
        assert [slot() for slot in bench.slots] == [None] * call
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("call", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("verb", ["to_host", "to_host pinned out", "prefetch", "map"])
@ends
def test_no_room_for_a_tensor_is_named(bench, verb, call, given, size, kind, device):
    """On either side: for a result, for what small ones travel in, or for a clone."""
    with bench.pipeline(device, size) as pipeline:
        tensors = list(bench.source(verb))
        results = VERBS[verb](pipeline, tensors if given else iter(tensors), bench)
        with NoRoom(call, kind) as room:
            received, error = bench.take(verb, results)
        if room.calls_left >= 0:
            assert (received, error) == (bench.count, None)
        else:
            assert error is None or received in named(error)  # there may be another way without
        del tensors, error
        assert bench.works(pipeline)


@pytest.mark.gpu
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map", "to_host_async"])
@ends
def test_a_full_gpu_gives_the_items_before_and_works_again(bench, verb):
    """The allocator itself refuses: this process may take no more than a little."""
    total = torch.cuda.get_device_properties(0).total_memory
    large = 1 << 24

    def source():
        on = "cpu" if verb in FROM_HOST else "cuda:0"
        yield from itertools.islice(bench.source(verb), 3)
        big = torch.zeros(large, dtype=torch.int32, device=on)
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved(0) + (8 << 20)  # for what is small
        torch.cuda.set_per_process_memory_fraction(allowed / total, 0)
        yield big  # a copy of it finds no room

    with bench.pipeline("cuda:0", "alone") as pipeline:
        try:
            received, error = bench.take(verb, VERBS[verb](pipeline, source(), bench))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
        assert isinstance(error, torch.OutOfMemoryError)
        assert received == (0 if verb == "to_host_async" else 3)
        assert 3 in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_more_threads(bench, verb, call, device):
    """The caller does what no worker is there for."""
    calls, start = itertools.count(), threading.Thread.start

    def start_some(thread):
        if next(calls) >= call:
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    with bench.pipeline(device, threads=2) as pipeline:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_some)
            assert bench.run(verb, pipeline) == (bench.count, None)
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None
