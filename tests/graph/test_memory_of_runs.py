"""What runs keep: results that nobody can ask for go once they are read."""

import gc
import time
import weakref

import pytest
import torch
from graph_checks import around_calls

from autopar import TaskGraph
from autopar.graph.execution import Execution
from autopar.lanes.handle import awaited

RUNS = ["run", "run_serial"]


def test_runs_that_have_failed_are_not_kept():
    def fails(_):
        raise ValueError("a bad batch")

    def left():
        gc.collect()
        return sum(type(each) is Execution for each in gc.get_objects())

    graph = TaskGraph(cpu_lanes=2)
    graph.add(fails, graph.add(torch.ones, 3), writes=())
    before = left()
    for ask in (graph.run, graph.run_serial, graph.check):
        for _ in range(3):
            with pytest.raises(ValueError, match="a bad batch"):
                ask()
    assert left() == before


class Seen:
    """Results of calls, by weak references, and how many of them are there at each call."""

    def __init__(self):
        self.results, self.alive = [], []

    def look(self, result):
        self.alive.append(sum(seen() is not None for seen in self.results))
        self.results.append(weakref.ref(result.untyped_storage()))
        return result


@pytest.fixture
def seen():
    seen = Seen()
    with around_calls(after=seen.look):
        yield seen


def chain(x):
    for _ in range(8):
        x = x * 2 + 1
    return x


def test_traced_code_keeps_no_more_than_eager_code_does(seen):
    graph, result = TaskGraph.trace(chain, torch.ones(3))
    run = graph.run()
    assert run[result].tolist() == chain(torch.ones(3)).tolist()
    assert max(seen.alive) == 1  # what the next operator reads
    assert sum(one() is not None for one in seen.results) == 1


def test_results_go_with_their_run(seen):
    """At once, as no circle of objects keeps them until Python looks for such."""
    graph, _ = TaskGraph.trace(chain, torch.ones(3))
    gc.disable()
    try:
        graph.run()
        assert all(one() is None for one in seen.results)
    finally:
        gc.enable()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("run", RUNS)
def test_what_can_be_asked_for_is_kept_of_traced_code_and_of_tasks_beside_it(run, lanes):
    def code(x):
        halves = [x[:2] * 3, x[2:] * 5]
        return halves, {"sum": torch.cat(halves).sum()}, x

    x = torch.arange(4.0)
    graph = TaskGraph(cpu_lanes=lanes)
    doubled = graph.add(torch.mul, x, 2)
    result = graph.add_traced(code, x)
    after = graph.add(torch.sub, doubled, result[1]["sum"])
    done = getattr(graph, run)()
    (low, high), found, same = done[result]
    assert (low.tolist(), high.tolist(), found) == ([0, 3], [10, 15], {"sum": 28})
    assert same is x
    assert done[after].tolist() == [-28, -26, -24, -22]


def test_one_lane_keeps_the_order_of_the_program():
    """So that no more is there at once than the program has."""
    graph = TaskGraph(cpu_lanes=1)
    tasks = [graph.add(torch.ones, 1, name=f"t{n}", cost_s=float(n % 3)) for n in range(9)]
    entries = graph.plan().schedule.entries
    assert [entry.job for entry in entries] == [task.number for task in tasks]


def test_operators_are_not_cast_by_the_autocast_of_a_run():
    """Nor those that they are made of: what was cast when the code was traced is in the trace."""
    theta, x = torch.randn(1, 2, 3), torch.randn(4, 4, dtype=torch.double).float()
    codes = [
        lambda: torch.nn.functional.affine_grid(theta, [1, 1, 2, 2], align_corners=False),
        lambda: torch.linalg.pinv(x),
        lambda: torch.cdist(x, x),
        lambda: torch.nn.functional.bilinear(x, x, torch.ones(2, 4, 4)),
    ]
    for code in codes:
        graph, result = TaskGraph.trace(code)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = graph.run()[result]
        torch.testing.assert_close(got, code(), rtol=0, atol=0)


@pytest.mark.parametrize("way", ["run", "start"])
def test_results_go_with_their_run_also_if_somebody_had_to_wait_for_them(way):
    def once_awaited(x):  # by the lane beside, and by who asks for the whole
        until_s = time.monotonic() + 60
        while len(awaited) < 2 and time.monotonic() < until_s:
            time.sleep(1e-3)
        return x + len(awaited)

    graph, x = TaskGraph(cpu_lanes=2), torch.ones(3)
    both = graph.add(torch.add, x, 1), graph.add(once_awaited, x, writes=())
    ends = [graph.add(torch.add, *both) for _ in range(2)]
    gc.collect()
    gc.disable()
    try:
        if way == "run":
            run = graph.run()
        else:
            with graph.start() as run:
                run[ends]
        kept = [weakref.ref(run[end].untyped_storage()) for end in ends]
        assert [run[end].tolist() for end in ends] == [[5.0] * 3] * 2
        del run
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()
