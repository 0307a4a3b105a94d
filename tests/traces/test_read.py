"""Trace files told apart by content; damaged ones give their valid part or a clear error."""

import gzip
import io
import itertools
import json
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import every
from trace_builder import work_of
from trace_files import event, kernel, kineto, kineto_events, own_timeline, write_all

from autopar import read_trace
from autopar.timeline.chrome_trace import write_trace
from autopar.timeline.span import KINDS, Span, Timeline
from autopar.traces import chrome
from autopar.traces.read import read_evidence
from autopar.traces.trace import TraceError


@pytest.fixture
def file(tmp_path):
    """Write some bytes or text to a file, and give its path."""

    def write(content, name="t.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def said_by(trace):
    return work_of(trace), trace.timeline, trace.host.of("operator").spans(), trace.remarks


def test_every_format_is_told_by_its_content_from_files_and_pipes(tmp_path, monkeypatch):
    (files := tmp_path / "files").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for path in write_all(files).values():
        content, whole = path.read_bytes(), read_evidence(path.rename(f"{path}.other"))
        assert (len(whole.work) > 2, whole.remarks, bool(whole.origin)) == (True, (), True)
        packed = content if path.suffix == ".gz" else gzip.compress(content)
        for sent, first in itertools.product((content, packed), (1, 20, 500)):
            out, end = os.pipe()
            with ThreadPoolExecutor(1) as pool, os.fdopen(out, "rb") as pipe:
                pool.submit(_send, end, sent[:first], sent[first:])
                assert said_by(read_evidence(f"/dev/fd/{pipe.fileno()}")) == said_by(whole)
            file = io.BytesIO(b"x" * first + sent)
            file.seek(first)
            assert said_by(read_evidence("standard input", file)) == said_by(whole)
    assert os.listdir(tmp_path) == ["files"], "no copy is left"


def _send(end, *pieces):
    with os.fdopen(end, "wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            time.sleep(0.005)  # most often, the reader finds this piece alone


def test_packed_bare_and_marked_texts_are_the_same(file):
    text = kineto().encode()
    plain = read_trace(os.fspath(file(text)))
    assert (len(plain.spans), plain.origin) == (4, "a trace of torch.profiler")
    assert plain.exposed_s() == pytest.approx(30e-6, abs=1e-9)
    in_two = gzip.compress(text[:700]) + gzip.compress(text[700:])
    for content in (in_two, json.dumps(kineto_events()), b"\xef\xbb\xbf" + text, b"\n " + text):
        assert read_trace(file(content)) == plain


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (gzip.compress(b"", mtime=0), "as a trace: it begins with ''.* Expected"),
        (b"9" * 10_000, "as a trace: it begins with '9{20}' and has no list"),
        (b"<!DOCTYPE html><html>404</html>", "begins with '<!DOCTYPE html>"),
        (b'{"traceEvents": 3}', "has no list of traceEvents"),
        (b"[]", "named range.*Under a schedule .* keeps one cycle only: export it in `on_trace_r"),
        (b"[" * 100_000, "trace: it ends early .* and nothing before that can be used"),
        (b'[{"ph": "X", "ts": ' + b"9" * 10_000, "trace: it ends early .* nothing before"),
        (b"SQLite format 3\0", "SQLite database that can't be read"),
        (b"PK\3\4", "begins with 'PK.*Unpack all else first"),
        ('{"traceEvents": []}'.encode("utf-16"), "in UTF-8"),
    ],
    ids=itertools.count(),  # what is packed differs by the time
)
def test_what_is_no_trace_is_refused_by_name(file, content, why):
    with pytest.raises(TraceError, match=f"t[.]json.*{why}.*[.]$") as caught:
        read_trace(file(content))
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="nsys export --type sqlite t.nsys-rep"):
        read_trace(file(b"NVIDIA", "t.nsys-rep"))


def test_what_cannot_be_opened_or_read_is_named(tmp_path, file):
    with pytest.raises(IsADirectoryError):
        read_trace(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "missing.json")
    with pytest.raises(TraceError, match="^'standard input' can't be read as a trace: it is empty"):
        read_evidence("standard input", io.BytesIO())
    unreadable = file(kineto())
    unreadable.chmod(0)
    # Of a process's own memory, the first page can be opened and not be read.
    for path in [Path("/proc/self/mem")] + [unreadable] * (os.geteuid() != 0):
        with pytest.raises(OSError, match=f"'{path}'$"):
            read_trace(path)


