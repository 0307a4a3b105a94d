"""Reports: what is said of a trace, in words and in figures."""

import re
from dataclasses import replace

import pytest
from trace_builder import MS, call, kernel, parsed, trace

from autopar.traces import report
from autopar.traces.command import as_page, as_text, comparison
from autopar.traces.report import Report


def text_of(some, **options):
    return as_text(Report(some, name="t", **options).sections())


BUSY = parsed(
    "kernel 0..4 by -1; copy 3..5 by -1; kernel 8..10 by 7.9; kernel 2..6 gpu=1;"
    "range step 0..5; range step 8..9"
)


def test_figures_and_findings_in_words():
    said = text_of(BUSY)
    assert said.startswith("t\n=\n2 GPUs busy for 36.4 % to 63.6 % of 11.00 ms.\n")
    limit = "6.000 ms: that is its computing alone, with kernels and copies as fast as here."
    assert f"The same work takes at least {limit}" in " ".join(said.split())
    copying = Report(parsed("kernel 0..1; copy 1..9 way=from_host"), name="t").verdict()[1]
    assert "at least 8.000 ms: that is its copying from the host alone, with" in copying
    assert re.search(r"GPU 0 +63\.6 % ######\.+ +6\.0 ms +compute +54\.5 % #####", said)
    assert re.search(r"GPU 0 +copy +2\.0 ms +1\.0 ms +1\.0 ms +50\.0 % #####\.", said)
    assert re.search(r"GPU 0 +The host did something else +2 +2\.\d+ ms +2\d\.\d %", said)
    # Times are from where the drawing begins, as on its axis: the first launch is at -1 ms.
    assert re.search(r"GPU 0 idle +GPU 0 +5\.000 ms +8\.000 ms", said)
    assert "How to mend it:\nhttps://autopar.readthedocs.io/en/latest/auto_gallery/" in said
    assert "It has no launches" in text_of(parsed("kernel 0..4"))


def test_a_comparison_says_what_is_not_there_and_nothing_of_what_may_be_missing():
    def told(before, range_name=None):
        reports = (Report(one, name="t", range_name=range_name) for one in (before, BUSY))
        return as_text([comparison(*reports)])

    alone = parsed("kernel 0..4")
    for before in (replace(BUSY, doubts={"GPU 1": "Late."}), replace(alone, is_cut=True)):
        assert told(before).endswith("a part may be missing.\n")
    assert re.search(r"\nGPU 1 busy +not there +4.000 ms\n", told(alone))
    # Twins: what is there and did nothing, or something.
    nothing = told(parsed("kernel 0..4; kernel 6..8 gpu=1; range step 0..5"), "step")
    assert re.search(r"\nGPU 1 busy +0 s +1.500 ms +new\n", nothing)
    assert re.search(r"\nGPU 1 idle +5.000 ms +1.500 ms +-70.0 %\n", nothing)
    assert re.search(r"\nGPU 1 busy +4.000 ms +4.000 ms +[+]0.0 %\n", told(BUSY))


def test_a_comparison_of_other_numbers_of_steps_is_of_one():
    def steps(count, range_name):
        each = (
            f"range step {4 * i}..{4 * i + 3}; kernel {4 * i}..{4 * i + 2}" for i in range(count)
        )
        return Report(parsed("; ".join(each)), name="t", range_name=range_name)

    for name, change, said in (("step", r"[+]0.0", "of 8 and of 4"), (None, "-51.6", "--range")):
        text = as_text([comparison(steps(8, name), steps(4, name))])
        assert re.search(rf"\ntime +[\d.]+ ms +[\d.]+ ms +{change} %\n", text)
        assert said in text


def test_the_answer_of_lanes_of_no_gpu_is_what_costs_most():
    busy, lost = Report(parsed("kernel 0..2 gpu=; copy 2..4 gpu="), name="t").verdict()
    assert busy == "lanes of no GPU busy for 100.0 % of 4.000 ms."
    assert lost.startswith("Most is lost on lanes of no GPU, 2.000 ms (50.0 %): ")
    assert Report(parsed("kernel 0..4 gpu=; copy 2..4 gpu="), name="t").verdict() == [busy]


def test_lines_fit_a_terminal_whatever_names_are():
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x4_nn_align4>" * 3
    ranges = (call(f"{'a long range name ' * 9}{i}", i, i + 1) for i in range(4))
    work = (
        kernel(i, i + 0.5, call("cu", i - 0.1, i), name=name, gpu="rank 1 GPU 1") for i in range(9)
    )
    lines = text_of(trace(*work, ranges=ranges), range_name="*").splitlines()
    assert max(len(line) for line in lines if "https" not in line) <= 100


