"""An adversary that runs a plan's lanes one entry at a time, in the orders that it chooses."""

import contextlib
import random
from collections import deque

import networkx as nx
import pytest
import torch
from graph_programs import alike

from autopar.graph.node import Node
from autopar.graph.schedule import Schedule


def ancestors(nodes, number):
    """Numbers of all nodes that one comes after, by way of others too."""
    return nx.descendants(nx.DiGraph({node.number: [*node.before] for node in nodes}), number)


@contextlib.contextmanager
def labels():
    """Take the names of GPUs for labels: all tensors stay on the CPU, and copies are clones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autopar.graph.program.present", torch.device)
        patch.setattr(Node, "_copied", lambda node, tensor: tensor.clone())
        patch.setattr("autopar.graph.schedule._MOST_TRIES", 1)
        yield


@contextlib.contextmanager
def around_calls(before=lambda node: None, after=lambda result: result):
    """Call functions before each task and copy and with what it returns, in its thread."""
    prepared = Node.prepared.func

    def prepared_around(node):
        fn, leaves = prepared(node)

        def called(*args):
            before(node)
            return after(fn(*args))

        return called, leaves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "prepared", property(prepared_around))
        yield


def without_a_wait(schedule):
    """Schedules that each lack one wait, with the number of the job that is waited for."""
    entries = schedule.entries
    for place, entry in enumerate(entries):
        for wait in entry.waits:
            hasty = entry._replace(waits=tuple(other for other in entry.waits if other != wait))
            yield Schedule(schedule.jobs, (*entries[:place], hasty, *entries[place + 1 :])), wait


def simulated(plan, choose):
    """All results, if `choose` picks among the lanes that can go on."""
    lanes = {lane: deque(entries) for lane, entries in plan.schedule.lanes.items()}
    results, done = [None] * len(plan.nodes), set()
    while lanes:
        able = [lane for lane, entries in lanes.items() if done.issuperset(entries[0].waits)]
        assert able, "no lane can go on"
        lane = choose(able)
        entry = lanes[lane].popleft()
        if not lanes[lane]:
            del lanes[lane]
        results[entry.job] = plan.nodes[entry.job].call(results)
        done.add(entry.job)
    return results


class Case:
    """A program's graph, which can be run again and again on the same given tensors."""

    def __init__(self, program, on=lambda tensor, home: tensor):
        self.program = program
        self.fresh = program.buffers()
        self.buffers = {home: on(x.clone(), home) for home, x in self.fresh.items()}
        self.graph, self.values = program.build(self.buffers)
        self.expected, self.expected_buffers = program.expected()

    def reset(self):
        for home, buffer in self.buffers.items():
            buffer.copy_(self.fresh[home])

    def wrong(self, result_of):
        """Which steps' results and which buffers are not what they should be."""
        first = len(self.program.windows)
        values = list(enumerate(zip(self.values, self.expected, strict=True)))[first:]
        steps = [n for n, (task, wanted) in values if not alike(result_of(task), wanted)]
        wanted = self.expected_buffers
        return steps + [home for home, x in self.buffers.items() if not alike(x, wanted[home])]

    def simulate(self, choose, plan=None):
        """What comes out wrong if lanes are chosen so, or the error that it ends with."""
        self.reset()
        try:
            results = simulated(plan or self.graph.plan(), choose)
        except Exception as error:
            return [repr(error)]
        return self.wrong(lambda task: results[task.number])

    def orders(self):
        """Ways to choose among lanes: by chance, and with each lane starved."""
        chance = random.Random(self.program.seed)
        yield chance.choice
        for late in self.graph.plan().schedule.lanes:
            yield lambda able, late=late: chance.choice(
                [lane for lane in able if lane != late] or able
            )
