"""Run task graphs under CSAN, torch's finder of races between streams; print as JSON what it says.

Random graphs over two GPUs and the CPU that must have none, then races made on purpose. What
CSAN can't see is listed in transfer_csan.py. Its bookkeeping takes about a second for a graph.

Usage: python graph_csan.py FIRST_SEED SEEDS
"""

import functools
import random
import sys
from pathlib import Path
from unittest import mock

import torch
from transfer_csan import Shown, main, new_dispatch, reports_of

from autopar import TaskGraph

sys.path.insert(0, str(Path(__file__).parents[1]))
from graph_checks import Case, around_calls
from graph_programs import LABELS, Program


def random_graph(program):
    """Run a random graph behind what computes its inputs; tell what came out wrong."""
    case = Case(program, on=lambda x, home: x.to(home))
    source = {home: buffer + 1 for home, buffer in case.buffers.items()}
    for home, buffer in case.buffers.items():
        torch.sub(source[home], 1, out=buffer)
    return case.wrong(case.graph.run().__getitem__)


# -- races made on purpose: programs that are well as long as streams wait for events --------------


def branches(graph, x):
    """Two tasks can't be on the stream of the one before."""
    before = graph.add(torch.add, x, 1)
    for _ in range(3):
        graph.add(torch.mul, before, 2)


def writing(graph, x):
    """The reader's stream goes on with something else, so that the writer is on another."""
    graph.add(torch.neg, graph.add(torch.add, x, 1), cost_s=2)
    graph.add(torch.Tensor.add_, x, 1, writes=[x], cost_s=1)


def across(graph, x):
    graph.add(torch.mul, graph.add(torch.add, x, 1), 2, device="cuda:1")


def to_host(graph, x):
    graph.add(torch.mul, graph.add(torch.add, x, 1), 2, device="cpu")


def from_host(graph, x):
    """Many, for a thread that has copied its last waits for the stream, and so for all copies."""
    for _ in range(20):
        graph.add(torch.mul, torch.ones(1000), 2, device="cuda:0")


def independent(graph, x):
    """One may be on the caller's own stream, but not all."""
    for _ in range(3):
        graph.add(torch.add, x, 1)


RACES = {
    "branches don't wait": branches,
    "a writer doesn't wait for a reader": writing,
    "copies between GPUs don't wait": across,
    "copies to the host don't wait": to_host,
    "copies from the host aren't waited for": from_host,
    "the caller's work isn't waited for": independent,
}


def ran(build, computed):
    """Run a graph on a tensor that is there already, or is still computed."""
    x = torch.ones(1000, device="cuda:0")
    graph = TaskGraph(streams=4)
    build(graph, x)
    if computed:
        x.fill_(2)
    else:
        torch.cuda.synchronize()
    graph.run()


def races(handler):
    """How many reports each program gives as it is, and without the waits."""
    found = {}
    for name, build in RACES.items():
        program = functools.partial(ran, build, build is independent)
        without, _ = reports_of(handler, program)
        with mock.patch.object(torch.cuda.Stream, "wait_event", return_value=None):
            with_it, _ = reports_of(handler, program)
        found[name] = without, with_it
    return found


def findings(first, count):
    """Everything, from a thread other than the main one, which polls: CSAN sees only waits."""
    dispatch, seen, graphs = new_dispatch(), [], []
    handler = dispatch.event_handler
    # CSAN sees tasks and copies, as the caller's modes hold in its graphs.
    with Shown(dispatch), around_calls(seen.append):
        torch.zeros(1, device="cuda:0")
        for seed in range(first, first + count):
            program = Program(random.Random(seed), LABELS, homes=LABELS)
            before = len(seen)
            reports, wrong = reports_of(handler, functools.partial(random_graph, program))
            all_seen = len(seen) - before >= len(program.steps)  # copies, too
            graphs.append({"reports": reports, "equal": wrong == [], "all_seen": all_seen})
        return {"graphs": graphs, "races": races(handler), "trouble": handler.trouble}


if __name__ == "__main__":
    main(functools.partial(findings, *map(int, sys.argv[1:])))