def test_a_file_cut_or_spoilt_anywhere_gives_what_comes_before(file):
    text = kineto()
    whole = {span.name for span in read_evidence(file(text)).timeline.spans}
    lengths = set()
    for end in range(text.index('"forward"'), len(text) - 1, 7):
        try:
            trace = read_evidence(file(text[:end]))
        except TraceError:
            continue
        assert "The file is damaged" in trace.warnings[0]
        assert trace.is_cut
        names = {span.name for span in trace.timeline.spans}
        assert names <= whole
        lengths.add(len(names))
    assert lengths == {1, 2, 3, 4}
    for rest in ("[]", "x", '{"traceEvents": []}', "]"):
        trace = read_evidence(file(text + rest))
        assert (len(trace.work), len(trace.warnings)) == (3, 1)
        assert "The file is damaged: it ends early or is not JSON after" in trace.warnings[0]
    chance = random.Random(0)
    events = [kernel(f"k{chance.random()}", 20.0 * i, 9.0) for i in range(5_000)]
    packed = gzip.compress(json.dumps(events).encode())
    spoilt = bytearray(packed)
    spoilt[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    for content in (packed[: len(packed) // 2], bytes(spoilt), packed[:-6]):
        trace = read_evidence(file(content))
        assert 1_000 < len(trace.work) <= 5_000
        assert "The file is damaged: it can't be unpacked to its end" in trace.warnings[0]
    assert read_evidence(file(packed)).warnings == ()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_a_text_may_come_in_pieces_of_any_size(monkeypatch, size):
    monkeypatch.setattr(chrome, "_PIECE", size)
    for content in (json.loads(kineto()), kineto_events()):
        text = json.dumps(content, indent=1)
        events = chrome.EventText(text[i : i + size] for i in range(0, len(text), size))
        assert [*events] == kineto_events()
        if isinstance(content, dict):
            del content["traceEvents"], events.header["traceEvents"]
            assert events.header == content


@pytest.mark.parametrize(
    ("begin", "is_read_on"), [("x", False), ("", True), (" \n", True), ("{", True)]
)
def test_of_what_is_no_trace_no_more_than_its_beginning_is_read(monkeypatch, begin, is_read_on):
    monkeypatch.setattr(chrome, "_PIECE", 8)
    pieces = iter([begin.ljust(8)] + ["{" + 7 * " "] * 100)
    text = chrome.EventText(pieces)
    assert ([*text], text.header) == ([], None)
    assert "has no list of traceEvents" in text.damage
    assert (not list(pieces)) == is_read_on


def test_warnings_are_given_and_gpus_in_doubt_left_out(file):
    bad = kernel("bad", 160.0, -1.0)
    good = [*kineto_events(), kernel("other", 5.0, 9.0, device=1)]
    with pytest.warns(UserWarning, match=r"t\.json: 1 of 4 .* of 'bad' on GPU 0") as caught:
        timeline = read_trace(file(kineto([*good, bad])))
    assert caught[0].filename == __file__
    assert timeline.lanes == ("GPU 1 stream 7", "host")
    with (
        pytest.warns(UserWarning, match="'bad'"),
        pytest.raises(TraceError, match="nothing that can be trusted.*'bad' on GPU 0"),
    ):
        read_trace(file(kineto([*kineto_events(), bad])))


_LANES = ["GPU 0 stream 7", "rank 3 GPU 1 copies to host", "host", "left \"'\\", "\u00e9 \u2192"]
_SPANS = st.lists(
    st.tuples(
        *(st.sampled_from(_LANES), st.sampled_from(KINDS)),
        *(st.integers(0, 10**10), st.integers(0, 10**6)),
    ),
    max_size=20,
)


@given(_SPANS)
def test_what_is_written_comes_back_to_the_nanosecond(drawn):
    spans = [Span("first", "left", 0.0, 1e-9)]
    for i, (lane, kind, start_ns, length_ns) in enumerate(drawn):
        spans.append(Span(f"s{i}", lane, start_ns / 1e9, (start_ns + length_ns) / 1e9, kind))
    with tempfile.TemporaryDirectory() as folder:
        write_trace(Timeline(spans, 2.5e-6, "recorded by hand"), path := Path(folder) / "t.json")
        back = read_trace(path)
    assert (back.alignment_error_s, back.origin) == (2.5e-6, "recorded by hand")
    assert sorted(map(_in_ns, back.spans)) == sorted(map(_in_ns, spans))


def _in_ns(span):
    times_ns = (round(time_s * 1e9, 3) for time_s in (span.start_s, span.end_s))
    return (span.name, span.lane, span.kind, *times_ns)


def test_only_a_file_of_ours_is_read_as_one_whatever_a_process_is_called(file):
    of_process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "autopar"}}
    alone = read_evidence(file(kineto([*kineto_events(), of_process | {"ts": 0, "tid": 0}])))
    assert (said_by(alone), alone.origin) == (said_by(read_evidence(file(kineto()))), alone.origin)
    assert alone.origin == "a trace of torch.profiler"


def test_a_lane_names_its_gpu_and_what_is_wrong_with_our_own_traces_is_left_out(file):
    write_trace(own_timeline(), path := file(""))
    assert work_of(read_evidence(path))[0].gpu == "GPU 0"
    path.write_text(path.read_text().replace('"dur":100.0', '"dur":-100.0'))
    trace = read_evidence(path)
    assert "compute without a time (1)" in trace.warnings[0]
    assert "gemm" not in {work.span.name for work in work_of(trace)}


def test_names_keep_what_can_be_written_and_are_cut_in_warnings(file):
    names = ["half \ud83d", "nul \0 and bell \7", "k" * 600_000]
    events = [kernel(name, 10.0 * i, 5.0) for i, name in enumerate(names, start=1)]
    trace = read_evidence(file(json.dumps([*events, kernel("k" * 5_000, 32.0, 0.0)])))
    shown = [work.span.name for work in work_of(trace)][:2]
    assert shown == ["half \ufffd", "nul \0 and bell \7"]
    names = ["&#9999999; is none, &#65; and &#55357;", "&#65;"]  # of a range, and of an operator
    host = [event(*of, 1.0, 9.0) for of in zip(("user_annotation", "cpu_op"), names, strict=True)]
    spans = read_evidence(file(json.dumps([*events, *host]))).host.spans()
    assert [it.name for it in spans] == ["&#9999999; is none, A and \ufffd", "&#65;"]
    assert len(trace.remarks[0]) < 400


@pytest.mark.parametrize("count", every(2, [500, 10_000]))
def test_damaged_files_lead_to_a_clear_error_or_a_trace(run_program, count):
    done = run_program("trace_fuzz.py", count, 1)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bad"] == []
    assert sum(report["outcomes"].values()) == count
    assert {name.rsplit(" ", 1)[1] for name in report["outcomes"]} == {"read", "refused", "warned"}
