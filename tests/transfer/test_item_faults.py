"""Faults of sources, functions and copies: errors name their item, and work goes on."""

import gc
import itertools
import threading
import time
import traceback

import pytest
import torch
from pipeline_faults import (
    AT,
    FEW_AT,
    FROM_HOST,
    HELD,
    NUMBERS,
    SIZES,
    SOURCES,
    STAGED,
    STREAMING,
    THREADS,
    VERBS,
    Broken,
    NoRoom,
    blanks,
    breaks,
    ends,
    named,
    number_in,
)
from pipeline_ways import DEVICES

pytestmark = pytest.mark.stress


# -- the source fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_error_of_the_source_comes_after_the_items_before_it(
    bench, verb, size, slots, k, kind, device
):
    with bench.pipeline(device, size, slots, threads=1 + k % 2) as pipeline:
        broken = Broken("on purpose")
        received, error = bench.run(verb, pipeline, lambda: breaks(broken), k, kind)
        assert error is broken
        assert received == k
        assert named(error) == range(k, k + 1)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_a_source_that_raises_stop_iteration_has_failed(bench, verb, slots, k, device):
    with bench.pipeline(device, "packed", slots) as pipeline:
        received, error = bench.run(verb, pipeline, lambda: breaks(StopIteration()), k)
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, StopIteration)
        assert received == k
        assert named(error) == range(k, k + 1)
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
    assert bench.a_new_one_works()


def _bad(bench, what):
    good = bench.tensor(0, bench.device)
    return {
        "a list": good.tolist,
        "nothing": lambda: None,
        "sparse": good.to_sparse,
        "grad": lambda: good.float().requires_grad_(),
        "elsewhere": lambda: good.to("meta"),
    }[what]()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["a list", "nothing", "sparse", "grad", "elsewhere"])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", ["alone", "packed"])
@pytest.mark.parametrize("verb", ["to_host", "to_host out", "prefetch"])
@ends
def test_an_item_that_cannot_be_copied_is_named(bench, verb, size, slots, k, what, device):
    if verb == "prefetch" and what in ("a list", "nothing"):
        return  # as other things in a batch, they are passed on
    with bench.pipeline(device, size, slots) as pipeline:
        source, bad = bench.source(verb), _bad(bench, what)
        if verb == "prefetch":
            bad = (3, {"x": bench.tensor(0), "y": bad})
        items = itertools.chain(itertools.islice(source, k), [bad], source)
        received, error = bench.take(verb, VERBS[verb](pipeline, items, bench))
        assert isinstance(error, (TypeError, ValueError))
        assert f"{'batches' if verb == 'prefetch' else 'tensors'}[{k}]" in str(error)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["missing", "shape", "dtype", "raises"])
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", ["alone", "packed"])
@ends
def test_a_result_that_has_no_place_is_named(bench, size, slots, k, what, device):
    def places():
        yield from itertools.islice(blanks(bench), k)
        if what == "raises":
            breaks(Broken("on purpose"))
        if what != "missing":
            dtype = torch.int64 if what == "dtype" else torch.int32
            yield torch.zeros(NUMBERS[size] + (what == "shape"), dtype=dtype)
        yield from blanks(bench) if what != "missing" else ()

    with bench.pipeline(device, size, slots) as pipeline:
        results = pipeline.to_host(bench.source("to_host"), out=places())
        received, error = bench.take("to_host", results)
        assert isinstance(error, Broken if what == "raises" else ValueError)
        assert what != "missing" or f"out has only {k} tensors; expected one for" in str(error)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


# -- fn fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["raises", "nothing", "a number", "elsewhere"])
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", SIZES)
@ends
def test_an_error_of_fn_or_its_result_comes_after_the_results_before_it(
    bench, size, slots, k, threads, what, device
):
    calls, closed = itertools.count(), []

    def fn(batch):
        if next(calls) != k:
            return -batch
        if what == "raises":
            breaks(Broken("on purpose"))
        return {"nothing": None, "a number": 3, "elsewhere": batch.to("meta")}[what]

    def source():
        try:
            yield from bench.source("map")
        finally:
            closed.append(True)

    with bench.pipeline(device, size, slots, threads) as pipeline:
        received, error = bench.take("map", pipeline.map(fn, source()))
        assert isinstance(error, Broken if what == "raises" else (TypeError, ValueError))
        assert closed
        assert received == k
        assert named(error) == range(k, k + 1)
        if what == "raises":
            assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


