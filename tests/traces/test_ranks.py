"""Ranks side by side: clocks found again, waits by hand, and silence where nothing is certain."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_builder import MS, kernel, trace, work_of

from autopar.timeline.intervals import length_s
from autopar.traces.ranks import compare_ranks, gpus_of, side_by_side
from autopar.traces.read import read_evidence
from autopar.traces.report import Report
from autopar.traces.utilization import View

_TRACES = Path(__file__).parents[1] / "trace_data"
_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_WORLD = "allreduce of group 0, ranks [0, 1, 2]"
_OWN_MS = 0.2  # what a collective takes when the last rank has come


def begun(count=20, ranks=3, *, late=None, seed=0):
    """When each rank begins each collective, in ms: uneven steps, ranks within 50 µs."""
    random = np.random.default_rng(seed)
    steps = np.cumsum(random.uniform(2, 6, count))[:, None]
    by = np.array([(late or {}).get(rank, 0.0) for rank in range(ranks)])
    return steps + random.uniform(0, 0.05, (count, ranks)) + by


def calls(starts_ms, *, of=_WORLD, clocks_ms=(), jitter_ms=0.001, name=_KERNEL, stream="20"):
    """The kernels of each rank: they end when the last one has begun, but for some jitter."""
    count, ranks = starts_ms.shape
    jitter = np.random.default_rng(1).uniform(0, jitter_ms, (count, ranks))
    ends_ms = starts_ms.max(axis=1, keepdims=True) + _OWN_MS + jitter
    clocks = np.array(clocks_ms or [0.0] * ranks)
    named = [of] * count if isinstance(of, str) else of
    options = {"name": name, "kind": "communication", "stream": stream}
    return [
        [
            kernel(start, end, collective=which, **options)
            for start, end, which in zip(starts, ends, named, strict=True)
        ]
        for starts, ends in zip((starts_ms + clocks).T, (ends_ms + clocks).T, strict=True)
    ]


def compared(*works):
    views = {f"rank {i}": View(trace(*work)) for i, work in enumerate(works)}
    return compare_ranks(gpus_of(views))


def test_ranks_of_one_host_share_a_clock_and_who_waited_is_known():
    traces = {
        name: read_evidence(_TRACES / f"allreduce_{name}.json.gz") for name in ("rank0", "rank1")
    }
    assert {work.collective for work in work_of(traces["rank1"])} == {
        *("", "allreduce of group 0, ranks [0, 1]")
    }
    ranks = compare_ranks(gpus_of({name: View(one) for name, one in traces.items()}))
    assert ranks.offsets_s["rank0"] == 0
    assert 0 < abs(ranks.offsets_s["rank1"]) < 1e-5
    assert 1e-6 <= ranks.error_s < 1e-5
    # Rank 0 made its communicator only when rank 1 was in the first all-reduce.
    first, second = ranks.of["rank0"], ranks.of["rank1"]
    assert (first.collectives, second.collectives) == (12, 12)
    assert second.waiting_s == pytest.approx(0.288, abs=1e-3)
    assert second.waiting_s < second.communication_s
    assert first.late_s == pytest.approx(second.waiting_s)
    assert first.waiting_s == pytest.approx(second.late_s)
    assert ranks.stragglers == ()


def test_jitter_is_the_error_and_outliers_do_not_move_a_clock():
    noisy = compared(*calls(begun(100), clocks_ms=(0, 50, 0), jitter_ms=0.04))
    assert 2e-5 < noisy.error_s < 4e-5
    works = calls(begun(100), clocks_ms=(0, 50, 0))
    for i in (10, 60, 80):  # of three in a hundred the end is long after the others
        late = works[1][i]
        works[1][i] = replace(late, span=replace(late.span, end_s=late.span.end_s + 1 * MS))
    ranks = compared(*works)
    assert ranks.offsets_s["rank 1"] == pytest.approx(-50 * MS, abs=1e-6)
    assert ranks.error_s < 2e-6


def test_waits_by_hand():
    starts_ms = begun(5)
    starts_ms[:] = starts_ms[:, :1] + (0.0, 0.3, 1.0)
    ranks = compared(*calls(starts_ms, jitter_ms=0))
    assert ranks.error_s == 1e-6, "no two clocks agree better"
    assert [ranks.of[rank].waiting_s / MS for rank in ranks.of] == pytest.approx([5, 3.5, 0])
    assert [ranks.of[rank].communication_s / MS for rank in ranks.of] == pytest.approx([6, 4.5, 1])
    assert [ranks.of[rank].came_last for rank in ranks.of] == [0, 0, 5]
    assert ranks.of["rank 2"].late_s / MS == pytest.approx(3.5)  # the others, but for 0.3 ms each


def test_a_lead_within_the_error_names_nobody():
    starts_ms = begun()
    starts_ms[:] = starts_ms[:, :1] + (0.0, 0.001, 0.021)  # always last, by 20 µs
    assert compared(*calls(starts_ms, jitter_ms=0.001)).stragglers == ("rank 2",)
    doubtful = compared(*calls(starts_ms, jitter_ms=0.06))
    assert doubtful.stragglers == ()
    assert [its.came_last for its in doubtful.of.values()] == [0, 0, 0]


def test_waits_within_the_error_hide_nobody_who_is_late_by_more():
    """However many they are: of what may be the clocks' own error, nobody was waited for."""
    noise_ms = begun(500, ranks=2)
    late_ms = noise_ms.copy()
    late_ms[::16, 1] += 0.2
    for starts_ms, stragglers in ((late_ms, ("rank 1",)), (noise_ms, ())):
        ranks = compared(*calls(starts_ms, jitter_ms=0.06))
        within_s = np.concatenate([np.ptp(group.starts_s, axis=1) for group in ranks.matched])
        within_s = within_s[within_s <= ranks.error_s]
        assert within_s.sum() > ranks.of["rank 1"].late_s, "in all they are longer"
        assert ranks.stragglers == stragglers


