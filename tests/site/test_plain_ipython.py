"""Cells that plain IPython runs, as by `ipython page.ipynb`: it keeps no history of them."""

import os
import subprocess
import sys
from pathlib import Path

import autopar
from autopar.records.digest import script_digest

_CELLS = ["%matplotlib --list", "SCALE = 2.0", "def experiment(size):\n    return SCALE * size"]
_PROGRAM = f"""
from IPython.core.interactiveshell import InteractiveShell
from autopar.records.digest import code_digest

shell = InteractiveShell.instance()
for cell in {_CELLS!r}:
    shell.run_cell(cell, silent=True).raise_error()
assert not any(shell.user_ns["In"])
print(code_digest(shell.user_ns["experiment"], {{"size": 8}}))
"""


def test_cells_that_are_in_no_history_count_all_the_same(tmp_path):
    path = str(Path(autopar.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": path},
        check=False,
    )
    script = script_digest("\n\n".join(_CELLS[1:]), "experiment", {"size": 8})
    assert done.stdout.split()[-1:] == [script], done.stderr
