"""Plans of copies against every order of events, and mutants of them that have to be caught."""

from collections import Counter
from itertools import chain, pairwise, product

import pytest
from copyplan_checks import CHECKS, End, Step, Work, before
from hypothesis import strategies as st
from random_cases import hold_for_all
from sampling import every

from autopar.transfer.copy_plan import packs

_CHUNKS = ((1,), (7,), (1, 1, 1, 1, 1), (3, 1, 4), (1, 6), (2, 2, 2, 2))
_WORKS = [Work(*each) for each in product((True, False), _CHUNKS, range(1, 6), (False, True))]
_MUTATED = [
    Work(*each)
    for each in product((True, False), ((1, 1, 1), (5,), (3, 1, 2)), (1, 2, 3), (False, True))
]


def name_of(work):
    way = "to host" if work.to_host else "to device"
    return f"{way}, {'+'.join(map(str, work.chunks))} by {work.slots}{', late' * work.late}"


every_work = pytest.mark.parametrize("work", every(7, _WORKS, name_of))


@every_work
def test_waits_are_for_steps_of_other_lanes_that_are_listed_before(work):
    lanes = {}
    for step in work.plan:
        assert step.end not in lanes, "two steps have one name"
        assert all(lanes[end] != step.lane for end in step.waits)
        lanes[step.end] = step.lane


@every_work
@pytest.mark.parametrize("check", CHECKS)
def test_every_check_passes_a_plan(work, check):
    assert CHECKS[check](work, work.plan) == []


# Mutants: a plan with one mistake. None is left out because it passes, but some are no mistake:
# what has the same order and memory is the same plan (see `mutants`), and two steps of one lane
# that nothing leans on may go either way (see `with_steps_swapped`).


def with_step(plan, changed):
    return tuple(changed if step.end == changed.end else step for step in plan)


def with_waits_replaced(plan, kind, others):
    """Each wait in turn, replaced by each of `others(step, end)`: tuples of ends."""
    for step in plan:
        for i, end in enumerate(step.waits):
            for other in others(step, end):
                waits = step.waits[:i] + other + step.waits[i + 1 :]
                yield kind, with_step(plan, step._replace(waits=waits))


def with_a_wait_dropped(plan):
    return with_waits_replaced(plan, "dropped wait", lambda step, end: [()])


def with_a_wrong_event(plan):
    ends = {step.end for step in plan}

    def neighbours(step, end):
        near = (End(end.name, end.number - 1), End(end.name, end.number + 1))
        return [(each,) for each in near if each in ends]

    return with_waits_replaced(plan, "wrong event", neighbours)


def with_a_slot_freed_early(plan, work):
    """A slot counts as free when what went into it is whole, or when the slot before is free."""
    into, out = ("copy", "empty") if work.to_host else ("fill", "copy")

    def earlier(step, end):
        if (step.name, end.name) != (into, out):
            return []
        before_it = [(End(out, end.number - 1),)] if end.number > 0 else []
        return [(End(into, end.number),), *before_it]

    return with_waits_replaced(plan, "slot freed early", earlier)


def with_a_wrong_slot(plan, work):
    if work.slots == 1:
        return  # there is no other
    for step in plan:
        for side in ("reads", "writes"):
            names = getattr(step, side)
            if names and names[0].startswith("slot"):
                wrong = f"slot {(int(names[0].split()[1]) + 1) % work.slots}"
                yield "wrong slot", with_step(plan, step._replace(**{side: (wrong,)}))


def with_records_swapped(plan):
    """Who waits for one of two steps waits for the other: neighbours, and both of one chunk."""
    ends = {step.end for step in plan}
    pairs = [(end, End(end.name, end.number + 1)) for end in ends]
    pairs += [(End("copy", end.number), end) for end in ends if end.name in {"empty", "fill"}]
    for one, other in sorted(pair for pair in pairs if ends.issuperset(pair)):
        swapped = {one: other, other: one}
        waits = [tuple(swapped.get(end, end) for end in step.waits) for step in plan]
        mutant = (step._replace(waits=own) for step, own in zip(plan, waits, strict=True))
        yield "swapped records", tuple(mutant)


