"""`python -m autopar timeline`: what it prints and writes, and what it says when it can't."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trace_files
from trace_builder import MS, copy, kernel, launch, named, trace

import autopar
from autopar.__main__ import main
from autopar.timeline.chrome_trace import write_trace
from autopar.timeline.span import Span, Timeline
from autopar.traces.command import as_page, as_text, inspect
from autopar.traces.report import Report
from autopar.traces.trace import Trace


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return trace_files.write_all(tmp_path)


def text_of(some: Trace, **options: str) -> str:
    return as_text(Report(some, name="t", **options).sections())


busy = trace(
    kernel(0, 4, launch(-1)),
    copy(3, 5, launch(-1)),
    kernel(8, 10, launch(7.9)),
    kernel(2, 6, gpu="GPU 1"),
    ranges=(named("step", 0, 5), named("step", 8, 9)),
)


def test_by_the_command_itself(files: dict[str, Path], tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    command = [sys.executable, "-m", "autopar", "timeline", str(files["kineto.json"])]
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*command, "--json", str(out)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("kineto.json\n===========\n")
    assert "Why no more overlap?" in done.stdout
    (figures,) = json.loads(out.read_text())
    gpu = figures["gpus"]["GPU 0"]
    assert gpu["busy_s"] == pytest.approx(160.5e-6)
    assert gpu["hidden_s"]["copy"] == pytest.approx(30e-6)
    assert gpu["exposed_s"]["copy"] == pytest.approx(30e-6)


def test_every_format_is_read_and_every_output_written(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in files.items():
        wanted = {each: tmp_path / f"{name}.{each}" for each in ("html", "json")}
        wanted["trace"] = tmp_path / f"{name}.trace.json"
        options = [part for each, out in wanted.items() for part in (f"--{each}", str(out))]
        assert main(["timeline", str(path), *options]) == 0, name
        said = capsys.readouterr()
        assert said.err == ""
        assert all(f"wrote {out}\n" in said.out for out in wanted.values())
        assert json.loads(wanted["json"].read_text())[0]["name"] == name
        assert main(["timeline", str(wanted["trace"])]) == 0
        capsys.readouterr()


def test_reading_and_reporting_do_without_torch(files: dict[str, Path]) -> None:
    program = (
        "import sys\nimport autopar\nfrom autopar.__main__ import main\n"
        "for path in sys.argv[1:]:\n"
        "    autopar.read_trace(path)\n"
        "    assert main(['timeline', path]) == 0\n"
        "sys.exit(', '.join({'torch', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    command = [sys.executable, "-c", program, *map(str, files.values())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_figures_and_findings_in_words() -> None:
    said = text_of(busy)
    assert re.search(r"GPU 0 +10\.00 ms +7\.0 ms +6\.0 ms +compute +60\.0 %", said)
    assert re.search(r"GPU 0 +copy +2\.0 ms +1\.0 ms +1\.0 ms +50\.0 %", said)
    assert "Nothing ran for 2.000 ms in all, longest from 7.000 ms to 9.000 ms" in said
    assert re.search(r"\n2 +1\.0 ms +10\.0 % +- +-\n", said), "GPU 1 has only one lane"
    assert "1. GPU 0: Work was launched late: 3.000 ms, 30.0 % of the time" in said
    assert "How to mend it: https://autopar.readthedocs.io/en/latest/auto_gallery/" in said


def test_times_are_from_where_the_trace_begins() -> None:
    # Its first launch is at -1 ms.
    assert re.search(r"GPU 0 idle +GPU 0 +6\.000 ms +9\.000 ms", text_of(busy))


def test_a_range_is_counted_and_limits_all_figures(tmp_path: Path) -> None:
    said = text_of(busy, range_name="step")
    assert "Limited to 'step', which is there 2 times, 6.000 ms in all" in said
    data = Report(busy, name="t", range_name="step").data()
    assert data["occurrences"] == 2
    assert data["window_s"] == pytest.approx(6 * MS)
    assert data["gpus"]["GPU 0"]["busy_s"] == pytest.approx(6 * MS)
    assert data["gpus"]["GPU 1"]["busy_s"] == pytest.approx(3 * MS)


def test_json_has_the_figures_in_seconds() -> None:
    data = Report(busy, name="t").data()
    gpu = data["gpus"]["GPU 0"]
    assert gpu["idle_by_cause_s"] == {"late": pytest.approx(3 * MS)}
    assert gpu["lanes_at_once_s"] == {
        "0": pytest.approx(3 * MS),
        "1": pytest.approx(6 * MS),
        "2": pytest.approx(1 * MS),
    }
    assert gpu["bound"] == {"resource": "compute", "seconds": pytest.approx(6 * MS)}
    assert data["longest_nothing_s"] == [pytest.approx(7 * MS), pytest.approx(9 * MS)]
    assert [each["cause"] for each in data["findings"]] == ["late", "bare copies"]
    json.dumps(data, allow_nan=False)


def test_what_is_in_doubt_has_no_figure_and_says_why() -> None:
    doubtful = trace(
        kernel(0, 4),
        kernel(0, 5, gpu="GPU 1"),
        kernel(3, 9, gpu="GPU 1"),
        warnings=("Two spans were left out.",),
        doubts={"GPU 1": "Two of its kernels overlap on stream 7."},
    )
    said = text_of(doubtful)
    assert "Warning: Two spans were left out." in said
    assert "In doubt: GPU 1: no time of it is given. Two of its kernels overlap" in said
    assert "GPU 1" not in said.replace("In doubt: GPU 1", "")
    assert Report(doubtful, name="t").data()["gpus"].keys() == {"GPU 0"}
    nothing = trace(kernel(0, 4), doubts={"GPU 0": "Its clock jumps."})
    assert "busy" not in text_of(nothing)
    assert Report(nothing, name="t").data()["nothing_ran_s"] is None


def test_a_trace_without_gpu_work_shows_its_ranges() -> None:
    said = text_of(trace(ranges=(named("step", 0, 5),)))
    assert "No work of a GPU is in it." in said
    assert "busy 5.000 ms" in said
    assert "Why no more overlap?" not in said
    assert text_of(trace()).startswith("t\n=\n")


def test_several_files_stay_apart(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged, page = tmp_path / "merged.json", tmp_path / "all.html"
    wanted = [str(files["own.json"]), str(files["nsys.sqlite"]), str(files["own.json"])]
    assert main(["timeline", *wanted, "--trace", str(merged), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.count("\nWhat ran when\n") == 2, "a file that is named twice is read once"
    assert "nothing is said of overlap between files" in said
    lanes = {
        e["args"]["name"]
        for e in json.loads(merged.read_text())["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert {"own.json: GPU 0 stream 7", "nsys.sqlite: GPU 0 stream 7"} <= lanes
    folder = tmp_path / "folder"
    folder.mkdir()
    assert main(["timeline", str(folder)]) == 2
    assert "no trace in" in capsys.readouterr().err
    for name in ("kineto.json", "kineto.json.gz"):
        (folder / name).write_bytes(files[name].read_bytes())
    assert main(["timeline", str(folder)]) == 0
    assert capsys.readouterr().out.count("\nWhat ran when\n") == 2
    (folder / "notes.json").write_text("{}")
    assert main(["timeline", str(folder)]) == 0
    assert "Left out: " in capsys.readouterr().out
    assert main(["timeline", str(folder), str(folder / "notes.json")]) == 2
    for name in ("kineto.json", "kineto.json.gz"):
        (folder / name).unlink()
    assert main(["timeline", str(folder)]) == 2
    assert "no file in the folder" in capsys.readouterr().err


def test_one_line_says_why_not(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"hello": 1}')
    trace_file = str(files["kineto.json"])
    refused = {
        "other.json": ["timeline", str(other)],
        "missing.json: No such file": ["timeline", str(tmp_path / "missing.json")],
        "no range 'nope'; its ranges are: 'forward'": ["timeline", trace_file, "--range", "nope"],
        "there is no folder": ["timeline", trace_file, "--html", str(tmp_path / "no" / "a.html")],
    }
    for words, arguments in refused.items():
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
        assert said.err.count("\n") == 1


def test_the_page_is_whole_and_asks_for_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    import html5lib

    page = tmp_path / "page.html"
    inspect(list(files.values()), outputs={"html": page})
    text = page.read_text()
    parser = html5lib.HTMLParser(namespaceHTMLElements=False, strict=True)
    tree = parser.parse(text)
    tags = [each for each in tree.iter() if isinstance(each.tag, str)]
    assert not {each.tag for each in tags} & {"script", "img", "link", "iframe", "object"}
    assert "url(http" not in text
    assert "@import" not in text
    ids = [each.get("id") for each in tags if each.get("id")]
    assert len(ids) == len(set(ids))
    levels = [int(each.tag[1]) for each in tags if re.fullmatch("h[1-6]", each.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = [each for each in tags if each.tag == "table"]
    assert tables
    assert all(each.find("caption") is not None for each in tables)
    assert text.count("prefers-color-scheme: dark") == 1


def test_names_from_a_file_are_shown_as_text(tmp_path: Path) -> None:
    import html5lib

    bad = "<script>$x^$ \x1b[31m\x00\ud800\ufffe & 'é'"
    file = tmp_path / "$x^$.json"
    write_trace(Timeline((Span(bad, "GPU 0 " + bad, 0, 1), Span("a", "GPU 1 x", 2, 3))), file)
    outputs = {each: tmp_path / f"out.{each}" for each in ("html", "json")}
    said = inspect([file], outputs=outputs)
    assert "\x1b" not in said
    assert "<script>" in said
    html5lib.HTMLParser(strict=True).parse(outputs["html"].read_text())
    assert "<script" not in outputs["html"].read_text()


def test_many_spans_make_small_outputs() -> None:
    many = trace(*(kernel(i * 0.02, i * 0.02 + 0.015, launch(i * 0.02 - 1)) for i in range(20_000)))
    sections = Report(many, name="t").sections()
    assert len(as_text(sections)) < 10_000
    assert len(as_page(sections, title="t")) < 100_000


@pytest.mark.stress
def test_a_large_trace_takes_little_memory_and_makes_small_outputs() -> None:
    program = Path(__file__).parents[1] / "programs" / "timeline_speed.py"
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, program, "100000"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout)["report"]["text and files"]
    assert found["peak_bytes"] < 400e6
    assert max(found["output_bytes"].values()) < 200_000


def test_damaged_files_make_a_report_or_one_clear_error(tmp_path: Path) -> None:
    chance = random.Random(5)
    whole = {name: path.read_bytes() for name, path in trace_files.write_all(tmp_path).items()}
    outputs = {each: tmp_path / f"out.{each}" for each in ("html", "json")}
    reported, refused = 0, {True}
    for _ in range(200):
        name = chance.choice([*whole])
        data = bytearray(whole[name])
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / name).write_bytes(data)
        try:
            inspect([tmp_path / name], outputs=outputs)
        except ValueError as error:
            refused.add(name in str(error))
        else:
            json.loads(outputs["json"].read_text())
            reported += 1
    assert reported > 20
    assert refused == {True}, "an error names its file"
