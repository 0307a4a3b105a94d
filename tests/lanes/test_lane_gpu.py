"""Lanes on GPUs: waits, memory, spans and leaving, with work that is late on purpose."""

import contextlib
import functools
import random
import threading
import time

import pytest
import torch
from lane_forms import WAIT_S, equals, lane_on

from autopar import cpu_lane, cuda_lane, timeline_of_handles
from autopar.device import gpu, synchronize
from autopar.lanes import clock

pytestmark = pytest.mark.gpu
_N = 2**20
_two = pytest.mark.gpu(2)
_ON_GPUS = [("cuda:0", "cuda:0"), pytest.param("cuda:0", "cuda:1", marks=_two)]
_ON_GPUS.append(pytest.param("cuda:1", "cuda:0", marks=_two))
_PAIRS = [*_ON_GPUS, ("cuda:0", "cpu"), ("cpu", "cuda:0")]
_PAIRS += [pytest.param("cuda:1", "cpu", marks=_two), pytest.param("cpu", "cuda:1", marks=_two)]


@pytest.fixture
def late(spin):
    """A task that writes late: whoever does not wait for it reads what was there before."""

    def late(buffer, value, ms):
        if buffer.is_cuda:
            spin(ms)
        else:
            time.sleep(ms / 1e3)
        return buffer.fill_(value)

    return late


@pytest.fixture
def moved(spin):
    """A task that reads late, from wherever the tensor is: its source must still be there."""

    def moved(x, place, ms):
        if place != "cpu":
            spin(ms)
        return x.to(place, non_blocking=True) * 2

    return moved


# -- waits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), _PAIRS)
@pytest.mark.parametrize("delayed", ["first", "second", "neither"])
def test_results_pass_between_lanes(late, moved, first, second, delayed):
    rounds = 10
    buffers = [torch.zeros(_N, device=first) for _ in range(rounds)]
    synchronize()
    write_ms, read_ms = (5 if delayed == each else 0 for each in ("first", "second"))
    with lane_on(first) as one, lane_on(second) as other:
        results = []
        while buffers:
            value = float(len(buffers))
            written = one.submit(late, buffers.pop(), value, write_ms)
            there = other.submit(moved, written, second, read_ms)
            back = one.submit(moved, there, first, 0)
            results.append((back, 4 * value))
            del written, there
        for back, expected in results:
            assert equals(back.result(), expected)


@pytest.mark.parametrize(("first", "second"), _ON_GPUS)
def test_after_orders_what_shares_memory(late, first, second):
    buffer = torch.zeros(_N, device=first)
    synchronize()
    with lane_on(first) as one, lane_on(second) as other:
        last = []
        for i in range(1, 11):
            written = one.submit(late, buffer, float(i), 3, after=last)
            last = [other.submit(lambda: buffer.to(second, copy=True), after=[written])]
            assert equals(last[0].result(), i)


_COPY = functools.partial(torch.Tensor.to, copy=True)
_REACHES = {
    "argument": lambda x, place: (_COPY, x, place),
    "container": lambda x, place: (lambda xs: _COPY(xs["x"][0], place), {"x": [x]}),
    "closure": lambda x, place: (lambda: _COPY(x, place),),
    "default": lambda x, place: (lambda x=x: _COPY(x, place),),
    "partial": lambda x, place: (functools.partial(_COPY, x, place),),
    "bound": lambda x, place: (functools.partial(x.to, place, copy=True),),
    "global": lambda x, place: (eval("lambda: f(x, place)", {"f": _COPY, "x": x, "place": place}),),
}


@pytest.mark.parametrize("reach", _REACHES.values(), ids=_REACHES)
@pytest.mark.parametrize("on", ["default stream", "side stream"])
@pytest.mark.parametrize(
    ("place", "index"),
    [
        *(("cuda:0", 0), ("cpu", 0)),
        *(pytest.param(*pair, marks=_two) for pair in (("cuda:0", 1), ("cuda:1", 0), ("cpu", 1))),
    ],
)
def test_what_the_submitter_has_under_way_is_waited_for(spin, place, index, on, reach):
    default, side = torch.cuda.default_stream(index), torch.cuda.Stream(index)
    with lane_on(place) as lane, torch.cuda.stream(side if on == "side stream" else default):
        x = torch.zeros(_N, device=gpu(index))
        spin(30)
        x += 7
        assert equals(lane.submit(*reach(x, place)).result(), 7)


def test_a_result_is_done_when_it_is_there_and_not_before(late):
    buffer = torch.zeros(_N, device="cuda:0")
    arrived = []
    with cuda_lane(0) as lane:
        handle = lane.submit(late, buffer, 1.0, 200)
        assert not handle.done()
        waiting = threading.Thread(target=lambda: arrived.append(equals(handle.result(), 1)))
        waiting.start()
        assert equals(handle.result(), 1)
        assert handle.done()
        waiting.join(WAIT_S)
        assert arrived == [True]


def test_a_cpu_lanes_result_is_there_even_if_its_copy_did_not_block(spin):
    x = torch.full((_N,), 7.0, device="cuda:0")
    torch.zeros(_N, pin_memory=True)  # the pinned memory that the copy will get

    def fetch(x):
        spin(30)
        return x.to("cpu", non_blocking=True)

    with cpu_lane() as worker, cuda_lane(0) as lane:
        for source in (x, lane.submit(torch.clone, x)):
            assert equals(worker.submit(fetch, source).result(), 7)


