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
from types import FunctionType, ModuleType
from typing import Any

from autopar.effects.loads import chains
from autopar.files import write_atomically
from autopar.refusal import several, what

_SOURCES = Path(__file__).parents[2]
# By way of a file, as a profiler round the process prints too. It ends at once, unless a profiler
# has to hear of it: threads of libraries, such as TorchScript's, abort some processes as they end.
_CALL = """import json, os, sys
returned = json.dumps({name}(*json.loads(sys.argv[1])))
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(returned)
if {at_once}:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
"""


def in_fresh_process(
    fn: Callable[..., Any],
    *args: Any,
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Any:
    """Call `fn(*args)` in a new process, and return what it returns.

    For what a process can't change once it runs: settings that libraries read as they are loaded,
    another Python with other packages, a profiler that must start the process. It gets the
    function's source and, of what that loads as globals, modules, functions, numbers and strings.

    Args:
        fn: A function whose source can be read.
        *args: Its arguments; they, and what it returns, must be JSON.
        python: The interpreter to run; this one if not given. It finds this autopar.
        environment: Variables to set there beside the ones that are set here.
        under: A command that runs the interpreter, such as `nsys profile` with its options.

    Raises:
        TypeError: `fn` is not a function with a name and a source, or `under` is one string.
        RuntimeError: The process failed; the message has the end of what it printed.

    >>> def doubled(x):
    ...     return 2 * x
    >>> in_fresh_process(doubled, 21)  # doctest: +SKIP
    42
    """
    check_source(fn)
    under = several("under", under, "words of a command, as in under=('nsys', 'profile').")
    with tempfile.TemporaryDirectory() as folder:
        file = program_of(fn, _CALL.format(name=fn.__name__, at_once=not under), folder)
        returned = Path(folder) / "returned.json"
        done = subprocess.run(
            [*under, python or sys.executable, file, json.dumps(args), returned],
            env={**os.environ, **finds_autopar(), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not returned.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            msg = f"{fn.__name__} failed in a process of its own (exit {done.returncode}):\n{said}"
            raise RuntimeError(msg)
        return json.loads(returned.read_text(encoding="utf-8"))


def csan_reports(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether CSAN, torch's sanitizer for CUDA streams, ends `fn(*args)` in a new process.

    It reports work of one stream on what another may still write. It follows neither the host's
    memory nor memory that was freed and given away.

    Raises:
        RuntimeError: The process failed for another reason.

    >>> def harmless():
    ...     return 1
    >>> csan_reports(harmless)  # doctest: +SKIP
    False
    """
    try:
        in_fresh_process(fn, *args, environment={"TORCH_CUDA_SANITIZER": "1"})
    except RuntimeError as error:
        if "CUDASanitizerErrors" not in str(error):
            raise
        return True
    return False


def check_source(fn: Callable[..., Any]) -> None:
    """Refuse what has no source that a new process could be given."""
    function = inspect.unwrap(fn) if callable(fn) else fn
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        came = "a lambda" if isinstance(function, FunctionType) else what(fn)
        msg = (
            f"fn is {came}; expected a function that is written with def, so that the "
            f"new process can be given its source. Define it, and pass its name."
        )
        raise TypeError(msg)


def program_of(fn: Callable[..., Any], main: str, folder: str) -> Path:
    """Write a function, what it loads as globals, and what runs it; a file, for TorchScript."""
    file = Path(folder) / f"{fn.__name__}.py"
    write_atomically(file, "\n\n".join([*_sources_of(fn).values(), main]))
    return file


def finds_autopar() -> dict[str, str]:
    """The variable by which another Python finds this autopar."""
    return {"PYTHONPATH": os.pathsep.join([str(_SOURCES), os.environ.get("PYTHONPATH", "")])}


def _sources_of(fn: Callable[..., Any], seen: tuple[object, ...] = ()) -> dict[str, str]:
    """Name to source, of a function and, before it, of what it loads as globals."""
    function, sources = inspect.unwrap(fn), dict[str, str]()
    source = textwrap.dedent(inspect.getsource(function))
    for name in dict.fromkeys(chain[0] for chain in chains(compile(source, "<source>", "exec"))):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value not in (*seen, fn):
            sources |= _sources_of(value, (*seen, fn))
        elif isinstance(value, ModuleType):
            sources[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, (int, float, str)):
            sources[name] = f"{name} = {value!r}"
    return {**sources, function.__name__: source}