def test_chance_makes_no_straggler():
    slow = {1: 0.4, 2: 0.4}  # each of them comes last in half, a few more or less
    for seed in range(60):
        assert compared(*calls(begun(ranks=4, late=slow, seed=seed))).stragglers == ()
        assert compared(*calls(begun(ranks=2, seed=seed))).stragglers == ()
    starts_ms = begun(400, ranks=2)
    starts_ms[:250, 1] += 0.4  # one phase of the program
    starts_ms[250:, 0] += 0.4
    assert compared(*calls(starts_ms)).stragglers == (), "five of eight are not most"
    assert compared(*calls(begun(12, ranks=2, late={1: 0.4}))).stragglers == ("rank 1",)
    few = compared(*calls(begun(9, ranks=2, late={1: 0.4})))
    assert few.of["rank 1"].came_last == 9
    assert few.stragglers == (), "nine of nine may be chance"


@pytest.mark.parametrize("more", [1, 2, 7])
def test_a_straggler_is_named_however_many_collectives_follow_and_by_turns_nobody_is(more):
    def followed(starts_ms):
        """What ranks begin together, each time after what they came late to."""
        starts_ms = starts_ms + 3 * np.arange(len(starts_ms))[:, None]
        noise_ms = np.random.default_rng(2).uniform(0, 0.01, (more, *starts_ms.shape))
        after_ms = starts_ms.max(axis=1, keepdims=True) + 0.25
        after_ms = [after_ms + 0.25 * i + noise for i, noise in enumerate(noise_ms)]
        return compared(*calls(np.stack([starts_ms, *after_ms], axis=1).reshape(-1, 3)))

    late = followed(begun(40, late={1: 2}))
    assert late.stragglers == ("rank 1",)
    assert late.of["rank 1"].came_last < 0.7 * late.of["rank 1"].collectives
    turns_ms = begun(40)
    turns_ms[np.arange(40), np.arange(40) % 3] += 2
    once_ms = begun(40)
    once_ms[20, 1] += 800
    once_ms[21:] += 900
    nearly_ms = begun(40)
    nearly_ms[:] = nearly_ms[:, :1] + (0, 2, 2.02)  # two are slow, and one a little more
    for silent in (turns_ms, once_ms, nearly_ms, begun(40)):
        assert followed(silent).stragglers == ()


