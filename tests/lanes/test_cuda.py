"""Lanes on streams, as far as a machine without a GPU can show: who launches what, and when.

Streams and events are stand-ins that are done at once and note what they were told to wait for;
what a real GPU makes of that is tested in test_lane_gpu.py.
"""

import threading
from concurrent.futures import CancelledError

import cuda_stand_ins
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_forms import WAIT_S

from autopar import cpu_lane, cuda_lane

pytestmark = pytest.mark.usefixtures("current")


def test_tasks_are_launched_by_their_submitter_in_order():
    ran = []
    with cuda_lane(1, name="left") as lane:
        for i in range(3):
            lane.submit(lambda i: ran.append((i, threading.get_ident())), i)
            assert len(ran) == i + 1
        assert lane.submit(int, name="n").span.lane == "left"
        assert lane.submit(torch.cuda.current_stream).result() is lane._stream
    assert ran == [(i, threading.get_ident()) for i in range(3)]
    assert lane.device == torch.device("cuda:1")


def test_a_stream_waits_for_the_ends_of_other_tasks_and_for_the_submitters_work(current):
    with cuda_lane(0) as one, cuda_lane(1) as other:
        first = one.submit(int)
        other.submit(int)
        assert other._stream.waited == []
        other.submit(abs, first)
        other.submit(int, after=[first])
        assert other._stream.waited == [first._end, first._end]
        current.idle = False
        other.submit(int)
        assert len(other._stream.waited) == 3
        assert isinstance(other._stream.waited[-1], cuda_stand_ins.Event)


def test_what_waits_for_a_cpu_task_is_launched_later_and_in_order(gate):
    ran = []

    def launch(name, _=None):
        ran.append((name, threading.current_thread() is threading.main_thread()))
        return name

    with cpu_lane() as worker, cuda_lane(0) as lane, cuda_lane(1) as other:
        one = lane.submit(launch, "one", worker.submit(gate))
        two = lane.submit(launch, "two")
        three = other.submit(launch, "three", two)
        assert gate.begun.wait(WAIT_S)
        assert ran == []
        assert not any(handle.done() for handle in (one, two, three))
        gate.open()
        assert three.result() == "three"
        assert sorted(ran) == [("one", False), ("three", False), ("two", False)]
        assert [name for name, _ in ran if name != "three"] == ["one", "two"]
        assert lane.submit(launch, "four").result() == "four"


def test_a_task_that_comes_as_the_launching_thread_is_leaving_is_not_left_behind(monkeypatch):
    late = []

    class Launcher(dict):
        def clear(self):
            if not late:  # the queue was found empty, and this thread still counts as launching
                other = threading.Thread(target=lambda: late.append(lane.submit(int)))
                other.start()
                other.join(WAIT_S)
            super().clear()

    with cuda_lane(0) as lane:
        monkeypatch.setattr(lane, "_launcher", Launcher())
        lane.submit(int)
        assert late[0].done()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.lists(st.integers(0, 9)))))
def test_random_graphs_over_lanes_of_both_kinds_give_what_the_serial_twin_gives(tasks):
    def node(turns, *sources):
        total = sum(sources, torch.ones(4, 4))
        for _ in range(turns):  # tasks of different lengths mix up who is done first
            total = torch.tanh(total @ total + turns)
        return total

    serial, handles = [], []
    with cpu_lane() as a, cpu_lane() as b, cuda_lane(0) as c, cuda_lane(1) as d:
        for number, (lane, turns, chosen) in enumerate(tasks):
            sources = [source % number for source in chosen] if number else []
            serial.append(node(turns, *(serial[source] for source in sources)))
            given = [handles[source] for source in sources]
            submit = (a, b, c, d)[lane].submit
            handles.append(submit(node, turns, *given, after=handles[-1:] * (turns % 2)))
        for expected, handle in zip(serial, handles, strict=True):
            assert torch.equal(handle.result(), expected)


def test_left_by_an_exception_it_drops_what_is_not_launched(gate, leave):
    ran = []
    with pytest.raises(ZeroDivisionError), cpu_lane() as worker, cuda_lane(0) as lane:
        held = worker.submit(gate)
        queued = [lane.submit(ran.append, held), lane.submit(ran.append, 1)]
        leave(queued[1])
    assert ran == []
    for handle in queued:
        with pytest.raises(CancelledError, match="dropped"):
            handle.result()


def test_waits_that_could_never_end_are_refused(in_time, gate):
    def run():
        with cuda_lane(0) as lane, cpu_lane() as worker:
            waiting = lane.submit(lambda: lane.submit(int, name="later").result())
            with pytest.raises(RuntimeError, match="'later'.*of its own lane"):
                waiting.result()
            asks = worker.submit(lambda: (gate(), launched.result()))
            launched = lane.submit(int, after=[asks], name="launched after it")
            gate.open()
            with pytest.raises(RuntimeError, match="'launched after it'.*No such wait can end"):
                asks.result()
            with pytest.raises(RuntimeError, match="failed"):
                launched.result()

    in_time(run)


@pytest.mark.parametrize(
    ("device", "match"),
    [(2, "cuda:2, which is not"), ("cpu", "take cpu_lane"), ("meta", "meta")],
)
def test_a_lane_needs_a_gpu_that_is_there(device, match):
    with pytest.raises(ValueError, match=match):
        cuda_lane(device)
    assert cuda_lane().device == torch.device("cuda:0")
