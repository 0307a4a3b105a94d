"""Fresh: call a function in a new process, of another environment or another Python."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from autopar.effects.loads import chains
from autopar.files import write_atomically
from autopar.refusal import several, what

_PACKAGE = Path(__file__).parents[1]  # autopar
_TEXTS = annotations.compiler_flag  # of code whose module evaluates no annotations
# By way of files, as a profiler round the process prints too. It ends at once, unless a profiler
# has to hear of it: threads of libraries, such as TorchScript's, abort some processes as they end.
_CALL = """def _autopar_call():
    import json, os, sys
    with open(sys.argv[1], encoding="utf-8") as file:
        given = json.load(file)
    returned = json.dumps({name}(*given))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(returned)
    if {at_once}:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

_autopar_call()
"""
_REPORTS = """def _autopar_reports(*given):
    from autopar.torch_private import comes_of_csan
    try:
        {name}(*given)
    except BaseException as error:
        if comes_of_csan(error):
            return True
        raise
    return False

"""
_PLAIN = int, float, str, bool, type(None)


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
    function's source and, of what that loads as globals, functions of the same module, numbers and
    strings; modules, and what is defined in other modules, are imported there. Defaults of
    parameters are evaluated there.

    It is waited for as long as it takes; `under=("timeout", "60")` ends it after a minute.

    Args:
        fn: A function whose source can be read.
        *args: Its arguments; they, and what it returns, must be JSON.
        python: The interpreter to run; this one if not given. It finds this autopar, and this one
            all modules that are found here.
        environment: Variables to set there beside the ones that are set here.
        under: A command that runs the interpreter, such as `nsys profile` with its options.

    Raises:
        TypeError: `fn` is not a function with a name and a source, or was wrapped by a call and
            not by a decorator, or uses variables of a function around it; `under` is one string.
        RuntimeError: The process failed; the message has the end of what it printed.

    >>> import autopar as ap
    >>> def doubled(x):
    ...     return 2 * x
    >>> ap.in_fresh_process(doubled, 21)  # doctest: +SKIP
    42
    """
    return _in_fresh_process(_CALL, fn, args, python, environment, under)


def _in_fresh_process(
    call: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Any:
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
        call = call.format(name=function.__name__, at_once=not under)
        # Its name is no other module's, as its folder is the first where modules are looked for.
        file, given, returned, printed = (
            Path(folder, name)
            for name in ("_autopar_call.py", "given.json", "returned.json", "printed")
        )
        # Annotations are evaluated there or not, as in the function's module.
        are_texts = bool(function.__code__.co_flags & _TEXTS)
        first = ["from __future__ import annotations"] * are_texts
        write_atomically(file, "\n\n".join([*first, *_sources_of(fn).values(), call]))
        write_atomically(given, json.dumps(args))
        if python:
            Path(folder, "autopar").symlink_to(_PACKAGE)  # and no other package of this Python
        with printed.open("wb") as output:
            done = subprocess.run(
                [*under, python or sys.executable, file, given, returned],
                env={**os.environ, **({} if python else search_path()), **(environment or {})},
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode or not returned.exists():
            words = printed.read_text(encoding="utf-8", errors="replace")
            said = "\n".join(words.splitlines()[-8:])
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

    >>> import autopar as ap
    >>> def harmless():
    ...     return 1
    >>> ap.csan_reports(harmless)  # doctest: +SKIP
    False
    """
    call = _REPORTS + _CALL.replace("{name}", "_autopar_reports")
    return bool(_in_fresh_process(call, fn, args, environment={"TORCH_CUDA_SANITIZER": "1"}))


def search_path() -> dict[str, str]:
    """The variable by which a new process of this Python finds modules where this one does."""
    folders = [*map(os.path.abspath, sys.path), str(_PACKAGE.parent)]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _sources_of(fn: Any, seen: tuple[object, ...] = ()) -> dict[str, str]:
    """Name to source, of a function and, before it, of what it loads as globals."""
    function = inspect.unwrap(fn)
    source, expected = inspect.getsource(function), ""
    if unknown := function.__code__.co_freevars:
        expected = f"uses {', '.join(unknown)} of the function around it, which its source lacks"
    elif function is not fn and not source.lstrip().startswith("@"):
        expected = "was wrapped by a call, of which its source says nothing"
    if expected:
        msg = (
            f"{function.__name__} {expected}; expected a function with its decorators, globals "
            f"and arguments. Pass what it needs as an argument, or decorate it by @."
        )
        raise TypeError(msg)
    sources, seen = dict[str, str](), (*seen, function)
    source = f"if True:\n{source}" if source[0].isspace() else source
    # Without what this file says of annotations: libraries look up what their texts name. And each
    # process has a `__name__` of its own.
    code = compile(source, "<source>", "exec", dont_inherit=True)
    for name in dict.fromkeys(chain[0] for chain in chains(code) if chain[0] != "__name__"):
        value = function.__globals__.get(name)
        inner = inspect.unwrap(value) if callable(value) else value
        if getattr(inner, "__globals__", None) is function.__globals__:
            sources |= {} if inner in seen else _sources_of(value, seen)
        elif isinstance(value, ModuleType):
            sources[name] = f"import {value.__name__} as {name}"
        elif type(value) in _PLAIN and name in function.__globals__:
            plain = f"float({str(value)!r})" if isinstance(value, float) else repr(value)
            sources[name] = f"{name} = {plain}"
        elif place := _importable(value):
            sources[name] = f"from {place} import {value.__name__} as {name}"
    return {**sources, function.__name__: source}


def _importable(value: Any) -> str:
    """The module in which a function or class is found by its name; empty if only in a script."""
    place = getattr(value, "__module__", None) or ""
    there = getattr(sys.modules.get(place), getattr(value, "__name__", ""), None)
    return place if there is value and place != "__main__" else ""
