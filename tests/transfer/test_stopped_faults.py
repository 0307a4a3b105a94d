"""Pipelines that are given up, left, closed or used by two threads: nothing hangs or leaks."""

import contextlib
import functools
import gc
import threading
from concurrent.futures import CancelledError

import pytest
from lane_forms import WAIT_S
from pipeline_faults import (
    FEW_AT,
    HELD,
    SIZES,
    STAGED,
    STREAMING,
    VERBS,
    Broken,
    breaks,
    ends,
)
from pipeline_ways import DEVICES

pytestmark = pytest.mark.stress


# -- the consumer stops ---------------------------------------------------------------------------


def _stop(how, bench, verb, results, k):
    """Take k items, or one less where the last one is taken by the loop, and stop."""
    if how in ("close", "drop"):
        assert bench.take(verb, results, most=k) == (k, None)
        if how == "close":
            results.close()
            assert list(results) == []
        return
    with contextlib.suppress(Broken):
        for i, result in enumerate(results):
            assert bench.equal(verb, i, result)
            if i == k:
                if how == "break":
                    break
                breaks(Broken("in the body of the loop"))
    assert i == k


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["break", "raise", "close", "drop"])
@pytest.mark.parametrize(("slots", "k"), [(1, 0), (2, 2), (3, 4)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_a_consumer_that_stops_leaves_nothing_behind(bench, verb, size, slots, k, how, device):
    closed = []

    def source():
        try:
            yield from bench.source(verb)
        finally:
            closed.append(True)

    with bench.pipeline(device, size, slots, threads=1 + k % 2) as pipeline:
        results = VERBS[verb](pipeline, source(), bench)
        _stop(how, bench, verb, results, k)
        del results
        gc.collect()
        assert closed or (how in ("close", "drop") and k == 0)  # it had not begun
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", ["to_host", "to_host out"])
@ends
def test_left_by_an_error_it_waits_for_what_runs_and_drops_the_rest(bench, gate, verb, device):
    """A worker holds back the first chunk of item 1 until the pipeline is being left."""
    pipeline = bench.pipeline(device, "chunked", slots=12, threads=2)
    with pytest.raises(Broken), pipeline:
        bench.when("move", 1001, gate)
        bench.count = 6  # no more of them can be under way
        results = VERBS[verb](pipeline, bench.source(verb, kind="list"), bench)
        assert bench.take(verb, results, most=1) == (1, None)
        assert gate.begun.wait(WAIT_S)
        opening = bench.opening(gate, pipeline)
        breaks(Broken("on purpose"))
    assert gate.finished, "work outlived its pipeline"
    opening.join()
    assert opening.seen == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), [(2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("how", ["break", "copy fails", "last copy fails", "source exits"])
@pytest.mark.parametrize("verb", ["prefetch", "prefetch pinned"])
@ends
def test_copies_under_way_outlive_what_is_given_up(bench, verb, how, slots, k, device):
    """Their memory must not be used for anything else before they have ended."""
    with bench.pipeline(device, "chunked", slots) as pipeline:
        if "fails" in how:
            number = 1000 * k + (192 if how == "last copy fails" else 1)
            bench.when("copy", number, lambda: breaks(Broken("on purpose")))
        exits = functools.partial(breaks, SystemExit()) if how == "source exits" else None
        results = VERBS[verb](pipeline, bench.source(verb, exits, k + 1), bench)
        received, _ = bench.take(verb, results, most=k if how == "break" else bench.count)
        del results, _
        gc.collect()
    given_up = {place for item, place in bench.destinations.items() if item >= received}
    assert given_up <= bench.outlived
    assert (
        given_up
        or how in ("break", "copy fails")
        or (how, verb) == ("last copy fails", "prefetch pinned")
    )


# -- used after it was closed, or from two threads ------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", ["not open yet", "left", "left by an error"])
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_a_pipeline_that_is_not_open_says_so_and_is_opened_once(bench, verb, state, device):
    pipeline = bench.pipeline(device)
    if state != "not open yet":
        with contextlib.suppress(Broken), pipeline:
            with pytest.raises(RuntimeError, match="is open"), pipeline:
                pass
            assert bench.works(pipeline)
            if state == "left by an error":
                breaks(Broken("on purpose"))
    match = "is not open yet" if state == "not open yet" else "was left.*Make a new one"
    source = bench.source(verb)
    for call in (lambda use: use(), bench.in_time):  # from another thread, too
        with pytest.raises(RuntimeError, match=match):
            call(lambda: next(VERBS[verb](pipeline, source, bench)))
    if state != "not open yet":
        with pytest.raises(RuntimeError, match=match), pipeline:
            pass


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_error", [False, True])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", ["packed", "chunked"])
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_iterator_of_a_pipeline_that_was_left_says_so(
    bench, verb, size, slots, k, by_error, device
):
    with contextlib.suppress(Broken), bench.pipeline(device, size, slots) as pipeline:
        results = VERBS[verb](pipeline, bench.source(verb), bench)
        unused = VERBS[verb](pipeline, bench.source(verb), bench)
        assert bench.take(verb, results, most=k) == (k, None)
        if by_error:
            breaks(Broken("on purpose"))
    assert bench.slots or k == 0
    assert [slot() for slot in bench.slots if slot() is not None] == []
    received, error = bench.take(verb, results, start=k)
    assert received == k or size == "packed"  # some were there already
    assert "was left; it works inside one `with` block" in str(error)
    assert list(results) == []
    with pytest.raises(RuntimeError, match="was left"):
        next(unused)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1)])
