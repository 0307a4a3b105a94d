"""Functions give the same bits at their first call, also where several lanes are the first."""

import pytest

pytestmark = pytest.mark.stress


def test_first_calls_on_lanes_give_the_bits_of_later_ones(run_program):
    done = run_program("first_calls.py", 150)
    assert done.returncode == 0, done.stderr
