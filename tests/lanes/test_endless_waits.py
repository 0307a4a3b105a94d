"""Waits that could never end: each is refused, and no other is."""

import contextlib
import threading

import pytest
from lane_forms import WAIT_S, caught

from autopar import TaskGraph, cpu_lane

pytestmark = pytest.mark.usefixtures("forms_run_in_time")


@pytest.mark.parametrize("wait", ["result", "wait", "span", "lane", "leaving"])
@pytest.mark.parametrize("whom", ["itself", "later"])
def test_a_task_that_waits_for_its_own_lane_is_refused(gate, wait, whom):
    def impatient():
        gate()
        handle = known[whom]
        if wait == "span":
            return handle.span
        if wait == "leaving":
            return lane.__exit__(None, None, None)
        return (lane.wait if wait == "lane" else getattr(handle, wait))()

    with cpu_lane() as lane:
        known = {"itself": lane.submit(impatient), "later": lane.submit(int)}
        gate.open()
        with pytest.raises(RuntimeError, match="of its own lane"):
            known["itself"].result()


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("how", ["result", "after", "lane"])
def test_lanes_whose_tasks_wait_for_each_other_are_refused(count, how):
    """Each lane's task waits for the next lane's: the last to begin closes the circle."""
    barrier = threading.Barrier(count + 1)  # none goes on before all are known

    def ring(i):
        barrier.wait(WAIT_S)
        following = (i + 1) % count
        if how == "result":
            return handles[following].result()
        if how == "lane":
            return lanes[following].wait()
        return lanes[following].submit(int, after=[handles[i]], name="after it").result()

    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(cpu_lane(name=f"lane {i}")) for i in range(count)]
        handles = [lane.submit(ring, i) for i, lane in enumerate(lanes)]
        barrier.wait(WAIT_S)
        found = [caught(handle.result) for handle in handles]
        for lane in lanes:
            with contextlib.suppress(RuntimeError):
                lane.wait()
    refused = [each for each in found if isinstance(each, RuntimeError)]
    assert any(
        "No such wait can end" in "".join(map(str, (each, each.__cause__))) for each in refused
    )


def test_a_wait_in_one_direction_is_no_circle(gate):
    with cpu_lane() as one, cpu_lane() as other, cpu_lane() as third:
        first = one.submit(gate, 1)
        second = other.submit(lambda: first.result() + 1)
        later = third.submit(lambda: first.result() + second.result())
        gate.open()
        assert later.result() == 3


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("ask", ["a later one", "itself", "the run", "the graph"])
def test_a_task_that_asks_its_own_run_is_refused(gate, lanes, ask):
    def asks():
        gate()
        known = {"a later one": later, "itself": task}
        waits = {"the run": runs[0].wait, "the graph": graph.waitall}
        return runs[0][known[ask]] if ask in known else waits[ask]()

    runs, graph = [], TaskGraph(cpu_lanes=lanes)
    task = graph.add(asks)
    later = graph.add(abs, -1)
    refused = pytest.raises(RuntimeError, match="of the same run|of its own lane")
    with refused, graph.start() as run:
        runs.append(run)
        gate.open()


def test_a_task_that_waits_for_a_lane_that_asks_its_run_is_refused(gate):
    """Over the wait of another task of the run, too: of the one asked for, for this one."""

    def asks():
        gate()
        return lane.submit(lambda: runs[0][last]).result()

    runs, graph = [], TaskGraph(cpu_lanes=2)
    first = graph.add(asks)
    last = graph.add(lambda x, y: (x, y), first, graph.add(abs, -1))
    refused = pytest.raises(RuntimeError, match="No such wait can end")
    with cpu_lane() as lane, refused, graph.start() as run:
        runs.append(run)
        gate.open()
