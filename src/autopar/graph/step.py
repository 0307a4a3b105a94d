"""Step: one entry of a plan as a thread does it, with all that is known before the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from autopar.graph.node import Node, Result
from autopar.graph.schedule import Entry


class Step(NamedTuple):
    """What a thread does for one entry of its share.

    Args:
        job: The node's number.
        call: What to call, with values from the memory of the run; none where the node is also to
            be held to what it has said.
        slots: Where in that memory the values are.
        waits: Nodes on other lanes whose ends it waits for.
        done: Nodes whose results nobody needs after it.
        lane: Where it is done.
    """

    job: int
    call: Callable[..., Any] | None
    slots: tuple[int, ...]
    waits: tuple[int, ...]
    done: tuple[int, ...]
    lane: str


class Steps(NamedTuple):
    """The steps of each thread, and what a run's memory holds behind the results of all nodes."""

    of: Mapping[str, list[Step]]
    constants: list[Any]

    @classmethod
    def of_shares(
        cls,
        nodes: Sequence[Node],
        watched: Sequence[object],
        shares: Mapping[str, Sequence[Entry]],
        inner: Collection[int],
        *,
        in_order: bool,
    ) -> Steps:
        """Make the steps of some shares.

        Args:
            nodes: All nodes of the graph.
            watched: By node, what it is held to, if anything.
            shares: By thread what it does, in order.
            inner: Nodes whose results nobody can ask a run for. They go as soon as the last task
                that reads them is behind them on their lane, which no other lane reads them beside.
            in_order: Whether one thread does all, and waits for each before the next.
        """
        constants: list[Any] = []
        done = _done(nodes, shares, inner, in_order=in_order)
        of: dict[str, list[Step]] = {}
        for host, share in shares.items():
            of[host] = []
            for job, lane, waits, *_ in share:
                call, leaves = nodes[job].prepared
                slots = []
                for leaf in leaves:
                    if isinstance(leaf, Result):
                        slots.append(leaf.node)
                    else:
                        slots.append(len(nodes) + len(constants))
                        constants.append(leaf)
                ends = tuple(done.get(job, ()))
                called = None if watched[job] else call
                of[host].append(Step(job, called, tuple(slots), waits, ends, lane))
        return cls(of, constants)


def _done(
    nodes: Sequence[Node],
    shares: Mapping[str, Sequence[Entry]],
    inner: Collection[int],
    *,
    in_order: bool,
) -> dict[int, list[int]]:
    """By node whose results nobody needs after it."""
    lanes: dict[int, set[str]] = {number: set() for number in inner}  # on which it is made or read
    last: dict[int, int] = {}  # who reads it last, or makes it
    for share in shares.values():
        for entry in share:
            reads = [leaf.node for leaf in nodes[entry.job].leaves if isinstance(leaf, Result)]
            for number in (entry.job, *reads):
                if number in lanes:
                    lanes[number].add("" if in_order else entry.lane)
                    last[number] = entry.job
    done: dict[int, list[int]] = {}
    for number, where in lanes.items():
        if len(where) == 1:
            done.setdefault(last[number], []).append(number)
    return done
