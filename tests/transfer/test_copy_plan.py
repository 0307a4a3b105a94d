"""Plans of copies against every order of events that they allow; a wrong rule is caught."""

from collections.abc import Iterator
from itertools import accumulate, combinations, pairwise, product
from typing import NamedTuple

import networkx as nx
import pytest
from hypothesis import strategies as st
from random_cases import hold_for_all
from sampling import every

from autopar.transfer.copy_plan import TO_DEVICE, TO_HOST, packs


class End(NamedTuple):
    """The end of a step, which others wait for; the number is its chunk's, or its item's."""

    name: str
    number: int


class Step(NamedTuple):
    """Something to do, once what it waits for has ended.

    A lane is `caller` (the thread), `compute` (its current stream), `stream` (the copies') or
    `host N` (any thread that moves host memory: none waits for another by itself). What is on one
    lane runs in order; waits are for ends of steps on other lanes.
    """

    end: End
    lane: str
    waits: tuple[End, ...]
    reads: tuple[str, ...] = ()
    writes: str | None = None


class Work(NamedTuple):
    """What a plan is for; `late`: the caller gives every item before it takes the first back."""

    to_host: bool
    chunks: tuple[int, ...]
    slots: int
    late: bool = False

    @property
    def items(self) -> list[range]:
        """The numbers of each item's chunks."""
        return [range(*ends) for ends in pairwise(accumulate(self.chunks, initial=0))]

    def plan(self, rules) -> list[Step]:
        """Every step, the caller's too, in an order that can be run."""
        plan = [
            step for item, own in enumerate(self.items) for step in self._steps(rules, item, own)
        ]
        # Plans go item by item, so `free 0` holds `given 1` back. Callers need not do so: with
        # all items under way at once the fewest orders hold, and the ring has to hold alone.
        last = {"free", "take", "use"}  # what a caller does with an item once it went through
        return sorted(plan, key=lambda step: step.end.name in last) if self.late else plan

    def _steps(self, rules, item: int, own: range) -> Iterator[Step]:
        """The caller's steps with an item, and between them those that the rules make."""
        source, result, copied = f"source {item}", f"result {item}", (End("copy", own[-1]),)
        arrived = tuple(f"chunk {chunk}" for chunk in own)
        moved = tuple(End("empty" if self.to_host else "fill", chunk) for chunk in own)
        if self.to_host:
            yield Step(End("ready", item), "compute", (), writes=source)
            yield from self._steps_of_chunks(rules, item, own)
            yield Step(End("free", item), "compute", copied, writes=source)
            yield Step(End("take", item), "caller", moved, reads=arrived)
        else:
            yield Step(End("given", item), "caller", (), writes=source)
            yield Step(End("room", item), "compute", (), writes=result)
            yield from self._steps_of_chunks(rules, item, own)
            yield Step(End("free", item), "caller", moved, writes=source)
            yield Step(End("use", item), "compute", copied, reads=(result,))

    def _steps_of_chunks(self, rules, item: int, own: range) -> Iterator[Step]:
        for chunk in own:
            memory = {"slot": f"slot {chunk % self.slots}", "chunk": f"chunk {chunk}"}
            for rule, before in zip(rules, (chunk - self.slots, chunk), strict=True):
                callers = rule.item_step(first=chunk == own[0])
                waits = [End(callers, item)] if callers else []
                if before >= 0:
                    waits.append(End(rule.slot, before))
                lane = rule.lane if rule.lane == "stream" else f"{rule.lane} {chunk}"
                reads, writes = (memory.get(at, f"{at} {item}") for at in (rule.reads, rule.writes))
                yield Step(End(rule.name, chunk), lane, tuple(waits), (reads,), writes)

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


def orders(plan: list[Step]) -> nx.DiGraph:
    """What ends before what begins, whatever the times."""
    before = nx.DiGraph((end, step.end) for step in plan for end in step.waits)
    for lane in {step.lane for step in plan}:
        nx.add_path(before, [step.end for step in plan if step.lane == lane])
    return before


def meet(a: Step, b: Step) -> bool:
    """Whether both touch some memory, and one of them writes to it."""
    touched = [{*step.reads, step.writes} for step in (a, b)]
    return bool(set.intersection(*touched) & {a.writes, b.writes} - {None})


def faults(work: Work, plan: list[Step]) -> list[str]:
    """Accesses that nothing orders or that are ordered wrongly, and waits that nothing asks for."""
    before, needed = orders(plan), work.needed
    if not nx.is_directed_acyclic_graph(before):
        return ["deadlock: steps wait for each other in a circle"]
    ended = {end: nx.ancestors(before, end) for end in before}
    steps = {step.end: step for step in plan}
    found = [
        f"race: {a}, {b}"
        for a, b in combinations(plan, 2)
        if meet(a, b) and a.end not in ended[b.end] and b.end not in ended[a.end]
    ]
    # An order protects only what both touch, so those two have to meet in memory as well.
    found += [
        f"order: {a} is not before {b}"
        for a, b in sorted(needed)
        if a not in ended[b] or not meet(steps[a], steps[b])
    ]
    waits = [(end, step.end) for step in plan for end in step.waits]
    return found + [
        f"needless: {step} waits for {end}" for end, step in waits if (end, step) not in needed
    ]


_CHUNKS = ((1,), (7,), (1, 1, 1, 1, 1), (3, 1, 4), (1, 6), (2, 2, 2, 2))
_WORKS = [Work(*each) for each in product((True, False), _CHUNKS, range(1, 6), (False, True))]


@pytest.mark.parametrize("work", every(7, _WORKS, str))
def test_a_plan_has_every_order_that_it_needs_and_waits_for_nothing_else(work):
    assert faults(work, work.plan(TO_HOST if work.to_host else TO_DEVICE)) == []


_WRONG = {  # what might stand in a rule instead
    "slot": ("copy", "empty", "fill"),
    "item": (None, "ready", "given", "room", "free", "take", "use"),
    "reads": ("source", "slot", "chunk", "result"),
    "writes": ("source", "slot", "chunk", "result"),
}
_MUTANTS = [
    (rules, number, field, value)
    for rules in (TO_HOST, TO_DEVICE)
    for number in (0, 1)
    for field, values in _WRONG.items()
    for value in values
    if value != getattr(rules[number], field)
]


@pytest.mark.parametrize(("rules", "number", "field", "value"), _MUTANTS)
def test_a_wrong_rule_is_caught(rules, number, field, value):
    wrong = list(rules)
    wrong[number] = wrong[number]._replace(**{field: value})
    works = [Work(rules is TO_HOST, (3, 1, 2), slots, late=True) for slots in (1, 2)]
    assert any(faults(work, work.plan(wrong)) for work in works)


def test_packs_of_any_sizes_fit_keep_their_order_and_waste_no_room():
    def check(sizes, capacity):
        blocks = list(packs(iter(sizes), capacity))
        assert [member for pack in blocks for member in pack.members] == list(range(len(sizes)))
        for pack in blocks:
            ends = [at + sizes[i] for at, i in zip(pack.offsets, pack.members, strict=True)]
            assert ends[-1] <= capacity or len(pack.members) == 1
            assert [*pack.offsets, pack.size_bytes] == [0, *(-(-end // 64) * 64 for end in ends)]
        for pack, after in pairwise(blocks):
            assert pack.size_bytes + sizes[after.members[0]] > capacity

    sizes = st.lists(st.sampled_from((0, 1, 63, 64, 65, 200, 999)), max_size=12)
    capacities = st.sampled_from((0, 64, 100, 256, 500, 512))
    hold_for_all(check, sizes, capacities, share=0, examples=300)
