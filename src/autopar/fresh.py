"""Fresh: call a function in a new process, of another environment or another Python."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parents[1]
# By way of a file, as a profiler round the process prints too.
_CALL = """import json, sys
returned = json.dumps({name}(*json.loads(sys.argv[1])))
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(returned)
"""


def in_fresh_process(
    fn: Callable[..., Any],
    *args: Any,
    uses: tuple[Callable[..., Any], ...] = (),
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Any:
    """Call `fn(*args)` in a new process, and return what it returns.

    For what a process can't change once it runs: settings that libraries read as they are loaded,
    another Python with other packages, or a profiler that must start the process. It gets the
    function's source and nothing of its surroundings, so `fn` imports what it needs in its own
    lines.

    Args:
        fn: A function whose source can be read.
        *args: Its arguments; they, and what it returns, must be JSON.
        uses: Other functions that it calls.
        python: The interpreter to run; this one if not given. It finds this autopar.
        environment: Variables to set there beside the ones that are set here.
        under: A command that runs the interpreter, such as `nsys profile` with its options.

    Raises:
        RuntimeError: The process failed; the message has the end of what it printed.

    >>> def doubled(x):
    ...     return 2 * x
    >>> in_fresh_process(doubled, 21)  # doctest: +SKIP
    42
    """
    sources = [textwrap.dedent(inspect.getsource(each)) for each in (*uses, fn)]
    program = "\n\n".join(sources) + "\n\n" + _CALL.format(name=fn.__name__)
    path = os.pathsep.join([str(_SOURCES), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:  # a file, as TorchScript asks for the source
        file = Path(folder) / f"{fn.__name__}.py"
        file.write_text(program, encoding="utf-8")
        returned = Path(folder) / "returned.json"
        done = subprocess.run(
            [*under, python or sys.executable, file, json.dumps(args), returned],
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not returned.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            msg = f"{fn.__name__} failed in a process of its own (exit {done.returncode}):\n{said}"
            raise RuntimeError(msg)
        return json.loads(returned.read_text(encoding="utf-8"))
