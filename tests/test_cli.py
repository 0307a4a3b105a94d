"""The command line's verbs, and what it says when it can't."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autopar
from autopar.__main__ import main


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr("autopar.__main__.num_gpus", lambda: 1)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("autopar.__main__.num_gpus", lambda: 0)


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


def test_devices_by_the_command_itself():
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    command = [sys.executable, "-m", "autopar", "devices"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hardware\n  cpu: ")
    assert f"torch: {torch.__version__}" in done.stdout
    assert "capacity\n  " in done.stdout
    assert done.stderr == ""


def test_recording_without_a_gpu_is_declined(no_gpu, tmp_path, capsys):
    assert main(["record", script(tmp_path / "plot_a.py"), "--to", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("python -m autopar: recording needs CUDA GPUs")
    assert said.out == ""
    assert not (tmp_path / "machine" / "plot_a.json").exists()


def test_scripts_that_are_not_there_are_named_before_any_is_run(a_gpu, tmp_path, capsys):
    there = script(tmp_path / "plot_a.py")
    assert main(["record", there, str(tmp_path / "plot_b.py"), "--to", str(tmp_path)]) == 2
    assert "plot_b.py" in capsys.readouterr().err
    assert not (tmp_path / "machine" / "plot_a.json").exists()


def test_outside_a_checkout_there_is_nothing_to_record(a_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["record"]) == 2
    assert "root of a checkout" in capsys.readouterr().err


def test_every_script_of_the_gallery_runs_in_a_process_of_its_own(
    a_gpu, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    scripts, folder = Path("gallery/experiments"), Path("records")
    scripts.mkdir(parents=True)
    folder.mkdir()
    for name in ("plot_2_b.py", "plot_1_a.py"):
        script(scripts / name)
    (scripts / "helper.py").write_text("raise SystemExit('not a page')")
    assert main(["record", "--to", "records"]) == 0
    notes = [path.read_text().splitlines() for path in sorted(folder.glob("machine/*"))]
    assert len(notes) == 2
    pids, backends, places, packages = map(set, zip(*notes, strict=True))
    assert len(pids | {str(os.getpid())}) == 3
    assert backends == {"Agg"}
    assert not any(place.startswith(str(tmp_path)) for place in places), "figures lie about"
    assert packages == {autopar.__file__}
    said = capfd.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said] == [
        ["recording", "plot_1_a.py"],
        ["recording", "plot_2_b.py"],
    ]


def test_what_lies_beside_a_record_comes_along(a_gpu, tmp_path):
    beside = "(folder / 'report.sqlite').write_bytes(bytes(range(256)))\n"
    assert main(["record", script(tmp_path / "plot_a.py", beside), "--to", str(tmp_path)]) == 0
    assert (tmp_path / "machine" / "report.sqlite").read_bytes() == bytes(range(256))


def test_a_script_that_fails_is_told_and_the_others_still_run(a_gpu, tmp_path, capfd):
    bad = script(tmp_path / "plot_1_bad.py", "sys.exit('the claim does not hold')\n")
    good = script(tmp_path / "plot_2_good.py")
    assert main(["record", bad, good, "--to", str(tmp_path)]) == 1
    said = capfd.readouterr()
    assert "the claim does not hold" in said.err
    assert "failed: plot_1_bad.py;" in said.err
    assert "FAILED" in said.out
    assert [path.name for path in tmp_path.glob("machine/*")] == ["plot_2_good.json"]


@pytest.mark.parametrize("arguments", [[], ["dance"], ["devices", "--loud"]])
def test_other_verbs_are_refused_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m autopar" in capsys.readouterr().err