@pytest.mark.parametrize("other", VERBS)
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_a_second_thread_is_refused_and_the_first_unharmed(
    bench, gate, verb, other, kind, threads, device
):
    found = []

    def first():
        found.append(bench.run(verb, pipeline, gate if kind == "source" else None, 0))

    with bench.pipeline(device, "chunked", threads=threads) as pipeline:
        before = VERBS[other](pipeline, bench.source(other), bench)
        if kind != "source":
            bench.when(kind, 1, gate)
        thread = threading.Thread(target=first)
        thread.start()
        assert gate.begun.wait(WAIT_S)
        with pytest.raises(RuntimeError, match="is in use by another thread; expected one"):
            next(VERBS[other](pipeline, bench.source(other), bench))
        with pytest.raises(RuntimeError, match="is in use by another thread; expected one"):
            next(before)
        gate.open()
        thread.join(WAIT_S)
        assert found == [(bench.count, None)]
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_error", [False, True])
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1), ("slots", 1)])
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_left_while_another_thread_is_inside(bench, gate, verb, kind, threads, k, by_error, device):
    """The other thread gets its results, or is told."""
    found = []

    def pinned(own, size_bytes):
        gate()
        return own(size_bytes)

    if kind == "slots":
        bench.on_stream["pinned"] = pinned

    def first():
        found.append(bench.run(verb, pipeline, gate if kind == "source" else None, k))

    thread = threading.Thread(target=first, daemon=True)
    with contextlib.suppress(Broken), bench.pipeline(device, threads=threads) as pipeline:
        if kind in ("copy", "move"):
            bench.when(kind, 1000 * k + 1, gate)
        thread.start()
        assert gate.begun.wait(WAIT_S)
        opening = bench.opening(gate, pipeline)
        if by_error:
            breaks(Broken("on purpose"))
    assert gate.finished or kind in ("source", "slots"), "work outlived its pipeline"
    opening.join()
    begun = {abs(number) // 1000 for number in opening.seen}
    assert len(begun) <= 1 or not by_error, "it may have come to one item as it was left"
    thread.join(WAIT_S / 2)
    ((received, error),) = found
    assert received <= bench.count
    assert error is None or isinstance(error, (RuntimeError, CancelledError))
