"""`python -m autopar timeline`: what it prints and writes, and what it says when it can't."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trace_files
from trace_builder import MS, copy, kernel, launch, named, trace

import autopar
from autopar.__main__ import main
from autopar.timeline.chrome_trace import write_trace
from autopar.timeline.span import Span, Timeline
from autopar.traces.command import Wanted, as_page, as_text, inspect
from autopar.traces.report import Report, Section, comparison
from autopar.traces.trace import OF_TORCH, Trace


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


def test_reading_and_reporting_do_without_torch(files: dict[str, Path], tmp_path: Path) -> None:
    program = (
        "import runpy, sys\nimport autopar\n"
        "for path in sys.argv[5:]:\n"
        "    autopar.read_trace(path)\n"
        "try:\n    runpy.run_module('autopar', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "sys.exit(', '.join({'torch', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    paths = [str(files["kineto.json"]), *(str(files[name]) for name in ("own.json", "nsys.sqlite"))]
    arguments = ["timeline", "--json", str(tmp_path / "out.json"), "--", *paths]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nkineto.json\n===========\n" in done.stdout
    assert "Why no more overlap?" in done.stdout
    gpu = json.loads((tmp_path / "out.json").read_text())["traces"][0]["gpus"]["GPU 0"]
    assert gpu["busy_s"] == pytest.approx(160.5e-6)
    assert gpu["hidden_s"]["copy"] == pytest.approx(30e-6)
    assert gpu["exposed_s"]["copy"] == pytest.approx(30e-6)


def test_every_format_is_read_and_every_output_written(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in files.items():
        wanted = {ending: tmp_path / f"{name}.{ending}" for ending in ("html", "json")}
        options = [part for ending, out in wanted.items() for part in (f"--{ending}", str(out))]
        assert main(["timeline", str(path), *options]) == 0, name
        said = capsys.readouterr()
        assert said.err == ""
        assert all(f"wrote {out}\n" in said.out for out in wanted.values())
        assert json.loads(wanted["json"].read_text())["traces"][0]["name"] == name


def test_figures_and_findings_in_words() -> None:
    said = text_of(busy)
    first = "2 GPUs busy for 36.4 % to 63.6 % of 11.00 ms."
    assert said.startswith(f"t\n=\n{first}\n")
    limit = "at least 6.000 ms, which is computing alone, with kernels and copies as fast"
    assert f"It takes {limit}" in " ".join(said.split())
    assert re.search(r"GPU 0 +11\.00 ms +63\.6 % ######\.+ +6\.0 ms +compute +54\.5 % #####", said)
    assert re.search(r"GPU 0 +copy +2\.0 ms +1\.0 ms +1\.0 ms +50\.0 % #####\.", said)
    assert re.search(r"GPU 0 +The host did something else +2 +2\.\d+ ms +2\d\.\d %", said)
    # Times are from where the trace begins: its first launch is at -1 ms.
    assert re.search(r"GPU 0 idle +GPU 0 +6\.000 ms +9\.000 ms", said)
    assert "How to mend it: https://autopar.readthedocs.io/en/latest/auto_gallery/" in said
    assert max(map(len, said.splitlines())) <= 125, "an address alone is longer than 100"


def test_lines_fit_a_terminal_whatever_names_are() -> None:
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x4_nn_align4>" * 3
    ranges = tuple(named(f"{'a long range name ' * 9}{i}", i, i + 1) for i in range(4))
    work = (kernel(i, i + 0.5, launch(i - 0.1), name=name, gpu="process 1 GPU 1") for i in range(9))
    lines = text_of(trace(*work, ranges=ranges), range_name="*").splitlines()
    assert max(len(line) for line in lines if "https" not in line) <= 100


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    words = " ".join(["GPU 0 was idle for 10.0 ms or 5 % of it."] * 30)
    assert not re.search(r"\d\n *(ms|%)", as_text([Section("t", [words])]))


def test_what_grew_many_times_is_not_said_in_percent() -> None:
    reports = [Report(trace(kernel(0, end)), name="t") for end in (1, 435)]
    said = as_text([comparison(*reports)])
    assert re.search(r"time +1\.000 ms +435\.0 ms +435 times", said)


def test_of_a_damaged_trace_no_change_is_given_and_why_is_said(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, cut = files["kineto.json"], tmp_path / f"{'cut' * 40}.json"
    cut.write_text(good.read_text()[:-900])
    for one, other in ((good, cut), (cut, good)):
        assert main(["timeline", str(one), "--compare", str(other), "--brief"]) == 0
        said = capsys.readouterr().out
        assert "The file is damaged" in said
        assert "No change is given" in said
        assert not re.search(r"[+-][\d.]+ %|new\n", said)
        assert max(map(len, said.splitlines())) <= 100
    assert main(["timeline", str(good), "--compare", str(good)]) == 0
    assert "No change is given" not in capsys.readouterr().out


def test_links_to_one_file_are_one_trace_and_those_to_themselves_are_none(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, loop = tmp_path / "link.json", tmp_path / "loop.json"
    link.symlink_to(files["kineto.json"])
    loop.symlink_to(loop)
    assert main(["timeline", str(files["kineto.json"]), str(link)]) == 0
    assert "Side by side" not in capsys.readouterr().out
    for arguments in ([loop], [link, "--json", loop], [link, "--compare", loop]):
        assert main(["timeline", *map(str, arguments)]) in (1, 2)
        assert "symbolic links" in capsys.readouterr().err


def test_a_range_is_counted_and_limits_all_figures() -> None:
    said = text_of(busy, range_name="st?p")
    assert "Limited to 'st?p', 2 times, 6.000 ms in all" in said
    assert re.search(r"1: step +1\.000 ms +5\.000 ms", said)
    assert re.search(r"2: step +9\.000 ms +1\.000 ms", said)
    data = Report(busy, name="t", range_name="step").data()
    assert [its["duration_s"] for its in data["occurrences"]] == pytest.approx([5 * MS, 1 * MS])
    assert data["window_s"] == pytest.approx(6 * MS)
    assert data["gpus"]["GPU 0"]["busy_s"] == pytest.approx(6 * MS)
    assert data["gpus"]["GPU 1"]["busy_s"] == pytest.approx(3 * MS)


def test_json_has_the_figures_in_seconds() -> None:
    data = Report(busy, name="t").data()
    gpu = data["gpus"]["GPU 0"]
    assert sum(gpu["idle_by_cause_s"].values()) == pytest.approx(gpu["idle_s"])
    assert gpu["bound"] == {"resource": "compute", "seconds": pytest.approx(6 * MS)}
    causes = {finding["cause"]: finding for finding in data["findings"]}
    assert {"elsewhere", "bare copies"} <= causes.keys()
    assert causes["elsewhere"]["page"].endswith("/first_steps/plot_3_cpu_and_gpu.html")
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
    assert Report(nothing, name="t").data()["gpus"] == {}


def test_no_findings_and_no_gpu_work_are_said_in_so_many_words() -> None:
    said = text_of(trace(kernel(0, 4, launch(-0.001))))
    assert "No findings: nothing was seen that more overlap could save." in said
    of_cpu = trace(ranges=(named("step", 0, 5), named("inner", 1, 2)))
    said = text_of(of_cpu)
    assert "No work of a GPU is in it." in said
    assert "busy 5.000 ms" in said
    assert re.search(r"\nstep +1 +5\.000 ms", said), "the drawing has no names"
    assert "more: see" not in said
    assert "And 1 more: see --list-ranges." in as_text(Report(of_cpu, name="t", top=1).sections())
    assert "What was named" not in text_of(busy)
    assert "on_trace_ready" not in said
    assert "on_trace_ready" in text_of(replace(of_cpu, origin=OF_TORCH))
    assert re.search(r"1: step +0\.000 ms +5\.000 ms\n", text_of(of_cpu, range_name="step"))
    assert "Why no more overlap?" not in said
    assert text_of(trace()).startswith("t\n=\n")


def test_several_files_stay_apart(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    wanted = [str(files["own.json"]), str(files["nsys.sqlite"]), str(files["own.json"])]
    assert main(["timeline", *wanted]) == 0
    said = capsys.readouterr().out
    assert said.count("\nWhat ran when\n") == 2, "a file that is named twice is read once"
    assert "What each rank did" in said
    folder.mkdir()
    assert main(["timeline", str(folder)]) == 1
    assert "there is no trace in" in capsys.readouterr().err
    (folder / "notes.json").write_text("{}")
    assert main(["timeline", str(folder)]) == 1
    assert "notes.json' can't be read as a trace" in capsys.readouterr().err
    for name in ("kineto.json", "kineto.json.gz"):
        (folder / name).write_bytes(files[name].read_bytes())
    assert main(["timeline", str(folder), str(files["kineto.json"])]) == 0
    said = capsys.readouterr().out
    assert said.count("\nWhat ran when\n") == 3
    assert f"{folder / 'kineto.json'}\n=" in said, "two of one name are told apart"
    assert "Left out:" in said
    assert "files in all" not in said
    (folder / "more.json").write_text("{}")
    assert main(["timeline", str(folder), "--top", "1"]) == 0
    said = capsys.readouterr().out
    assert said.count("Left out: ") == 2
    assert said.endswith("\nLeft out: 2 of 4 files in all.\n")
    assert main(["timeline", str(folder), str(folder / "notes.json")]) == 1


def test_one_line_says_why_not(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"hello": 1}')
    fine = files["kineto.json"]
    refused = {
        "other.json": (1, [other]),
        "missing.json: No such file": (1, [tmp_path / "missing.json"]),
        "no range 'nope'; its ranges are: 'forward'": (2, [fine, "--range", "nope"]),
        "no GPU '3'; its GPUs are: GPU 0": (2, [fine, "--gpu", "3"]),
        "there is no folder": (2, [fine, "--html", tmp_path / "no" / "a.html"]),
        "this is a file that is read, too": (2, [fine, "--json", fine]),
        "--compare takes one FILE": (2, [fine, files["own.json"], "--compare", fine]),
    }
    for words, (status, arguments) in refused.items():
        assert main(["timeline", *map(str, arguments)]) == status
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
        assert said.err.count("\n") == 1


def test_what_is_asked_for_is_what_comes(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(files["kineto.json"])

    def said(*options: str, status: int = 0) -> str:
        assert main(["timeline", file, *options]) == status
        return capsys.readouterr().out

    assert len(said("--brief").splitlines()) <= 9
    assert "What ran when" not in said("--brief")
    assert re.search(r"\nforward +1 +300\.0 µs", said("--list-ranges"))
    assert "rows more: --top" in said("--top", "1")
    compared = said("--compare", str(files["nsys.sqlite"]))
    assert re.search(r"\ntime +[\d.]+ µs +[\d.]+ µs +[+-][\d.]+ %", compared)
    assert "which is under 100.0 %" in said("--fail-under", "1", status=3)
    assert "which is under" not in said("--fail-under", "5%")
    data = json.loads(said("--json", "-"))
    assert (data["format"], data["version"]) == ("autopar timeline", 3)
    for option in (("--top", "0"), ("--fail-under", "2"), ("--fail-under", "much")):
        with pytest.raises(SystemExit, match="2"):
            main(["timeline", file, *option])


def test_one_file_that_cannot_be_read_does_not_end_the_others(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone.json"
    assert main(["timeline", str(gone), str(files["kineto.json"])]) == 1
    said = capsys.readouterr().out
    assert re.search(r"Left out: \S*gone.json:\s+No\s+such\s+file", said)
    assert "What ran when" in said


def test_a_pipe_in_a_folder_is_not_waited_for(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner.json").mkdir(parents=True)
    os.mkfifo(folder / "pipe.json")
    (folder / "lost.json").symlink_to("nowhere")
    files["kineto.json"].rename(folder / "kineto.json")
    assert main(["timeline", str(folder), "--brief"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Left out: \S*lost.json:\s+No\s+such\s+file", said)
    assert max(map(len, said.splitlines())) <= 100


def test_the_page_is_whole_and_asks_for_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    import html5lib

    page = tmp_path / "page.html"
    inspect(list(files.values()), Wanted(outputs={"html": page}))
    text = page.read_text()
    tree = html5lib.HTMLParser(namespaceHTMLElements=False, strict=True).parse(text)
    tags = [tag for tag in tree.iter() if isinstance(tag.tag, str)]
    assert not {tag.tag for tag in tags} & {"script", "img", "link", "iframe", "object"}
    assert "url(http" not in text
    assert "@import" not in text
    ids = [tag.get("id") for tag in tags if tag.get("id")]
    assert len(ids) == len(set(ids))
    levels = [int(tag.tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = [tag for tag in tags if tag.tag == "table"]
    assert tables
    assert all(table.find("caption") is not None for table in tables)
    assert "color-scheme: light dark" in text
    assert "How to mend it: <a href=" in text


def test_a_page_has_bars_and_code_where_a_terminal_has_characters() -> None:
    reports = Report(busy, name="t"), Report(replace(trace(), origin=OF_TORCH), name="u")
    page = as_page([one for report in reports for one in report.sections()], title="t")
    assert "<code>on_trace_ready</code>" in page
    assert re.search(r"gradient\([^<]+ 63\.6%[^<]+>63\.6&nbsp;%</td>", page)
    assert not re.search(r"`|###|\.\.\.\.", page)


def test_names_from_a_file_are_shown_as_text(tmp_path: Path) -> None:
    import html5lib

    bad = "<script>$x^$ \x1b[31m\x00\ud800\ufffe & 'é'"
    file = tmp_path / "$x^$.json"
    write_trace(Timeline((Span(bad, "GPU 0 " + bad, 0, 1), Span("a", "GPU 1 x", 2, 3))), file)
    said, _ = inspect([file], Wanted(outputs={"html": tmp_path / "out.html"}))
    assert "\x1b" not in said
    assert "<script>" in said
    page = (tmp_path / "out.html").read_text()
    html5lib.HTMLParser(strict=True).parse(page)
    assert "<script" not in page


def test_many_spans_make_small_outputs() -> None:
    many = trace(*(kernel(i * 0.02, i * 0.02 + 0.015, launch(i * 0.02 - 1)) for i in range(20_000)))
    sections = list(Report(many, name="t").sections())
    assert len(as_text(sections)) < 10_000
    assert len(as_page(sections, title="t")) < 100_000
