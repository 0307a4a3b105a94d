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
    function's source and, of what that loads as globals, modules, functions, numbers and strings;
    functions of other modules are imported there.

    Args:
        fn: A function whose source can be read.
        *args: Its arguments; they, and what it returns, must be JSON.
        python: The interpreter to run; this one if not given. It finds this autopar.
        environment: Variables to set there beside the ones that are set here.
        under: A command that runs the interpreter, such as `nsys profile` with its options.

    Raises:
        TypeError: `fn` is not a function with a name and a source, or it uses variables of a
            function around it; `under` is one string.
        RuntimeError: The process failed; the message has the end of what it printed.

    >>> def doubled(x):
    ...     return 2 * x
    >>> in_fresh_process(doubled, 21)  # doctest: +SKIP
    42
    """
    function = inspect.unwrap(fn) if callable(fn) else fn
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        came = "a lambda" if isinstance(function, FunctionType) else what(fn)
        msg = (
            f"fn is {came}; expected a function that is written with def, so that the "
            f"new process can be given its source. Define it, and pass its name."
        )
        raise TypeError(msg)
    under = several("under", under, "words of a command, as in under=('nsys', 'profile').")
    with tempfile.TemporaryDirectory() as folder:
        call = _CALL.format(name=function.__name__, at_once=not under)
        file, returned = Path(folder, f"{function.__name__}.py"), Path(folder, "returned.json")
        write_atomically(file, "\n\n".join([*_sources_of(function).values(), call]))
        done = subprocess.run(
            [*under, python or sys.executable, file, json.dumps(args), returned],
            env={**os.environ, **search_path(python), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not returned.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            name, status = function.__name__, done.returncode
            msg = f"{name} failed in a process of its own (exit {status}):\n{said}"
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


def search_path(python: str | None = None) -> dict[str, str]:
    """The variable by which a new process finds modules where this one does; autopar, if another's.

    Packages of this Python are not given to another one.
    """
    folders = [os.environ.get("PYTHONPATH", "")] if python else map(os.path.abspath, sys.path)
    return {"PYTHONPATH": os.pathsep.join([str(_SOURCES), *folders])}


def _sources_of(function: FunctionType, seen: tuple[object, ...] = ()) -> dict[str, str]:
    """Name to source, of a function and, before it, of what it loads as globals."""
    if unknown := function.__code__.co_freevars:
        msg = (
            f"{function.__name__} uses {', '.join(unknown)} of the function around it, which its "
            f"source does not have; expected globals and arguments alone. Pass it as an argument."
        )
        raise TypeError(msg)
    sources, seen = dict[str, str](), (*seen, function)
    source = textwrap.dedent(inspect.getsource(function))
    for name in dict.fromkeys(chain[0] for chain in chains(compile(source, "<source>", "exec"))):
        value = function.__globals__.get(name)
        value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
        if isinstance(value, FunctionType) and value.__globals__ is not function.__globals__:
            sources[name] = f"from {value.__module__} import {value.__name__} as {name}"
        elif isinstance(value, FunctionType) and value not in seen:
            sources |= _sources_of(value, seen)
        elif isinstance(value, ModuleType):
            sources[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, (int, float, str)):
            sources[name] = f"{name} = {value!r}"
    return {**sources, function.__name__: source}
