"""Traces of a hundred thousand kernels: read and reported on in bounded memory."""

import json

import pytest


@pytest.mark.stress
def test_large_traces_take_bounded_memory_and_make_small_outputs(run_program):
    done = run_program("large_traces.py", 100_000)
    assert done.returncode == 0, done.stderr
    *reads, report = json.loads(done.stdout).values()
    for read in reads:
        assert read["work"] > 20_000
        assert read["warnings"] == []
    assert max(each["peak_bytes"] for each in (*reads, report)) < 400e6
    assert max(report["output_bytes"]) < 200_000