def test_groups_that_disagree_on_a_clock_make_the_error():
    of = "allreduce of group 0, ranks [0, 1]", "allreduce of group 1, ranks [0, 1]"
    first, second = calls(begun(ranks=2), of=of[0])
    others = calls(begun(ranks=2, seed=5), of=of[1], clocks_ms=(0, 1), stream="24")
    ranks = compared(first + others[0], second + others[1])
    assert ranks.offsets_s["rank 1"] == pytest.approx(0, abs=1e-6)
    assert ranks.error_s == pytest.approx(1 * MS, rel=0.01)
    assert ranks.of["rank 0"].waiting_s <= ranks.of["rank 0"].communication_s


def test_groups_are_matched_each_for_itself_in_whatever_order():
    rows = "allreduce of group 1, ranks [0, 1]", "allreduce of group 1, ranks [2, 3]"
    columns = "_reduce_scatter_base of group 2, ranks [0, 2]"
    clocks_ms = (0, 7.2e6, -1234.5, 4)  # two hours late, a second early
    first = calls(begun(ranks=2, seed=1), of=rows[0], clocks_ms=clocks_ms[:2])
    second = calls(begun(ranks=2, seed=2), of=rows[1], clocks_ms=clocks_ms[2:])
    # Beside them, on another stream, so that each rank has its own order.
    both = calls(begun(ranks=2, seed=3), of=columns, clocks_ms=clocks_ms[::2], stream="24")
    ranks = compared(first[0] + both[0], first[1], second[0] + both[1], second[1])
    matched = {group.ranks: group.starts_s for group in ranks.matched}
    assert len(matched) == 3
    rows_s = begun(ranks=2, seed=1) * MS
    assert matched["rank 0", "rank 1"] == pytest.approx(rows_s, abs=2e-6)
    assert list(ranks.offsets_s.values()) == pytest.approx(
        [-clock_ms * MS for clock_ms in clocks_ms], abs=3e-6
    )
    assert [its.collectives for its in ranks.of.values()] == [40, 20, 40, 20]
    # Without what both have in common, nobody knows how the clocks of the pairs differ.
    apart = compared(*first, *second)
    assert list(apart.of) == ["rank 0", "rank 1"]


def test_each_gpu_of_a_trace_is_a_rank():
    first, second = calls(begun(ranks=2, late={1: 0.2}), of="")
    one = trace(*first, *(replace(work, gpu="GPU 1") for work in second))
    ranks = compare_ranks(gpus := gpus_of({"node": View(one)}))
    assert ranks.stragglers == ("node GPU 1",)
    _, table = side_by_side(ranks, gpus)
    assert [row[0] for row in table.rows] == ["node GPU 0", "node GPU 1"]
    assert [row[-1] for row in table.rows] == ["0 of 20", "20 of 20"]


def test_a_thousand_ranks():
    ranks = compared(*calls(begun(ranks=1000, late={777: 0.5})))
    assert ranks.stragglers == ("rank 777",)
    assert len(ranks.offsets_s) == 1000


def test_what_may_not_be_the_same_collectives_is_not_matched():
    works = calls(begun(), clocks_ms=(0, 900, 0))
    one, other = begun(ranks=2, seed=1), begun(ranks=2, seed=2)
    order = [f"{name} of group 0, ranks [0, 1]" for name in ("allreduce", "allgather")] * 10
    even_ms = begun(late={1: 0.4})
    even_ms += np.arange(20)[:, None] * 4 - even_ms[:, 1:2]
    first, second = calls(begun(ranks=2), of=order)
    lonely = [kernel(0, 1, kind="communication", name="ncclDevKernel_SendRecv()")]
    assert compared(*works) is not None
    assert compared(first, second) is not None
    for silent in (
        (works[0], works[1][:7] + works[1][8:], works[2]),  # one lacks a collective
        (works[0][:-1], works[1][1:], works[2][:-1]),  # as many, but others
        calls(even_ms),  # even steps fit anywhere
        (first, calls(begun(ranks=2), of=order[::-1])[1]),
        (first, calls(begun(ranks=2), of=[order[1]] * 20)[1]),
        (calls(one)[0], calls(other)[1]),  # a rank ended before the other began
        (*calls(begun(), of=""), lonely),
        (works[0],),
        (works[0], works[0], works[2]),  # the same file twice
        (works[0], [kernel(0, 1)]),
        [work[:4] for work in works],
        (),
    ):
        assert compared(*silent) is None
    early = second[3].span
    early = replace(early, start_s=early.start_s - 1.5 * MS, end_s=early.end_s - 1 * MS)
    second[3] = replace(second[3], span=early)
    assert len(compared(first, second).matched[0].starts_s) == 19, "what can't be is left out"


