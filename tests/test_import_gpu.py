"""Importing autopar where there is a GPU: it is left alone."""

import json

import pytest


@pytest.mark.gpu
def test_importing_leaves_the_gpu_alone(run_program, tmp_path):
    done = run_program("import_effects.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["cuda"], found["contexts"], found["effects"]) == (False, [], [])
