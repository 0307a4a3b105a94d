"""`python -m autopar timeline`: what it prints and writes, and what it says when it can't."""

import errno
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
import trace_files

from autopar.__main__ import main
from autopar.display.format import format_seconds
from autopar.timeline.chrome_trace import write_trace
from autopar.timeline.span import Span, Timeline
from autopar.traces.command import Options, inspect


@pytest.fixture
def files(tmp_path):
    (folder := tmp_path / "files").mkdir()
    return trace_files.write_all(folder)


@pytest.fixture
def said(capsys):
    """What the command prints, if it ends as it should; of errors, their one line."""

    def run(*arguments, status=0):
        assert main(["timeline", *map(str, arguments)]) == status
        out, err = capsys.readouterr()
        assert bool(out) != bool(err)
        assert err.count("\n") <= 1
        return out + err

    return run


def test_reading_and_reporting_do_without_torch(files, tmp_path, run_program):
    program = (
        "import runpy, sys\nimport autopar\n"
        "for path in sys.argv[5:]:\n"
        "    autopar.read_trace(path)\n"
        "try:\n    runpy.run_module('autopar', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "sys.exit(', '.join({'torch', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    (path := tmp_path / "program.py").write_text(program)
    paths = [files[name] for name in ("kineto.json", "own.json", "nsys.sqlite")]
    done = run_program(path, "timeline", "--json", tmp_path / "out.json", "--", *paths)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nkineto.json\n===========\n" in done.stdout
    gpu = json.loads((tmp_path / "out.json").read_text())["traces"][0]["gpus"]["GPU 0"]
    assert gpu["busy_s"] == pytest.approx(160.5e-6)
    assert gpu["hidden_s"]["copy"] == pytest.approx(30e-6)
    assert gpu["exposed_s"]["copy"] == pytest.approx(30e-6)


def test_changes_are_given_of_traces_of_any_format_but_not_of_damaged_ones(files, tmp_path, said):
    (cut := tmp_path / "cut.json").write_text(files["kineto.json"].read_text()[:-900])
    changes = r"\ntime +[\d.]+ µs +[\d.]+ µs +[+-][\d.]+ %"
    assert re.search(changes, said(files["kineto.json"], "--compare", files["nsys.sqlite"]))
    assert not re.search(changes, said(files["nsys.sqlite"], "--compare", cut))


@pytest.mark.parametrize("apart_s", [0.0015, 3600.0])
@pytest.mark.parametrize("start_s", [0.5, 999.95, 1_730_000_000.0])
def test_times_of_ranks_are_on_one_clock_wherever_it_begins(tmp_path, said, apart_s, start_s):
    collective = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for rank in (0, 1):
        starts_us = [1e6 * (start_s + rank * apart_s) + 1e4 * i + 10 * i**2 for i in range(12)]
        kernels = [
            trace_files.kernel(collective, at - 99 * rank, 300 + 99 * rank) for at in starts_us
        ]
        (tmp_path / f"rank{rank}.json").write_text(trace_files.kineto(kernels))
    data = json.loads(said(tmp_path, "--json", "-"))
    offsets_s = data["ranks"]["offsets_s"]
    assert offsets_s["rank1.json"] - offsets_s["rank0.json"] == pytest.approx(-apart_s, abs=2e-6)
    begun_s = [traced["start_s"] + offsets_s[traced["name"]] for traced in data["traces"]]
    assert begun_s[0] - begun_s[1] == pytest.approx(99e-6, abs=2e-6)
    text = " ".join(said(tmp_path).split())
    assert f"up to {format_seconds(apart_s)} apart" in text


def test_names_can_be_matched_whatever_characters_they_have(said, tmp_path):
    name = "two\nlines\x1b[31m \x00\x9f \ufffe"
    events = [
        trace_files.event("user_annotation", name, 0.0, 500.0),
        trace_files.kernel(name, 400.0, 100.0, 1),
        trace_files.call("cudaLaunchKernel", 390.0, 5.0, 1),
    ]
    (path := tmp_path / "t.json").write_text(trace_files.kineto(events))
    data = json.loads(said(path, "--range", name, "--json", "-"))["traces"][0]
    assert data["range"] == name
    (idle,) = (finding for finding in data["findings"] if finding["cause"] == "elsewhere")
    assert [it[0] for it in idle["evidence"]] == [name, "GPU 0 idle"]
    for shown in (said(path), said(path, "--list-ranges"), said(path, "--range", name)):
        assert "two lines\ufffd[31m" in shown
        assert not {*name} & {*shown} - {*"two lines[31m\n"}


def test_several_files_stay_apart_and_one_that_cannot_be_read_does_not_end_the_others(
    files, tmp_path, said
):
    own, (link, loop) = files["own.json"], (tmp_path / "link.json", tmp_path / "loop.json")
    link.symlink_to(own)
    loop.symlink_to(loop)
    text = said(own, files["nsys.sqlite"], own, link)
    assert text.count("\nWhat ran when\n") == 2, "a file that is named twice is read once"
    assert "What each rank did" in text
    (folder := tmp_path / "folder").mkdir()
    assert "there is no trace in" in said(folder, status=1)
    (folder / "notes.json").write_text("{}")
    assert "notes.json' can't be read as a trace" in said(folder, status=1)
    for name in ("kineto.json", "kineto.json.gz"):
        (folder / name).write_bytes(files[name].read_bytes())
    (folder / "inner.json").mkdir()
    os.mkfifo(folder / "pipe.json")  # which is not waited for
    (folder / "lost.json").symlink_to("nowhere")
    text = said(folder, files["kineto.json"])
    assert text.count("\nWhat ran when\n") == 3
    assert f"{folder / 'kineto.json'}\n=" in text, "two of one name are told apart"
    assert text.count("Left out:") == 2
    assert re.search(r"Left out:\s+\S*lost.json:\s+No\s+such\s+file", text)
    for options in ((), ("--list-ranges",)):
        assert "kineto.json" in said(folder, folder / "notes.json", *options, status=1)
    refused = (1, [loop]), (1, [link, "--compare", loop]), (2, [link, "--json", loop])
    for status, arguments in refused:
        assert "symbolic links" in said(*arguments, status=status)


def test_one_line_says_why_not(files, tmp_path, said):
    (other := tmp_path / "other.json").write_text('{"hello": 1}')
    fine, own = files["kineto.json"], files["own.json"]
    refused = {
        "other.json": (1, [other]),
        "missing.json: No such file": (1, [tmp_path / "missing.json"]),
        "no range 'nope'; its ranges are: 'forward'": (2, [fine, "--range", "nope"]),
        "no GPU '3'; its GPUs are: GPU 0": (2, [fine, "--gpu", "3"]),
        "there is no folder": (2, [fine, "--html", tmp_path / "no" / "a.html"]),
        "--list-ranges only prints; got --json": (2, [fine, "--list-ranges", "--json", "out"]),
        "ranges only prints; got --fail-under": (2, [fine, "--list-ranges", "--fail-under", "5%"]),
        "no range 'nnnnn": (2, [fine, "--range", "n" * 5000]),
        "own.json: there is no range 'f*d'": (2, [fine, "--compare", own, "--range", "f*d"]),
        "--compare takes one FILE": (2, [fine, own, "--compare", fine]),
    }
    for words, (status, arguments) in refused.items():
        assert words in (text := said(*arguments, status=status))
        assert len(text) < 1_000, "however long a name is"


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path, said, monkeypatch):
    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may look into any
    assert f"{tmp_path}: Permission denied" in said(tmp_path, status=2)


def test_standard_input_may_be_closed(files, said, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in said("-", status=1)
    assert "What ran when" in said(files["own.json"], "-", status=1)


def test_what_is_asked_for_is_what_comes(files, said):
    file = files["kineto.json"]
    assert len(said(file, "--brief").splitlines()) <= 9
    assert "What ran when" not in said(file, "--brief")
    assert re.search(r"\nforward +1 +300\.0 µs", said(file, "--list-ranges"))
    assert "in all: --top" in said(file, "--top", 1)
    assert "which is under 100 %" in said(file, "--fail-under", "1", status=3)
    near = said(file, "--fail-under", "43.54%", status=3)
    assert re.search(r"time is 43\.[45] %, which is under 43\.54 %", near), "and not 43.5 %"
    for share in ("5%", "0%", "0"):
        assert "which is under" not in said(file, "--fail-under", share)
    data = json.loads(said(file, "--json", "-"))
    assert (data["format"], data["version"]) == ("autopar timeline", 7)
    for option in (("--top", "0"), ("--fail-under", "2"), ("--fail-under", "much")):
        with pytest.raises(SystemExit, match="2"):
            main(["timeline", str(file), *option])


def test_what_can_not_be_judged_does_not_pass(files, tmp_path, said):
    good = files["kineto.json"]
    events = json.loads(good.read_text())
    kernel = next(event for event in events["traceEvents"] if event.get("cat") == "kernel")
    args = {**kernel["args"], "device": 1}
    events["traceEvents"].append({**kernel, "args": args, "ts": 0})
    (doubtful := tmp_path / "doubtful.json").write_text(json.dumps(events))
    (cut := tmp_path / "cut.json").write_text(good.read_text()[:-10])
    (folder := tmp_path / "folder").mkdir()
    (folder / "good.json").write_text(good.read_text())
    (folder / "empty.json").write_text("")
    write_trace(Timeline((Span("step", "host", 0, 1, "host"),)), bare := tmp_path / "bare.json")
    write_trace(Timeline((Span("mm", "a lane", 0, 1),)), lanes := tmp_path / "lanes.json")
    for given, name in (
        ((doubtful,), "doubtful.json"),
        ((cut,), "cut.json"),
        ((good, bare), "bare.json"),
        ((good, lanes), "lanes.json"),
        ((folder,), str(folder / "empty.json")),
    ):
        text = said(*given, "--fail-under", "5%", status=1)
        assert f"so not held to --fail-under: {name}." in " ".join(text.split())
        assert "which is under" in said(*given, "--fail-under", "1", status=3)
        assert "held to" not in said(*given)
    assert "held to" not in said(doubtful, "--gpu", "0", "--fail-under", "5%")


def test_the_page_is_whole_and_asks_for_nothing(files, tmp_path):
    import html5lib

    bad = "<script>$x^$ \x1b[31m\x00\ud800\ufffe & 'é'"
    page, file, data = (tmp_path / name for name in ("\x1b\udcff.html", "$x^$.json", "data.json"))
    write_trace(Timeline((Span(bad, "GPU 0 " + bad, 0, 1), Span("a", "GPU 1 x", 2, 3))), file)
    outputs = {"html": page, "json": data}
    said, _ = inspect([*files.values(), file], Options(outputs=outputs))
    assert f"wrote {data}\n" in said
    names = [trace["name"] for trace in json.loads(data.read_text())["traces"]]
    assert names == [*files, file.name]
    assert "<script>" in said
    assert "\x1b" not in said
    text = page.read_text()
    tree = html5lib.HTMLParser(namespaceHTMLElements=False, strict=True).parse(text)
    tags = [tag for tag in tree.iter() if isinstance(tag.tag, str)]
    assert not {tag.tag for tag in tags} & {"img", "iframe", "object"}
    assert not re.search(r"<script|<link|url\(http|@import", text)
    ids = [tag.get("id") for tag in tags if tag.get("id")]
    assert len(ids) == len(set(ids))
    levels = [int(tag.tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag.tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = [tag for tag in tags if tag.tag == "table"]
    assert tables
    assert all(table.find("caption") is not None for table in tables)
    assert "color-scheme: light dark" in text
    assert "How to mend it: <a href=" in text
