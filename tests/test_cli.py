"""The command line's verbs, and what it says when it can't."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import autopar
from autopar.__main__ import main

SOURCES = str(Path(autopar.__file__).parents[1])
TRACE = str(Path(__file__).parent / "trace_data" / "allreduce_rank0.json.gz")


@pytest.fixture
def gpus(monkeypatch):
    """Set how many GPUs there are."""
    return lambda count: monkeypatch.setattr("autopar.device.num_gpus", lambda: count)


def script(path, code=""):
    """A script whose record notes what it was run with."""
    path.write_text(
        "import importlib.util, os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['AUTOPAR_RECORD_TO'], 'machine')\n"
        "folder.mkdir()\n"
        "notes = [os.getpid(), os.environ['MPLBACKEND'], os.getcwd()]\n"
        "notes.append(importlib.util.find_spec('autopar').origin)\n"  # importing it takes seconds
        f"(folder / '{path.stem}.json').write_text('\\n'.join(map(str, notes)))\n" + code
    )
    return str(path)


def start(*arguments, paths=(), **streams):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*paths, SOURCES]))}
    command = [sys.executable, "-m", "autopar", *arguments]
    return subprocess.run(command, env=environment, text=True, timeout=60, **streams)


@pytest.mark.parametrize("arguments", [["devices"], ["timeline", TRACE]])
def test_a_reader_that_has_enough_ends_it_quietly(arguments):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does after the first line
    with os.fdopen(writer, "w") as stdout:
        done = start(*arguments, stdout=stdout, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("module", ["argparse", "torch"])
def test_ctrl_c_ends_it_quietly_while_it_imports(module, tmp_path):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('unheard')"
    (tmp_path / f"{module}.py").write_text(code)
    done = start("devices", capture_output=True, paths=[tmp_path])
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_ends_it_quietly_while_it_works():
    command = [sys.executable, "-m", "autopar", "timeline", "-"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCES}, **pipes) as process:
        process.stdin.write(b" " * 2**20)  # more than a pipe holds, so it reads
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == process.stdout.read() == b""
    assert process.returncode == 130


def test_devices_by_the_command_itself():
    done = start("devices", capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hardware\n  cpu: ")
    assert f"software\n  autopar: {autopar.__version__}\n" in done.stdout
    assert f"torch: {torch.__version__}" in done.stdout
    assert "capacity\n  " in done.stdout


def test_its_version_is_told_by_the_command_that_an_installation_makes(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"autopar {autopar.__version__}\n"
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert declared["project"]["scripts"] == {"autopar": f"{main.__module__}:{main.__name__}"}


def test_without_a_verb_it_says_which_there_are(capsys):
    assert main([]) == 2
    assert "timeline  explain a profiler's trace" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["timeline", "record"])
def test_the_reference_has_each_option_and_no_other(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    options = {*re.findall(r"--[a-z-]+", capsys.readouterr().out)} - {"--help"}
    page = Path(__file__).parents[1] / "docs" / "reference" / "command_line.rst"
    verbs = page.read_text(encoding="utf-8").split("\n``python -m autopar ")
    (part,) = (part for part in verbs if part.startswith(f"{verb} "))
    named = "".join(re.findall(r"(?m)^    ``(--.*)", part))
    assert {*re.findall(r"--[a-z-]+", named)} == options


def test_what_cannot_be_recorded_is_told_before_any_script_is_run(
    gpus, tmp_path, monkeypatch, capsys
):
    gpus(0)
    there = script(tmp_path / "plot_a.py")
    assert main(["record", there, "--to", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("python -m autopar: recording needs CUDA GPUs")
    assert said.out == ""
    gpus(1)
    assert main(["record", there, str(tmp_path / "plot_b.py"), "--to", str(tmp_path)]) == 2
    assert "plot_b.py" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["record"]) == 2
    assert "root of a checkout" in capsys.readouterr().err
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize("named", ["by --to", "in the environment"])
def test_every_script_of_the_gallery_runs_in_a_process_of_its_own(
    named, gpus, tmp_path, monkeypatch, capfd
):
    gpus(1)
    monkeypatch.chdir(tmp_path)
    if named == "in the environment":
        monkeypatch.setenv("AUTOPAR_RECORD_TO", "records")
    scripts, folder = Path("gallery/experiments"), Path("records")
    scripts.mkdir(parents=True)
    for name in ("plot_2_b.py", "plot_1_a.py"):
        script(scripts / name)
    (scripts / "helper.py").write_text("raise SystemExit('not a page')")
    assert main(["record", *(["--to", "records"] if named == "by --to" else [])]) == 0
    notes = [path.read_text().splitlines() for path in sorted(folder.glob("machine/*"))]
    assert len(notes) == 2
    pids, backends, places, packages = map(set, zip(*notes, strict=True))
    assert len(pids | {str(os.getpid())}) == 3
    assert backends == {"Agg"}
    assert not any(place.startswith(str(tmp_path)) for place in places), "figures lie about"
    assert packages == {autopar.__file__}
    said = capfd.readouterr().out
    assert re.findall(r"(plot_\w+).py: 1 records in", said) == ["plot_1_a", "plot_2_b"]


def test_a_script_that_fails_is_told_and_the_others_still_run(gpus, monkeypatch, tmp_path, capfd):
    gpus(1)
    monkeypatch.setattr("autopar.__main__._TIMEOUT_S", 2.0)
    bad = script(tmp_path / "plot_1_bad.py", "sys.exit('the claim does not hold')\n")
    hangs = script(tmp_path / "plot_2_hangs.py", "while True:\n    pass\n")
    beside = "(folder / 'report.sqlite').write_bytes(bytes(range(256)))\n"
    good = script(tmp_path / "plot_3_good.py", beside)
    assert main(["record", bad, hangs, good, "--to", str(tmp_path)]) == 1
    said = capfd.readouterr()
    assert "the claim does not hold" in said.err
    assert "failed: plot_1_bad.py, plot_2_hangs.py;" in said.err
    assert re.search("plot_1_bad.py: FAILED: .*exit status 1", said.out)
    assert re.search("plot_2_hangs.py: FAILED: .*timed out", said.out)
    names = sorted(path.name for path in tmp_path.glob("machine/*"))
    assert names == ["plot_3_good.json", "report.sqlite"], "what lies beside a record comes along"
    assert (tmp_path / "machine" / "report.sqlite").read_bytes() == bytes(range(256))


def test_no_output_of_timeline_is_written_over_another_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text("a trace")
    written = {"a file that is read": ["--html", "./run.json"]}
    written["what --html writes"] = ["--json", "x", "--html", str(tmp_path / "x")]
    for read in ("run.json", "."):
        for what, outputs in written.items():
            assert main(["timeline", read, *outputs]) == 2
            assert f"this is {what}, too; expected a file of its own" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("run.json", "a trace")
    ]
    with pytest.raises(SystemExit):
        main(["timeline", "--help"])
    assert "SQLite export of Nsight Systems" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full disk")
@pytest.mark.parametrize("options", [[], ["--json", "/dev/full"], ["--json", "-"]])
def test_a_full_disk_is_said_in_one_line(options):
    with Path("/dev/full").open("w") as full:
        done = start("timeline", TRACE, *options, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode in (1, 2)
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs a name for standard output")
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_json_on_standard_output_stands_there_alone(name):
    done = start("timeline", TRACE, "--json", name, stdout=subprocess.PIPE)
    assert json.loads(done.stdout)["format"] == "autopar timeline"
