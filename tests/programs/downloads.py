"""Run notebooks and scripts as a reader does who has downloaded them; any error ends one.

Reads a path a line. Runs each in a process of its own, forked from this one, which has imported
what takes long, and answers with its exit status and the end of what it has said, as JSON.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import torch  # noqa: F401
from IPython.core.interactiveshell import InteractiveShell

_LONGEST_S = 110  # ten times what a page takes


def run_notebook(path):
    shell = InteractiveShell.instance()
    for cell in json.loads(Path(path).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            done = shell.run_cell("".join(cell["source"]), store_history=True)
            if not done.success:
                raise done.error_in_exec or done.error_before_exec


def run(path, output):
    """Run a file as the main program, with this output, and end."""
    signal.alarm(_LONGEST_S)
    for stream in (1, 2):
        os.dup2(output, stream)
    try:
        sys.argv = [path]
        run_notebook(path) if path.endswith(".ipynb") else runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


for line in sys.stdin:
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            run(line.strip(), output.fileno())
        _, status = os.waitpid(process, 0)
        output.seek(0)
        said = output.read().decode(errors="replace")[-4000:]
    print(json.dumps([status, said]), flush=True)
