"""Checks of a copy plan: by CSAN, by running it at its worst, by proof, and for needless waits."""

import contextlib
import functools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, combinations, count, pairwise, starmap
from typing import NamedTuple
from unittest import mock

import torch
from torch.cuda import _gpu_trace

from autopar.transfer.copy_plan import TO_DEVICE, TO_HOST, Rule


class End(NamedTuple):
    """The end of a step, which others wait for."""

    name: str
    number: int


class Step(NamedTuple):
    """Something to do, once what it waits for has ended.

    Args:
        name: What is done; with `number` it is unique in a plan.
        number: Of its chunk; for a step of the caller's, of its item.
        lane: `caller` (the thread), `compute` (its current stream), `stream` (the copies') and
            `host N` (any thread that moves host memory: none waits for another by itself).
            What is on one lane runs in order.
        waits: Ends of steps on other lanes.
        reads: Memory that it reads.
        writes: Memory that it writes.
    """

    name: str
    number: int
    lane: str
    waits: tuple[End, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def end(self) -> End:
        """What others wait for."""
        return End(self.name, self.number)

    def __str__(self) -> str:
        after = ", ".join(f"{name} {number}" for name, number in self.waits) or "nothing"
        return f"{self.lane}: {self.name} {self.number} after {after}"


Plan = tuple[Step, ...]
_LAST = {"free", "take", "use"}  # what a caller does with an item once it went through


class Work(NamedTuple):
    """What a plan is for; `late`: the caller gives every item before it takes the first back."""

    to_host: bool
    chunks: tuple[int, ...]
    slots: int
    late: bool = False

    @property
    def plan(self) -> Plan:
        plan = (to_host_plan if self.to_host else to_device_plan)(self.chunks, self.slots)
        # Plans go item by item, so `free 0` holds `given 1` back. Callers need not do so: with
        # all items under way at once the fewest orders hold, and the ring has to hold alone.
        return tuple(sorted(plan, key=lambda step: step.name in _LAST)) if self.late else plan

    @property
    def items(self) -> list[range]:
        """The numbers of each item's chunks."""
        return [range(*ends) for ends in pairwise(accumulate(self.chunks, initial=0))]

    @property
    def needed(self) -> set[tuple[End, End]]:
        """What has to end before what, from the drawing in `copyplan` and not from its code."""
        into, out = ("copy", "empty") if self.to_host else ("fill", "copy")
        first, last = ("ready", "take") if self.to_host else ("given", "use")
        pairs = set()
        for item, own in enumerate(self.items):
            for k in own:
                pairs |= {
                    (End(first, item), End(into, k)),
                    (End(into, k), End("free", item)),
                    (End(into, k), End(out, k)),
                    (End(out, k), End(last, item)),
                }
                if not self.to_host:
                    pairs.add((End("room", item), End(out, k)))
                if k + self.slots < sum(self.chunks):
                    pairs.add((End(out, k), End(into, k + self.slots)))
        return pairs


def by_csan(work: Work, plan: Plan) -> list[str]:
    """What CSAN says of a plan whose steps are launched in the order given.

    A wait for an event that was not recorded yet is no wait, as on a GPU.
    """
    handler = _event_handler()()
    streams = _numbers(step.lane for step in plan)  # from 1: 0 is the default stream
    pointers = _numbers(name for step in plan for name in (*step.reads, *step.writes))
    events = _numbers(end for step in plan for end in (step.end, *step.waits))
    for stream in streams.values():
        handler._handle_stream_creation(stream)
    for event in events.values():
        handler._handle_event_creation(event)
    errors = []
    for step in plan:
        for end in step.waits:
            handler._handle_event_wait(events[end], streams[step.lane])
        reads, writes = ({pointers[name] for name in names} for names in (step.reads, step.writes))
        found = handler._handle_kernel_launch(
            streams[step.lane], reads, writes, set(), str(step), defaultdict(list)
        )
        errors += [
            f"CSAN: {error.current_access.operator}, {error.previous_access.operator}"
            for error in found
        ]
        handler._handle_event_record(events[step.end], streams[step.lane])
    return errors


@functools.cache
def _event_handler():
    """CSAN's bookkeeping. What imports it begins to trace all calls of CUDA's, for good."""
    with mock.patch.object(torch._C, "_activate_gpu_trace"), contextlib.ExitStack() as block:
        for registry in vars(_gpu_trace).values():
            if isinstance(registry, _gpu_trace.CallbackRegistry):
                block.enter_context(mock.patch.object(registry, "callback_list", []))
        from torch.cuda._sanitizer import EventHandler
    return EventHandler


def run(plan: Plan, choose: Callable[[list[Step]], Step]) -> Plan:
    """Steps as they begin if `choose` picks among those that may; a deadlock leaves some out."""
    lanes: dict[str, deque[Step]] = defaultdict(deque)
    for step in plan:
        lanes[step.lane].append(step)
    ended: set[End] = set()
    begun = []
    while able := [own[0] for own in lanes.values() if own and ended.issuperset(own[0].waits)]:
        step = choose(able)
        begun.append(lanes[step.lane].popleft())
        ended.add(step.end)
    return tuple(begun)


def starve(lanes: set[str]) -> Callable[[list[Step]], Step]:
    """Let these lanes go only when no other can."""
    return lambda able: min(able, key=lambda step: step.lane in lanes)


def on_host(plan: Plan) -> set[str]:
    """The lanes of all threads that move host memory."""
    return {step.lane for step in plan if step.lane.startswith("host")}


def orders(plan: Plan, seeds: int) -> Iterator[Plan]:
    """Runs that starve each lane in turn, then all on the host at once; then runs by chance."""
    for lane in dict.fromkeys(step.lane for step in plan):
        yield run(plan, starve({lane}))
    yield run(plan, starve(on_host(plan)))
    for seed in range(seeds):
        yield run(plan, random.Random(seed).choice)


def wrong_data(work: Work, order: Plan) -> list[str]:
    """Steps that would read wrong data in an order; memory holds numbers of chunks.

    Each item's memory begins with all its chunks. A slot holds one chunk, a result gathers them,
    and memory that is free, or new, holds none.
    """
    memory: dict[str, set[int]] = defaultdict(set)
    errors = []
    for step in order:
        of_chunk = step.name in {"copy", "empty", "fill"}
        data = {step.number} if of_chunk else set(work.items[step.number])
        if of_chunk:
            right = all(data <= memory[name] for name in step.reads)
        else:
            right = not step.reads or data == set().union(*(memory[name] for name in step.reads))
        if not right:
            errors.append(f"wrong data: {step} reads {[memory[name] for name in step.reads]}")
        for name in step.writes:
            kept = memory[name] if of_chunk and name.startswith("result") else set()
            memory[name] = kept | (set() if step.name in {"free", "room"} else data)
    return errors


def before(plan: Plan) -> dict[End, set[End]] | None:
    """All that has ended when a step begins, whatever the times; None if some never begins."""
    directly = {step.end: set(step.waits) for step in plan}
    lanes: dict[str, End] = {}
    for step in plan:
        directly[step.end] |= {lanes[step.lane]} if step.lane in lanes else set()
        lanes[step.lane] = step.end
    history: dict[End, set[End]] = {}
    try:
        for end in TopologicalSorter(directly).static_order():
            near = directly.get(end, set())
            history[end] = near.union(*(history[earlier] for earlier in near))
    except CycleError:
        return None
    return history


def by_running(work: Work, plan: Plan, seeds: int = 3) -> list[str]:
    """The first run that goes wrong: one that stops early, or reads wrong data."""
    for order in orders(plan, seeds):
        if len(order) < len(plan):
            return [f"deadlock after {order[-1] if order else 'nothing'}"]
        if errors := wrong_data(work, order):
            return errors
    return []


def by_proof(work: Work, plan: Plan) -> list[str]:
    """Accesses of one memory that nothing orders, or that are not ordered as they have to be."""
    history = before(plan)
    if history is None:
        return ["deadlock: steps wait for each other in a circle"]
    steps = {step.end: step for step in plan}
    races = [
        f"race: {a}, {b}"
        for a, b in combinations(plan, 2)
        if _meet(a, b) and a.end not in history[b.end] and b.end not in history[a.end]
    ]
    # An order protects only what both touch, so those two have to meet in memory as well.
    wrong = [
        f"order: {a} is not before {b}"
        for a, b in sorted(work.needed)
        if a not in history[b] or not _meet(steps[a], steps[b])
    ]
    return races + wrong


def by_need(work: Work, plan: Plan) -> list[str]:
    """Waits that no memory asks for: they race with nothing, and cost overlap."""
    needed = work.needed
    return [
        f"needless: {step} need not wait for {end}"
        for step in plan
        for end in step.waits
        if (end, step.end) not in needed
    ]


CHECKS = {"CSAN": by_csan, "running": by_running, "proof": by_proof, "need": by_need}


def _numbers(names: Iterator[object]) -> dict[object, int]:
    return dict(zip(dict.fromkeys(names), count(1), strict=False))


def _meet(a: Step, b: Step) -> bool:
    return not {*a.reads, *a.writes}.isdisjoint(b.writes) or not set(a.writes).isdisjoint(b.reads)


# -- every step that the rules make of given chunks -----------------------------------------------


def to_host_plan(chunks: Sequence[int], slots: int) -> tuple[Step, ...]:
    """Every step of copying items to the host, the caller's too, in an order that can be run.

    Args:
        chunks: How many chunks each item has, at least one.
        slots: How many slots the ring has.
    """
    steps: list[Step] = []
    for item, own in enumerate(_numbered(chunks)):
        steps.append(Step("ready", item, "compute", (), writes=(f"source {item}",)))
        steps += _steps(TO_HOST, item, own, slots)
        taken = tuple(End("empty", chunk) for chunk in own)
        arrived = tuple(f"chunk {chunk}" for chunk in own)
        last = End("copy", own[-1])
        steps.append(Step("free", item, "compute", (last,), writes=(f"source {item}",)))
        steps.append(Step("take", item, "caller", taken, reads=arrived))
    return tuple(steps)


def to_device_plan(chunks: Sequence[int], slots: int) -> tuple[Step, ...]:
    """Every step of copying items to the device, the caller's too, in an order that can be run.

    Args:
        chunks: How many chunks each item has, at least one.
        slots: How many slots the ring has.
    """
    steps: list[Step] = []
    for item, own in enumerate(_numbered(chunks)):
        source, result = f"source {item}", f"result {item}"
        steps.append(Step("given", item, "caller", (), writes=(source,)))
        steps.append(Step("room", item, "compute", (), writes=(result,)))
        steps += _steps(TO_DEVICE, item, own, slots)
        filled = tuple(End("fill", chunk) for chunk in own)
        steps.append(Step("free", item, "caller", filled, writes=(source,)))
        last = End("copy", own[-1])
        steps.append(Step("use", item, "compute", (last,), reads=(result,)))
    return tuple(steps)


def _steps(rules: tuple[Rule, Rule], item: int, chunks: range, slots: int) -> Iterator[Step]:
    """The steps of an item's chunks."""
    for chunk in chunks:
        memory = {
            "source": f"source {item}",
            "slot": f"slot {chunk % slots}",
            "chunk": f"chunk {chunk}",
            "result": f"result {item}",
        }
        for rule, before in zip(rules, (chunk - slots, chunk), strict=True):
            callers = rule.item_step(first=chunk == chunks[0])
            waits = [End(callers, item)] if callers else []
            if before >= 0:
                waits.append(End(rule.slot, before))
            lane = rule.lane if rule.lane == "stream" else f"{rule.lane} {chunk}"
            reads, writes = (memory[rule.reads],), (memory[rule.writes],)
            yield Step(rule.name, chunk, lane, tuple(waits), reads, writes)


def _numbered(chunks: Sequence[int]) -> Iterator[range]:
    """The numbers of each item's chunks, counted over all of the ring."""
    return starmap(range, pairwise(accumulate(chunks, initial=0)))