def with_steps_swapped(plan, work):
    """Two steps of one lane the other way round, where that is a mistake.

    An item's first copy waits for the memory on behalf of the others, and its last one is waited
    for on their behalf. Copies in between may go either way, and so may items, as long as there
    is another slot. On other lanes an item's steps have an order, but items have none.
    """
    at = {step.end: i for i, step in enumerate(plan)}
    copies = [
        (End("copy", one), End("copy", other))
        for own in work.items
        for one, other in pairwise(own)
        if work.slots == 1 or one == own[0] or other == own[-1]
    ]
    if work.slots == 1:
        copies += [(End("copy", own[0] - 1), End("copy", own[0])) for own in work.items[1:]]
    around = [("ready", "free")] if work.to_host else [("given", "free"), ("room", "use")]
    items = [(End(a, item), End(b, item)) for a, b in around for item in range(len(work.items))]
    for one, other in copies + items:
        swapped = list(plan)
        swapped[at[one]], swapped[at[other]] = plan[at[other]], plan[at[one]]
        yield "swapped steps", tuple(swapped)


def mutants(work):
    plan = work.plan
    history = before(plan)
    for kind, mutant in chain(
        with_a_wait_dropped(plan),
        with_a_slot_freed_early(plan, work),
        with_a_wrong_event(plan),
        with_a_wrong_slot(plan, work),
        with_records_swapped(plan),
        with_steps_swapped(plan, work),
    ):
        # A wait that others imply changes nothing when it goes, nor does one in its place that
        # they imply too: `take` waits for every chunk of an item, but the ring orders all of them
        # before the last few. What leaves every step the same history is the same plan.
        if kind == "wrong slot" or before(mutant) != history:
            yield kind, mutant


@pytest.fixture(scope="module", params=every(2, [_MUTATED[::5], _MUTATED], len))
def mutated(request):
    return request.param


@pytest.fixture(scope="module")
def caught(mutated):
    """Each mutant's kind, and the checks that catch it."""
    found = {}
    for work in mutated:
        for kind, mutant in mutants(work):
            if mutant not in found:
                found[mutant] = kind, {name for name, find in CHECKS.items() if find(work, mutant)}
    return found


def test_every_mutant_is_caught(caught, mutated):
    kinds = Counter(kind for kind, _ in caught.values())
    print(len(caught), "mutants:", dict(kinds))
    assert len(caught) >= 50 * len(mutated)
    assert len(kinds) == 6
    assert min(kinds.values()) >= 3 * len(mutated)
    assert not caught.keys() & {work.plan for work in _MUTATED}
    assert not [mutant for mutant, (_, checks) in caught.items() if not checks]


def test_the_proof_catches_most(caught):
    count = sum("proof" in checks for _, checks in caught.values())
    print("proof:", count / len(caught))  # measured: 0.91
    assert count >= 0.9 * len(caught)


def test_what_the_proof_allows_waits_for_too_much(caught):
    """A wait for a later event on the same lane is safe once it runs, but delays."""
    safe = [(kind, checks) for kind, checks in caught.values() if "proof" not in checks]
    assert {kind for kind, _ in safe} == {"wrong event", "swapped records"}
    assert all("need" in checks for _, checks in safe)


def test_a_step_says_what_it_waits_for():
    waits = (End("ready", 1), End("empty", 0))
    assert str(Step("copy", 2, "stream", waits)) == "stream: copy 2 after ready 1, empty 0"
    assert str(Step("ready", 1, "compute", ())) == "compute: ready 1 after nothing"


def test_what_is_larger_than_a_slot_goes_alone():
    blocks = packs([8, 4096, 0, 2048, 1024], capacity_bytes=1024)
    assert [pack.members for pack in blocks] == [[0], [1], [2], [3], [4]]


def test_packs_of_any_sizes_fit_keep_their_order_and_waste_no_room():
    def check(sizes, capacity):
        blocks = list(packs(iter(sizes), capacity))
        assert [member for pack in blocks for member in pack.members] == list(range(len(sizes)))
        for pack in blocks:
            ends = [at + sizes[i] for at, i in zip(pack.offsets, pack.members, strict=True)]
            assert ends[-1] <= capacity or len(pack.members) == 1
            assert [*pack.offsets, pack.size_bytes] == [0, *map(aligned, ends)]
        for pack, after in pairwise(blocks):
            assert pack.size_bytes + sizes[after.members[0]] > capacity

    sizes = st.lists(st.sampled_from((0, 1, 63, 64, 65, 200, 999)), max_size=12)
    capacities = st.sampled_from((0, 64, 100, 256, 500, 512))
    hold_for_all(check, sizes, capacities, share=0, examples=300)


def aligned(size_bytes):
    return -(-size_bytes // 64) * 64
