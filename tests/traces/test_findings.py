"""Findings: how gaps are split, what a finding says, and in which order they come."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import MS, costs, parsed, split, trace, work_of

from autopar.traces.findings import CAUSES
from autopar.traces.report import Report

ROOT = Path(__file__).parents[2]
SYNC = "cudaStreamSynchronize"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
GAP = "kernel 0.001..4 by 0; kernel 6..9 by 5.985"
STEPS = "range step 0..8; range augment 5.45..5.95; range load 4..5.4"


def findings(of):
    return {finding.cause: finding for finding in Report(of, name="t").findings}


def test_the_checklist_has_every_finding_and_its_page():
    text = (ROOT / "docs" / "howto" / "why_is_there_no_overlap.md").read_text(encoding="utf-8")
    for cause in CAUSES.values():
        assert f"**{cause.title}**" in text
        assert f"(../auto_gallery/{cause.shown})" in text
        assert (ROOT / "gallery" / f"{cause.shown}.py").is_file()


def test_a_gap_is_split_over_all_that_happened_in_it():
    host = f"call {SYNC} 1..4.5; call cudaMalloc 4.6..5; operator aten::copy_ 5.2..5.6"
    of = parsed(f"{GAP}; {host}")
    parts = {"synchronised": 0.515, "allocated": 0.4, "cpu": 0.4, "elsewhere": 0.685}
    assert split(of) == parts | {"brief": 0.001}, "before the first kernel"
    # Without the wait the host would be ahead by all of it, without the rest by no more than it;
    # and to allocate takes as long without that wait.
    assert costs(of) == parts | {"synchronised": 1.6}
    # A long launch counts whatever it launched, as work that comes later.
    late = "kernel 0.001..4 by 0; kernel 6..9 by 5.985; kernel 9..10 by cudaGraphLaunch 4.2..5.7"
    assert split(parsed(late)) == {"launch": 1.5, "elsewhere": 0.5, "brief": 0.001}
    behind = "kernel 0.001..7 by 0; kernel 7..9 by 6; call cudaHostAlloc 4.2..5.4"
    assert costs(parsed(behind)) == {}, "nothing is idle behind work"


def test_no_gap_is_counted_for_the_error_of_sums():
    """Wherever on the file's clock, and however many threads there are."""
    for late_ms in range(0, 9_000, 700):
        steps = [late_ms + 0.01 + 3.3 * i for i in range(30)]
        work = [f"kernel {t}..{t + 3} by cudaLaunchKernel {t - 0.3}..{t - 0.29}" for t in steps]
        work += [f"operator mm {t - 0.3}..{t + 0.2} {thread}" for t in steps for thread in (1, 2)]
        seen = Report(parsed("; ".join(work)), name="t")
        gaps = {finding.cause: finding.gaps for finding in seen._idle}
        assert gaps == {"unknown": 30, "elsewhere": 30}, "the operators begin with the launches"


_TENTHS = st.integers(0, 99), st.integers(1, 9)
_TIMES = st.builds(lambda start, length: f"{start / 10}..{(start + length) / 10}", *_TENTHS)
_NAMES = st.sampled_from([SYNC, "cudaFree", "cudaGetDevice", LOADER])
_HOST = st.tuples(st.sampled_from(["call", "range", "operator", "profiler"]), _NAMES, _TIMES)
_BY = st.tuples(st.just(" by cudaLaunchKernel"), _TIMES, st.sampled_from("123"))
_WORK = st.tuples(st.just("kernel"), _TIMES, st.just("") | _BY.map(" ".join))