def test_only_what_ends_together_is_matched_by_its_collective_or_its_kernel():
    for which, is_matched in (("gather", False), ("all_gather", True)):
        of_group = f"{which} of group 0, ranks [0, 1, 2]"
        assert (compared(*calls(begun(), of=of_group)) is not None) is is_matched
    assert compared(*calls(begun(), of="", name="ncclDevKernel_Broadcast_RING_LL()")) is None
    ranks = compared(*calls(begun(late={2: 0.3}), of="", clocks_ms=(0, 5, 9)))
    assert (ranks.stragglers, len(ranks.matched[0].starts_s)) == (("rank 2",), 20)


def test_the_table_has_a_row_for_each_rank_and_says_how_sure_it_is():
    works = calls(begun(late={1: 0.4}), clocks_ms=(0, 500, 0))
    products = [kernel(start, start + 0.1) for start in begun()[:, 0]]  # behind communication
    products.append(kernel(200, 210))
    traces = {f"rank {i}": trace(*work, *products) for i, work in enumerate(works)}
    traces["rank 3"] = replace(trace(*works[0]), doubts={"GPU 0": "It has no say."})
    reports = {name: Report(one, name=name) for name, one in traces.items()}
    gpus = gpus_of({name: report.view for name, report in reports.items()})
    ranks = compare_ranks(gpus)
    verdict, table = side_by_side(ranks, gpus)
    assert " ".join(table.headers).endswith("communication exposed waiting idle came last")
    assert [row[0] for row in table.rows] == ["rank 0", "rank 1", "rank 2"]
    assert [row[-1] for row in table.rows] == ["0 of 20", "20 of 20", "0 of 20"]
    gpu, _ = gpus["rank 0"]
    communication_ms, exposed_ms, idle_ms = (float(table.rows[0][i].split()[0]) for i in (3, 4, 6))
    assert communication_ms == pytest.approx(length_s(gpu.when("communication")) / MS, abs=0.1)
    hidden_ms = gpu.hidden_s("communication") / MS
    assert hidden_ms > 1
    assert exposed_ms == pytest.approx(communication_ms - hidden_ms, abs=0.15)
    assert idle_ms == pytest.approx(length_s(gpu.idle) / MS, abs=0.1)
    said = " ".join(table.notes)
    assert "aligned by how 20 collectives end" in said
    assert "up to 500.0 ms apart" in said
    assert verdict.startswith("rank 1 holds the others up: it came last to 20 of 20 collectives")
    assert all(len(line) <= 100 for line in str(table).splitlines())
    # What a rank waited is taken off what it could hide.
    finding = next(f for f in reports["rank 0"].findings if f.cause == "communication")
    assert finding.cost_s == pytest.approx(20 * _OWN_MS * MS, abs=3e-5)
    assert "more were waiting for other ranks" in finding.why
    verdict, table = side_by_side(None, gpus)
    assert all((row[5], row[7]) == ("-", "-") for row in table.rows)
    assert "who waited for whom is not known" in verdict
    assert side_by_side(None, {"rank 0": gpus["rank 0"]}) == []
    together = calls(begun(ranks=1) + np.array([0, 0.0005]))
    for works in (calls(begun()), together, [[kernel(0, 1)]] * 2):
        gpus = gpus_of({f"rank {i}": View(trace(*work)) for i, work in enumerate(works)})
        said = side_by_side(compare_ranks(gpus), gpus)
        assert len(said) == 1, "by chance, by the clocks' error or for nothing: nobody waited"