# -- a copy fails ---------------------------------------------------------------------------------
# A verb, and the sign of the numbers in the direction that fails: `map` turns them over between.
DIRECTIONS = [(verb, 1) for verb in VERBS] + [("map", -1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("verb", "sign"), DIRECTIONS)
@ends
def test_a_copy_that_fails_is_named(bench, verb, sign, size, slots, k, kind, threads, device):
    with bench.pipeline(device, size, slots, threads) as pipeline:
        if kind == "move" and "pin" in verb:
            return  # what is pinned is not moved
        broken = Broken("on purpose")
        bench.when(kind, number_in(size, k), lambda: breaks(broken), sign)
        received, error = bench.run(verb, pipeline)
        assert error is broken
        assert received == k or (size == "packed" and received < k)
        assert k in named(error) or (verb == "to_host_async" and 0 in named(error))
        assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["mark", "current"])
@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_a_stream_that_cannot_be_used_is_an_error(bench, verb, call, method, device):
    calls = itertools.count()

    def used(own, **options):
        if next(calls) == call:
            breaks(Broken("on purpose"))
        return own(**options)

    bench.on_stream[method] = used
    with bench.pipeline(device, "chunked", threads=1 + call % 2) as pipeline:
        received, error = bench.run(verb, pipeline)
        assert isinstance(error, Broken)
        assert received in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", [verb for verb in STAGED if verb != "to_host_async"])
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
@pytest.mark.parametrize("verb", ["to_host", "to_host out", "prefetch", "map"])
@ends
def test_what_a_fault_held_is_free_at_once(bench, verb, size, fault, device):
    """Without a search for garbage: until then, there could be no room to go on."""
    with bench.pipeline(device, size) as pipeline:
        gc.disable()
        try:
            if fault in ("copy", "move"):
                bench.when(fault, 2001, lambda: breaks(Broken("on purpose")))
            fails = (lambda: breaks(Broken("on purpose"))) if fault == "source" else None
            with NoRoom(6 if fault == "memory" else 10**6, RuntimeError):
                _, error = bench.run(verb, pipeline, fails, 2)
            del error
            until_s = time.perf_counter() + 1  # the ring's own threads let go of things, too
            while bench.alive() > len(bench.slots) and time.perf_counter() < until_s:
                time.sleep(1e-3)
            assert bench.alive() == len(bench.slots)
        finally:
            gc.enable()
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", [verb for verb in STAGED if verb != "to_host_async"])
@ends
def test_of_two_errors_of_one_item_the_first_counts(bench, verb, device):
    """Two workers fail, the second one later, while the caller is busy."""
    calls, late = itertools.count(1), threading.Event()

    def hook(source):
        number = next(calls)
        if number > 1:
            time.sleep(0.02)
            late.set()
        breaks(Broken(str(number)))

    def busy():
        late.wait(0.2)
        time.sleep(0.02)

    with bench.pipeline(device, "chunked", threads=2) as pipeline:
        bench.hooks["move"] = hook
        _, error = bench.run(verb, pipeline, busy, 1)
        assert str(error) == "1"
        assert len(error.__notes__) == len(set(error.__notes__))
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_once_all_is_taken_only_slots_are_held(bench, verb, size, threads, device):
    """The iterator has not ended yet, and nothing searches for garbage."""
    with bench.pipeline(device, size, threads=threads) as pipeline:
        gc.disable()
        try:
            results = VERBS[verb](pipeline, bench.source(verb), bench)
            assert bench.take(verb, results, most=bench.count) == (bench.count, None)
            until_s = time.perf_counter() + 1
            while bench.alive() > bench.slots_alive() and time.perf_counter() < until_s:
                time.sleep(1e-3)
            assert bench.alive() == bench.slots_alive() <= 2 * pipeline.slots
        finally:
            gc.enable()
        assert list(results) == []
