"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

It follows no names, so it can miss none: all of the script that has run when it measures counts,
which is each statement up to the one that measures; and so does every file of autopar, but for
those that only show or keep what was measured. Comments, docstrings and layout are no part of it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import json
import linecache
import re
import token
import tokenize
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]  # autopar
_SHOWS = (  # folders and files that measure nothing
    *("__main__.py", "display/", "recorded/", "traces/command.py", "traces/report.py"),
    *("graph/audit.py", "traces/findings.py", "traces/idle.py", "traces/utilization.py"),
    *("records/claim.py", "records/digest.py", "records/experiment.py", "records/gallery.py"),
    *("records/provenance.py", "records/store.py"),
)
_CELLS = re.compile(r"<ipython-input-|.*ipykernel_\d+[\\/]")  # how files of cells are named
_MAGIC = re.compile(r"get_ipython\(\)\.(system\('pip |run_line_magic\('(pip|matplotlib)',)")
_LAYOUT = (token.NL, token.COMMENT, token.ENDMARKER)
_MARKS = {token.NEWLINE: "\n", token.INDENT: "\n+", token.DEDENT: "\n-"}  # however wide
_WITH_CODE = -1  # the kind of a text with code inside, from Python 3.12 on
_INSIDE = {  # how deep such a text leads
    getattr(token, f"{kind}_{end}"): depth
    for kind in ("FSTRING", "TSTRING")
    for end, depth in (("START", 1), ("END", -1))
    if hasattr(token, f"{kind}_{end}")
}


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """The `script_digest` of a function of a file or a notebook; OSError if it has no source.

    What its script runs at this time is the last statement that counts. If it runs none, as where
    another module has imported the script, all of it counts.
    """
    experiment = inspect.unwrap(experiment)
    texts = _cells(experiment) or ["".join(inspect.findsource(experiment)[0]).strip()]
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        if frame.f_locals is experiment.__globals__:  # the top level of the script, or of a cell
            running = "".join(linecache.getlines(frame.f_code.co_filename))
            if running.strip() in texts:
                texts.remove(running.strip())
                texts.append(_until(running, line))
    return _digest(texts, experiment.__name__, parameters)


def script_digest(
    script: str, experiment: str, parameters: Mapping[str, Any], line: int | None = None
) -> str:
    """A SHA-256 over what a script's text runs up to a line, autopar's code, and parameters."""
    return _digest([_until(script, line)], experiment, parameters)


def _digest(texts: Sequence[str], experiment: str, parameters: Mapping[str, Any]) -> str:
    script = [piece for text in texts for piece in _pieces(text)]
    whole = json.dumps([experiment, parameters, script, _package(_ROOT)], sort_keys=True)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


@functools.cache  # of what this process has loaded
def _package(root: Path) -> str:
    """A SHA-256 over the files that measure."""
    code = {
        name: [*_pieces(path.read_text(encoding="utf-8"))]
        for path in root.rglob("*.py")
        if not (name := path.relative_to(root).as_posix()).startswith(_SHOWS)
    }
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def _cells(experiment: Callable[..., Any]) -> list[str]:
    """What the notebook of an experiment has run, each cell as it was run last; none of a file."""
    if not (place := _CELLS.match(inspect.getsourcefile(experiment) or "")):
        return []
    history: list[str] = experiment.__globals__.get("In", [])
    if "".join(inspect.findsource(experiment)[0]).strip() not in map(str.strip, history):
        # Run without a history, as by `ipython page.ipynb`: what was compiled is there anyway.
        names = [name for name in linecache.cache if name.startswith(place[0])]
        history = ["".join(linecache.getlines(name)) for name in names]
    once = [*dict.fromkeys(cell.strip() for cell in reversed(history))]
    return [cell for cell in reversed(once) if not _is_set_up(cell)]


def _is_set_up(cell: str) -> bool:
    """Whether a cell only installs, imports and sets pictures up; or no code, so it never ran."""
    try:
        statements = ast.parse(cell).body
    except SyntaxError:
        return True
    magics = [_MAGIC.search(ast.unparse(one)) is not None for one in statements]
    imports = [isinstance(one, ast.Import) for one in statements]
    return any(magics) and all(map(any, zip(magics, imports, strict=True)))


def _until(text: str, line: int | None) -> str:
    """Source up to the end of the statement that a line is of."""
    if line is None:
        return text
    ends = [one.end_lineno or 0 for one in ast.parse(text).body if one.lineno <= line]
    return "\n".join(text.split("\n")[: max(ends, default=0)])


def _pieces(text: str) -> Iterator[str]:
    """Source in pieces that every Python makes alike, without comments, docstrings and layout."""
    statement: list[str] = []
    is_prose = True  # while it has nothing but plain texts
    for kind, piece in _tokens(text):
        if kind not in _MARKS:
            statement.append(piece)
            is_prose &= kind == token.STRING and "f" not in piece.partition(piece[-1])[0].lower()
            continue
        if kind != token.NEWLINE or not is_prose:
            yield from (*statement, _MARKS[kind])
        statement, is_prose = [], True
    yield from statement


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Kind and source of each token; a text with code inside is one, as before Python 3.12."""
    lines = io.StringIO(text).readlines()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    for one in tokens:
        if one.type not in _INSIDE:
            if one.type not in _LAYOUT:
                yield one.type, one.string
            continue
        depth, last = 1, one
        while depth:
            last = next(tokens)
            depth += _INSIDE.get(last.type, 0)
        (row, start), (last_row, end) = one.start, last.end
        inside = [*lines[row - 1 : last_row - 1], lines[last_row - 1][:end]]
        yield _WITH_CODE, "".join(inside)[start:]