@given(
    st.lists(_WORK, min_size=1, max_size=9),
    st.lists(st.tuples(_HOST.map(" ".join), st.sampled_from("123")), max_size=36),
)
def test_the_parts_of_all_gaps_are_all_gaps(work, host):
    of = parsed("; ".join(map(" ".join, [*work, *host])))
    idle = Report(of, name="t").view.usages[0].idle
    assert sum(split(of).values()) == pytest.approx((idle[:, 1] - idle[:, 0]).sum() / MS, abs=0.02)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("call cudaFree 4.1..4.3; call cudaMalloc 4.5..5.4", "Once .* host was in cudaMalloc[.]$"),
        ("range ProfilerStep#3 0..8; range augment 4.1..5.9; range crop 5..5.1", "in augment[.]$"),
        ("python 'train.py(9): step' 0..9; python 'json.py(3): load' 4.2..5.8", "json.py.3.: load"),
        ("operator mm 0..1", "in no call or operator that was recorded: .* in no named range[.]$"),
        (f"call {SYNC} 4.1..5.3; call cudaFree 5.3..5.4; {STEPS}", "longest it was in augment[.]$"),
        ("kernel 12..14 by 11.985; range crop 4..6", "2 times it was idle .* in no named range"),
    ],
)
def test_words_name_what_has_the_longest_share_of_what_is_unseen(host, words):
    """Of a range, what counts is its share of the time that has no other cause."""
    ends = parsed(f"{GAP}; {host}")
    assert any(re.search(words, finding.why) for finding in findings(ends).values())


def test_evidence_is_what_had_the_longest_share_and_the_gap():
    said = parsed(f"{GAP}; call cudaFree 4.1..4.3; call cudaMalloc 4.5..5.4")
    evidence = findings(said)["allocated"].evidence
    assert [span.name for span in evidence] == ["cudaMalloc", "GPU 0 idle"]
    assert (evidence[1].start_s, evidence[1].end_s) == pytest.approx((4 * MS, 6 * MS))


def test_a_range_that_ends_in_a_gap_is_idle_for_what_its_thread_did():
    def lost(meanwhile, second_by=10):
        steps = "range step 0..9.9; range step 10..19.9"
        work = f"kernel 0.02..4 by 0; kernel 10.02..14 by {second_by}"
        host = f"{meanwhile.format('4..9.9')}; {meanwhile.format('14..19.9')}"
        seen = Report(parsed(f"{steps}; {work}; {host}"), name="t", range_name="step")
        return {finding.cause: round(finding.cost_s / MS, 1) for finding in seen.findings}

    assert lost(f"range {LOADER} {{}}") == {"loader": 11.8}
    assert lost("operator aten::sort {}") == {"cpu": 11.8}
    assert lost("call cudaFree {}") == {"allocated": 11.8}
    assert lost("range log {}") == {"elsewhere": 11.8}
    assert lost("operator aten::sort {} 3") == {"elsewhere": 11.8}, "what a bystander did is none"
    twin = lost("operator aten::sort {}", second_by=-1)
    assert twin == {"unknown": 5.9, "cpu": 5.9}, "the host was not late, once"
    whole = parsed(f"kernel 0.001..4 by 0; range {LOADER} 4..10; range step 0..10")
    assert costs(whole) == {"ended": 6}, "after all work that was recorded, nobody waits"


def test_without_launches_nothing_is_guessed():
    host = f"operator aten::mm 40..42; call {SYNC} 1..40.1"
    alone = parsed(f"kernel 0..40; kernel 42..90; {host}")
    assert (split(alone), costs(alone)) == ({"unknown": 2}, {})
    launched = parsed(f"kernel 0..40 by -1; kernel 42..90 by 41.985; {host}")
    assert split(replace(launched, doubts={"host": "Its clock jumps."})) == {"unknown": 2}


def test_gaps_within_the_error_of_a_profiler_have_no_cause():
    close = parsed("kernel 0..1; kernel 1.0019..2; kernel 2.0021..3")
    assert split(close) == {"brief": 0.002, "unknown": 0.002}
    late = parsed("kernel 0..1; kernel 1.003..2 by 1.0021; kernel 2.0019..3")
    assert split(late) == {"brief": 0.002, "elsewhere": 0.003}
    assert split(replace(late, alignment_error_s=4e-6)) == {"brief": 0.002, "unknown": 0.003}


