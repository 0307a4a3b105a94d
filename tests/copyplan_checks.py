"""Checks of a copy plan: by proof, over every order that it allows, and for needless waits."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

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
        """Every step, the caller's too, in an order that can be run."""
        plan = tuple(step for item, own in enumerate(self.items) for step in self._steps(item, own))
        # Plans go item by item, so `free 0` holds `given 1` back. Callers need not do so: with
        # all items under way at once the fewest orders hold, and the ring has to hold alone.
        return tuple(sorted(plan, key=lambda step: step.name in _LAST)) if self.late else plan

    @property
    def items(self) -> list[range]:
        """The numbers of each item's chunks."""
        return [range(*ends) for ends in pairwise(accumulate(self.chunks, initial=0))]

    def _steps(self, item: int, own: range) -> Iterator[Step]:
        """The caller's steps with an item, and around them those that the rules make."""
        source, result = (f"source {item}",), (f"result {item}",)
        copied = (End("copy", own[-1]),)
        if self.to_host:
            yield Step("ready", item, "compute", (), writes=source)
            yield from self._steps_of_chunks(TO_HOST, item, own)
            yield Step("free", item, "compute", copied, writes=source)
            arrived = tuple(f"chunk {chunk}" for chunk in own)
            emptied = tuple(End("empty", chunk) for chunk in own)
            yield Step("take", item, "caller", emptied, reads=arrived)
        else:
            yield Step("given", item, "caller", (), writes=source)
            yield Step("room", item, "compute", (), writes=result)
            yield from self._steps_of_chunks(TO_DEVICE, item, own)
            filled = tuple(End("fill", chunk) for chunk in own)
            yield Step("free", item, "caller", filled, writes=source)
            yield Step("use", item, "compute", copied, reads=result)

    def _steps_of_chunks(
        self, rules: tuple[Rule, Rule], item: int, chunks: range
    ) -> Iterator[Step]:
        for chunk in chunks:
            memory = {
                "source": f"source {item}",
                "slot": f"slot {chunk % self.slots}",
                "chunk": f"chunk {chunk}",
                "result": f"result {item}",
            }
            for rule, before in zip(rules, (chunk - self.slots, chunk), strict=True):
                callers = rule.item_step(first=chunk == chunks[0])
                waits = [End(callers, item)] if callers else []
                if before >= 0:
                    waits.append(End(rule.slot, before))
                lane = rule.lane if rule.lane == "stream" else f"{rule.lane} {chunk}"
                reads, writes = (memory[rule.reads],), (memory[rule.writes],)
                yield Step(rule.name, chunk, lane, tuple(waits), reads, writes)

    @property
    def needed(self) -> set[tuple[End, End]]:
        """What has to end before what, from the drawing in `copy_plan` and not from its code."""
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


CHECKS = {"proof": by_proof, "need": by_need}


def _meet(a: Step, b: Step) -> bool:
    return not {*a.reads, *a.writes}.isdisjoint(b.writes) or not set(a.writes).isdisjoint(b.reads)
