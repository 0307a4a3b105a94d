"""From a profiler's session to a timeline, refused where its record contradicts itself."""

import gzip
import json
import platform
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch.profiler import profile
from trace_files import BASE_US, kernel, kineto_events

from autopar import annotate, cpu_lane, timeline_of, timeline_of_handles, timelines_of
from autopar.traces.read import read_evidence

# How far the two clocks may drift apart between the calibrating marks and the work.
_SLACK_S = 50e-6


@pytest.fixture
def seen(monkeypatch):
    """Let the profiler see some more than what is done here."""

    def see(*events):
        export = profile.export_chrome_trace

        def with_these(session, path):
            export(session, path)
            written = json.loads(Path(path).read_text())
            written["traceEvents"] += events
            Path(path).write_text(json.dumps(written))

        monkeypatch.setattr(profile, "export_chrome_trace", with_these)

    return see


def named(name="named"):
    with annotate(name):
        pass


def test_the_work_of_gpus_comes_with_the_ranges_of_all_threads_on_one_lane(seen):
    seen(*kineto_events())
    spans = timeline_of(named).spans
    assert {(span.name, span.lane, span.kind) for span in spans} == {
        ("named", "host", "host"),
        ("forward", "host", "host"),
        ("gemm", "GPU 0 stream 7", "compute"),
        ("gemm 2", "GPU 0 stream 7", "compute"),
        ("Memcpy DtoH (Device -> Pageable)", "GPU 0 copies to host", "copy"),
    }
    starts_s = {span.name: span.start_s for span in spans}
    assert starts_s["gemm 2"] - starts_s["gemm"] == pytest.approx(100e-6, abs=1e-9)


def test_a_session_that_has_missed_the_gpus_says_so(monkeypatch):
    # What is given to a CPU is no work of a GPU.
    monkeypatch.setattr("autopar.traces.profiler.used_gpus", lambda: [torch.device("cpu")])
    with pytest.raises(RuntimeError, match="seen nothing of the GPUs in this session. Run it"):
        timeline_of(named)


_NAMES = ["größe, 4 µs", 'say "hi"', "back\\slash", "\U0001f600\U00100000", "&lt; &amp; &#65;", "p"]


def test_names_come_back_with_the_characters_that_torchs_profiler_garbles(tmp_path):
    seen = timeline_of(lambda: [*map(named, _NAMES)])
    assert [span.name for span in seen.spans] == _NAMES
    with cpu_lane() as lane:
        labels = [*_NAMES, "two\nlines", "half a pair \ud800"]
        ways = dict.fromkeys(labels, lambda: lane.submit(abs, -1))
        assert all(len(it.spans) == 1 for it in timelines_of(ways, save=tmp_path / "t.gz").values())
    saved = read_evidence(tmp_path / "t.gz").host
    names = {tag.name for tag in saved.present}
    assert {*_NAMES, "two\nlines", "half a pair ?"} <= names


def test_no_name_of_a_program_is_taken_for_a_mark_of_the_session(tmp_path):
    names = ["autopar: the host's clock", "autopar 0123456789abcdef", "way", "way", "other"]

    def name_all():
        for name in names:
            named(name)

    assert [span.name for span in timeline_of(name_all).spans] == names
    path, ways = tmp_path / "t.gz", {"way": name_all, "other": named}
    seen = timelines_of(ways, setup=name_all, save=path)
    labels = {label: [span.name for span in timeline.spans] for label, timeline in seen.items()}
    assert labels == {"way": names, "other": ["named"]}, "not those of the setup"
    kept = {span.name for span in read_evidence(path).host.of("range").spans()}
    assert kept == {*names, *ways, "named"}


def test_what_torchs_profiler_writes_wrong_is_refused_in_words():
    def quoted():
        with torch.profiler.record_function('say "hi"'):
            pass

    with pytest.raises(RuntimeError, match="quotation mark. Name the range with autopar.annotate"):
        timeline_of(quoted)
    named()
    assert len(timeline_of(named).spans) == 1


def in_a_thread(fn):
    with cpu_lane() as lane:
        return lane.submit(fn).result()


@pytest.mark.parametrize("where", [lambda fn: fn(), in_a_thread], ids=["here", "in a thread"])
def test_of_two_profilers_one_is_refused_and_the_next_one_runs(where):
    def profiled():
        with profile():
            named()

    def refused():
        with pytest.raises(RuntimeError, match="a profiler is running already.*Call this"):
            where(lambda: timeline_of(named))
        named()

    assert [span.name for span in timeline_of(refused).spans] == ["named"]
    with profile():
        refused()
    with pytest.raises(RuntimeError, match="the work ran a profiler of its own"):
        in_a_thread(lambda: timeline_of(lambda: where(profiled)))  # torch leaves it unfit for more
    assert [span.name for span in timeline_of(named).spans] == ["named"]


def test_a_record_that_contradicts_itself_is_refused(seen):
    seen(*kineto_events(), kernel("bad", -BASE_US, 50.0))
    with pytest.raises(RuntimeError, match=r"'bad' on GPU 0 starts at 0.* run it again\."):
        timeline_of(named)