def test_a_cpu_lane_does_not_wait_for_a_gpu_that_its_task_does_not_use(spin):
    with cpu_lane() as worker:
        spin(200)
        busy = torch.cuda.current_stream(0)
        assert worker.submit(int).result() == 0
        assert not busy.query(), "it waited for its submitter's kernels"
    torch.cuda.synchronize(0)


def test_waiting_for_a_lane_covers_its_stream(spin):
    with cuda_lane(0) as lane:
        lane.submit(spin, 50)
        lane.wait()
        assert lane._stream.query()


@pytest.mark.parametrize(("first", "second"), _ON_GPUS[:2])
def test_two_lanes_really_run_at_once(spin, first, second):
    with cuda_lane(first) as one, cuda_lane(second) as other:
        handles = [lane.submit(spin, 30) for lane in (one, other)]
        timeline = timeline_of_handles(handles)
    assert timeline.overlap_s(one.name, other.name) > 0


def test_random_graphs_give_what_the_serial_twin_gives(spin):
    chance = random.Random(2026)
    places = ["cpu", "cuda:0", "cuda:0", "cuda:1" if torch.cuda.device_count() > 1 else "cuda:0"]

    def node(place, number, turns, *sources):
        if place != "cpu" and turns:
            spin(turns / 10)
        total = torch.full((4096,), 0.7 * number, device=place)
        for source in sources:
            total = total * 0.7 + source.to(place)
        return total

    lanes = [lane_on(place) for place in places]
    with lanes[0], lanes[1], lanes[2], lanes[3]:
        for _ in range(200):
            serial, parallel = [], []
            for i in range(chance.randint(3, 12)):
                lane, sources = chance.randrange(4), chance.sample(range(i), min(i, 2))
                task = (places[lane], i + 1, chance.choice((0, 0, 0, 5)))
                serial.append(node(*task, *(serial[source] for source in sources)))
                handles = [parallel[source] for source in sources]
                parallel.append(lanes[lane].submit(node, *task, *handles))
            for expected, handle in zip(serial, parallel, strict=True):
                assert torch.equal(handle.result(), expected)


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("made_by", ["the caller", "another lane"])
def test_a_source_freed_after_submitting_is_not_overwritten(moved, made_by):
    def full(value):
        if made_by == "the caller":
            return torch.full((_N,), value, device="cuda:0")
        return other.submit(torch.full, (_N,), value, device="cuda:0")

    with cuda_lane(0) as lane, cuda_lane(0) as other:
        results = []
        for i in range(20):
            source = full(float(i))
            results.append(lane.submit(moved, source, "cuda:0", 2))
            del source
            other.submit(int).result()  # it moves on, and lets go of the source
            full(-1.0)  # would get its memory
        for i, result in enumerate(results):
            assert equals(result.result(), 2 * i)


def test_a_result_freed_while_the_caller_still_reads_it_is_not_overwritten(spin):
    with cuda_lane(0) as lane:
        for i in range(20):
            result = lane.submit(torch.full, (_N,), float(i), device="cuda:0").result()
            spin(2)
            read = result + 1
            del result
            lane.submit(int).result()  # the lane moves on, and lets go of the result
            lane.submit(torch.full, (_N,), -1.0, device="cuda:0")  # would get its memory
            assert equals(read, i + 1)


# -- spans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recalibrated", [False, True])
@pytest.mark.parametrize("device", [0, pytest.param(1, marks=_two)])
def test_a_span_lies_between_the_hosts_readings(spin, monkeypatch, device, recalibrated):
    if recalibrated:
        clock._clocks.clear()
    with cuda_lane(device, kind="copy") as lane:
        lane.submit(spin, 1).result()
        before_s = time.perf_counter()
        handle = lane.submit(spin, 20, name="spin")
        handle.result()
        after_s = time.perf_counter()
        span, error_s = handle.span, handle.alignment_error_s
    assert 0 < error_s < 100e-6
    assert before_s - error_s <= span.start_s <= span.end_s <= after_s + error_s
    assert span.duration_s > 10e-3
    assert (span.name, span.lane, span.kind) == ("spin", lane.name, "copy")
    assert timeline_of_handles([handle]).alignment_error_s == error_s


@pytest.mark.parametrize(("first", "second"), _PAIRS)
def test_a_dependents_span_starts_after_the_end_of_what_it_waits_for(spin, first, second):
    def work(_=None):
        return spin(5) if torch.cuda.current_stream() != torch.cuda.default_stream() else None

    with lane_on(first) as one, lane_on(second) as other:
        before = one.submit(work)
        after = other.submit(work, before)
        error_s = before.alignment_error_s + after.alignment_error_s
        assert before.span.end_s <= after.span.start_s + error_s
        assert after.span.start_s <= after.span.end_s


# -- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in peace", "by an exception", "a task failed", "and more came"])
def test_kernels_do_not_outlive_their_lane_however_it_is_left(spin, gate, open_soon, how):
    def fail():
        spin(100)
        raise ValueError("on purpose")

    with contextlib.suppress(ZeroDivisionError), cpu_lane() as worker, cuda_lane(0) as lane:
        last = lane.submit(spin, 20)  # not done yet when an error is there
        if how == "in peace":
            last = lane.submit(spin, 100, after=[worker.submit(gate)])  # not launched yet
            open_soon()
        elif how == "by an exception":
            last = lane.submit(spin, 100)
            raise ZeroDivisionError
        else:
            with pytest.raises(ValueError, match="on purpose"):
                lane.submit(fail).result()
            if how == "and more came":
                last = lane.submit(int)
    assert last.done()
    assert lane._stream.query(), "kernels outlived their lane"