def test_a_range_is_counted_and_limits_all_figures():
    said = text_of(BUSY, range_name="st?p")
    assert "Limited to 'st?p', 2 in all, to the end of the work launched in it." in said
    assert re.search(r"1: step +0\.000 ms +5\.000 ms +80\.0 %", said)
    assert re.search(r"2: step +8\.000 ms +1\.000 ms +50\.0 %", said)
    data = Report(BUSY, name="t", range_name="step").data()
    assert [one["duration_s"] for one in data["occurrences"]] == pytest.approx([5 * MS, 1 * MS])
    assert data["window_s"] == pytest.approx(6 * MS)
    busy_s = [gpu["busy_s"] for gpu in data["gpus"].values()]
    assert busy_s == pytest.approx([6 * MS, 3 * MS])
    bound = {"resource": "compute", "seconds": pytest.approx(5 * MS)}
    assert data["gpus"]["GPU 0"]["bound"] == bound
    page = Report(BUSY, name="t").data()["findings"][0]["page"]
    assert page.endswith("/first_steps/plot_3_cpu_and_gpu.html")


def test_what_is_in_doubt_has_no_figure_and_says_why():
    doubtful = replace(
        parsed("kernel 0..4; kernel 0..5 gpu=1"),
        warnings=("Two spans were left out.",),
        doubts={"GPU 1": "Two of its kernels overlap on stream 7."},
    )
    said = text_of(doubtful)
    assert "Warning: Two spans were left out." in said
    assert "In doubt: GPU 1: no time of it is given. Two of its kernels overlap" in said
    assert "GPU 1" not in said.replace("In doubt: GPU 1", "")
    assert Report(doubtful, name="t").data()["gpus"].keys() == {"GPU 0"}
    assert "busy" not in text_of(replace(parsed("kernel 0..4"), doubts={"GPU 0": "It jumps."}))


def test_no_findings_and_no_gpu_work_are_said_in_so_many_words():
    said = text_of(parsed("kernel 0..4 by -0.001"))
    assert "No findings: nothing is certain that keeps it from that." in said
    assert "Findings of 1.0 % of the time or more." in text_of(BUSY)
    of_cpu = parsed("range step 0..5; range inner 1..2")
    said = text_of(of_cpu)
    assert "No work of a GPU is in it." in said
    assert re.search(r"\nstep +1 +5\.000 ms", said), "the drawing has no names"
    assert "Why no more overlap?" not in said
    assert "And more rows, 2 in all: --top 2 shows" in as_text(
        Report(of_cpu, name="t", top=1).sections()
    )
    assert text_of(trace()).startswith("t\n=\n")


def test_of_a_range_without_work_of_a_gpu_no_share_of_it_is_given():
    of_cpu = Report(parsed("range step 0..5; range inner 1..2"), name="t", range_name="step")
    said = as_text(of_cpu.sections())
    assert "No work of a GPU is in it." in said
    assert re.search(r"1: step +0\.000 ms +5\.000 ms\n", said)
    assert " %" not in said
    assert of_cpu.data()["occurrences"] == [{"start_s": 0, "duration_s": pytest.approx(5 * MS)}]
    beside = parsed("kernel 6..7 by 5.9; range step 0..5; range other 5..9")
    said = text_of(beside, range_name="step")
    assert "GPU 0 did nothing in 'step', as far as was recorded." in said
    assert "ProfilerActivity" not in said, "what is elsewhere was recorded"
    three = parsed("kernel 1..2; kernel 6..7 gpu=1; kernel 6..7 gpu=2; range step 0..5")
    assert "GPU 1 and 1 more did nothing in 'step'" in text_of(three, range_name="step")
    assert "did nothing" not in text_of(three)
    assert "GPU 1 did nothing in 'step'" in text_of(three, range_name="step", gpu="1")
    assert "did nothing" not in text_of(three, range_name="step", gpu="0")
    assert re.search(
        r"1: other +0\.000 ms +4\.000 ms +25\.0 % ", text_of(beside, range_name="other")
    )
    moment = text_of(parsed("kernel 6..7 by 5.9; range step 7..7"), range_name="step")
    assert re.search(r"1: step +1\.100 ms +0 s\n", moment), "nothing is drawn of it"
    said = text_of(parsed("kernel 0..1 gpu=; range step 0..5"), range_name="step")
    assert re.search(r"1: step +0\.000 ms +5\.000 ms +20\.0 % ", said)
    assert "of all GPUs" not in said


def test_many_spans_make_small_outputs_and_very_many_are_drawn_in_part(monkeypatch):
    times = (0.02 * i for i in range(20_000))
    many = trace(*(kernel(t, t + 0.015, call("cu", t - 1, t - 0.995)) for t in times))
    sections = list(Report(many, name="t").sections())
    assert len(as_text(sections)) < 10_000
    assert len(as_page(sections, title="t")) < 100_000
    monkeypatch.setattr(report, "_MOST_DRAWN", 5_000)
    said = text_of(many)
    assert "Drawn are the first 100.0 ms: --range shows others." in said
    assert re.search(r"GPU 0 busy for 7[45]\.\d % of 401\.0 ms", said), "figures are of all"


def test_a_page_has_bars_and_code_where_a_terminal_has_characters():
    reports = Report(BUSY, name="t"), Report(trace(), name="u")
    text = as_page([one for report in reports for one in report.sections()], title="t")
    assert "<code>on_trace_ready</code>" in text
    assert re.search(r"gradient\([^<]+ 63\.6%[^<]+>63\.6&nbsp;%</td>", text)
    assert not re.search(r"`|###|\.\.\.\.", text)