def test_where_copies_were_and_how_fast():
    pageable = "kernel 0..4; copy 2..6 memory=pageable size=8000000; kernel 6..9"
    finding = findings(parsed(pageable))["pageable"]
    assert finding.cost_s == pytest.approx(2 * MS), "what no compute hides"
    assert "1 copy, 8.00 MB at 2.00 GB/s, used" in finding.why
    assert "(stream 7)" in findings(parsed("kernel 0..2; copy 2..3 stream=7"))["one stream"].why
    unknown = [replace(work, stream="") for work in work_of(parsed("kernel 0..2; copy 2..3"))]
    assert list(costs(trace(*unknown))) == ["bare copies"]
    copies = "; ".join(f"copy {i}..{i + 0.9 + i / 100}" for i in range(5))
    finding = findings(parsed(f"kernel 3.5..9; {copies}"))["bare copies"]
    assert [round(span.start_s / MS) for span in finding.evidence] == [2, 1, 0]


def test_only_what_costs_something_is_counted_and_listed():
    """As where all copies but the last are hidden, or another GPU is at work in most gaps."""
    hidden = "; ".join(f"copy {i}..{i + 0.9}" for i in range(9))
    finding = findings(parsed(f"kernel 0..9.5; {hidden}; copy 9..10"))["bare copies"]
    assert finding.why.startswith("1 of 10 copies, 1.00 MB at 1.00 GB/s, ran while nothing")
    assert [round(span.start_s / MS) for span in finding.evidence] == [9]
    assert costs(parsed(f"kernel 0..9.5; {hidden}")) == {}
    steps = "; ".join(f"kernel {3 * i}..{3 * i + 1} by {3 * i - 0.01}" for i in range(4))
    finding = findings(parsed(f"{steps}; kernel 4..9.5 gpu=1"))["elsewhere"]
    assert finding.why.startswith("2 times it was idle"), "before the first kernel, too"
    assert [round(it.start_s / MS) for it in finding.evidence] == [1, 0], "the gaps alone"


def test_what_is_known_costs_nothing_while_another_gpu_is_at_work():
    """Nor does what nobody knows the cause of, as where two GPUs are used in turn."""
    turns = "kernel 0..1; kernel 1.25..2.25 gpu=1; kernel 2.5..3.5; kernel 3.75..4.75 gpu=1"
    found = {finding.where: finding for finding in Report(parsed(turns), name="t").findings}
    assert found["GPU 1"].cause == "unknown"
    assert found["GPU 1"].cost_s == pytest.approx(0.75 * MS)
    assert found["GPU 1"].idle_s == pytest.approx(2.75 * MS), "it was idle for all that"
    assert found["GPU 0"].cost_s == pytest.approx(0.5 * MS)
    one = costs(parsed(turns.replace(" gpu=1", "").replace("1.25..2.25", "1.25..1.26")))
    assert one == {"unknown": 1.74}, "its twin: of one GPU all counts"
    alone = {one.where: one for one in Report(parsed(turns), name="t", gpu="0").findings}
    assert alone == {"GPU 0": found["GPU 0"]}, "nor where only one is asked for"


def test_the_most_expensive_comes_first_and_the_cheap_are_left_out():
    work = "kernel 0..100 by -0.001; kernel 110..200 by 109.985; copy 200..230"
    last = "kernel 230.5..231 stream=8 by 230.485"
    listed = costs(parsed(f"{work}; {last}; call cudaStreamSynchronize 199..230"))
    assert list(listed.items()) == [("bare copies", 30), ("elsewhere", 10.485)]
    # Without that wait the host was late, and not the copy.
    assert list(costs(parsed(f"{work}; {last}"))) == ["elsewhere"]
    assert costs(parsed("kernel 0..100 by -0.001; kernel 100.5..200 by 100.485")) == {}


def test_a_thousand_gpus_and_streams_cost_no_more_than_their_work():
    gpus = "; ".join(f"kernel {i}..{i + 0.9} gpu={i}" for i in range(1_000))
    assert len(Report(parsed(gpus), name="t").figures) == 1_000
    streams = (f"kernel {i}..{i + 0.9} stream={i} by cu {i - 5}..{i}" for i in range(2_000))
    figures = Report(parsed("; ".join(streams)), name="t").figures["GPU 0"]
    assert len(figures["lanes_busy_s"]) == 2_000
