"""Traces of a hundred thousand kernels: read and reported on in bounded memory."""

import json

import pytest

pytestmark = pytest.mark.stress


def test_large_files_are_read_in_bounded_memory(run_program):
    done = run_program("trace_speed.py", 100_000)
    assert done.returncode == 0, done.stderr
    for report in json.loads(done.stdout).values():
        assert report["activities"] > 20_000
        assert report["warnings"] == []
        assert report["peak_bytes"] < 500e6, "a tenth of the size in less than a quarter of 2 GB"


def test_a_large_trace_takes_little_memory_and_makes_small_outputs(run_program):
    done = run_program("timeline_speed.py", 100_000)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]["text and files"]
    assert report["peak_bytes"] < 400e6
    assert max(report["output_bytes"].values()) < 200_000