def test_the_timeline_is_on_the_hosts_clock_and_takes_lanes_in():
    readings = {}

    def work():
        readings["before"] = time.perf_counter()
        with annotate("busy"):
            readings["begun"] = time.perf_counter()
            with cpu_lane(name="left") as lane:
                handle = lane.submit(lambda: torch.ones(64, 64).sum(), name="sum")
                handle.result()
            readings["ending"] = time.perf_counter()
        readings["after"] = time.perf_counter()
        return timeline_of_handles([handle])

    for _ in range(2):  # the first session of a process sets things up
        timeline = timeline_of(work)
        (busy,) = (span for span in timeline.spans if span.name == "busy")
        (summed,) = (span for span in timeline.spans if span.lane == "left")
        error_s = timeline.alignment_error_s + _SLACK_S
        assert 0 < timeline.alignment_error_s < 5e-3
        assert readings["before"] - error_s <= busy.start_s <= readings["begun"] + error_s
        assert readings["ending"] - error_s <= busy.end_s <= readings["after"] + error_s
        assert busy.start_s - error_s <= summed.start_s <= summed.end_s <= busy.end_s + error_s
        assert (busy.lane, busy.kind, summed.kind) == ("host", "host", "compute")
        assert timeline.origin.startswith("measured live on ")
        assert {span.name for span in timeline.spans} == {"busy", "sum"}


@pytest.mark.parametrize(
    ("ends", "names"),
    [
        (lambda prep, model: model, {"prep", "model"}),
        (lambda prep, model: {"a": [model]}, {"prep", "model"}),
        (lambda prep, model: timeline_of_handles([prep, model]), {"prep", "model"}),
        (lambda prep, model: timeline_of_handles([model]), {"prep", "model"}),
        (lambda prep, model: (model.result(), 3), {"prep", "model"}),
    ],
)
def test_what_lanes_did_is_seen_with_all_that_it_waited_for(ends, names):
    """However it is handed back, and each task once, as often as it is asked for."""

    def work():
        prep = one.submit(int, 3, name="prep")
        return ends(prep, two.submit(abs, prep, name="model"))

    with cpu_lane(name="one") as one, cpu_lane(name="two") as two:
        for timeline in (timeline_of(work), timelines_of({"way": work})["way"]):
            assert sorted(span.name for span in timeline.spans) == sorted(names)
            assert timeline.lanes == ("one", "two")


@pytest.mark.parametrize("see", [timeline_of, lambda work: timelines_of({"way": work})["way"]])
@pytest.mark.parametrize("given_back", [list, timeline_of_handles])
def test_what_was_over_before_the_call_is_left_out_and_what_was_running_is_not(given_back, see):
    go = threading.Event()
    with cpu_lane(name="one") as one, cpu_lane(name="two") as two:
        over = one.submit(int, name="over")
        over.wait()
        running = two.submit(go.wait, 10, name="running")

        def work():
            go.set()
            return given_back([over, running, one.submit(int, over, name="begun")])

        assert {span.name for span in see(work).spans} == {"running", "begun"}


def test_nothing_is_kept_of_what_is_seen_on_a_lane():
    class Result:
        pass

    made = []

    def work():
        prep = lane.submit(Result)
        made.append(weakref.ref(prep.result()))
        return lane.submit(bool, after=[prep])

    with cpu_lane() as lane:
        assert len(timeline_of(work).spans) == 2
        lane.submit(int).result()  # it has let go of the one before
        assert made[0]() is None


def test_errors_come_through_and_the_next_session_is_unharmed():
    with cpu_lane() as lane, pytest.raises(ZeroDivisionError):
        timeline_of(lambda: [lane.submit(lambda: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        timeline_of(lambda: 1 / 0)
    assert [span.name for span in timeline_of(named).spans] == ["named"]
    with pytest.raises(TypeError, match="fn is of type int; expected a function of no arg"):
        timeline_of(3)
    with pytest.raises(TypeError, match=r"ways is of type list; expected label -> work"):
        timelines_of([print])
    with pytest.raises(TypeError, match=r"ways\['a'\] is of type int; expected a function"):
        timelines_of({"a": 3})


def test_where_nothing_is_seen_the_timeline_is_empty_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="the timeline is empty: no GPU.*annotate") as caught:
        assert timeline_of(lambda: 3).spans == ()
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="seen of 'nothing': no GPU.*return the handles") as caught:
        assert timelines_of({"nothing": lambda: None})["nothing"].spans == ()
    assert caught[0].filename == __file__


def test_several_ways_of_a_session_have_their_own_spans_and_it_can_be_kept_as_a_trace(tmp_path):
    path, calls = tmp_path / "kept.json.gz", []

    def way(name):
        calls.append(name)
        with annotate(name):
            torch.rand(8, 8) @ torch.rand(8, 8)
        return [lane.submit(int, name=f"task of {name}")]

    with cpu_lane(name="worker") as lane:
        ways = {"one way": lambda: way("a"), "another": lambda: way("b")}
        timelines = timelines_of(ways, setup=lambda: calls.append("set up"), save=path)
    assert calls == ["set up", "a", "set up", "b"]
    for label, name in (("one way", "a"), ("another", "b")):
        seen = [(span.name, span.lane) for span in timelines[label].spans]
        assert seen == [(name, "host"), (f"task of {name}", "worker")]
    kept = read_evidence(path)
    spans = {span.name: span for span in kept.host.of("range").spans()}
    assert {"one way", "another", "a", "b"} <= {*spans}
    assert spans["one way"].start_s <= spans["a"].start_s <= spans["a"].end_s
    length_s = timelines["one way"].spans[0].duration_s
    assert length_s == pytest.approx(spans["a"].duration_s, abs=2e-6)
    operators = {span.name for span in kept.host.of("operator").spans()}
    assert {"aten::rand", "aten::matmul"} <= operators
    content = gzip.decompress(path.read_bytes()).decode()
    assert platform.node() not in content
    assert "aten::mm" not in content  # it is within another
