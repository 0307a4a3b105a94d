"""Read: anyone's trace file, told apart by what is in it."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import os
import shutil
import tempfile
import warnings
import zlib
from functools import partial
from pathlib import Path
from typing import IO, cast

from autopar.files import path_of
from autopar.timeline.span import Timeline
from autopar.traces.chrome import read_text
from autopar.traces.trace import Trace, TraceError

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 13  # bytes
_REPORTS = {".nsys-rep", ".qdrep", ".qdstrm"}


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Read what ran when from a profiler's trace file.

    Reads the Chrome traces of `torch.profiler`, the SQLite exports of Nsight Systems, and what
    `write_trace` wrote, plain or gzipped, told apart by content. What was left out is given as
    warnings: records that can't be right (a start of zero, work long before its launch), and as a
    whole a GPU of which they are more than a hundredth, as no figure of it could be trusted.

    Args:
        path: The file, or a pipe; of several ranks each has its own file.

    Raises:
        TraceError: It is no such file, nothing is in it, or nothing in it can be trusted.
        OSError: It can't be opened.

    >>> import tempfile
    >>> import autopar as ap
    >>> run = ap.Timeline([ap.Span("mm", "lane", 0, 2), ap.Span("D2H", "bus", 1, 3, "copy")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ap.write_trace(run, f"{folder}/run.json")
    ...     ap.read_trace(f"{folder}/run.json").hidden()
    0.5
    """
    trace = read_evidence(path)
    for words in trace.remarks:
        warnings.warn(f"{os.fspath(path)}: {words}", stacklevel=2)
    trusted = trace.trusted()
    if len(trace.work) > len(trusted.work) == 0:
        why = " ".join(dict.fromkeys(trace.doubts.values()))
        msg = f"{os.fspath(path)!r} has nothing that can be trusted: {why} Profile again."
        raise TraceError(msg)
    return trusted.timeline


def read_evidence(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> Trace:
    """Read what a trace file says, with what is wrong with it; see `read_trace`.

    If `file` is given, such as `sys.stdin.buffer`, it is read to its end and the path is its name.
    """
    path = path_of(path)
    try:
        with contextlib.nullcontext(file) if file else path.open("rb") as opened:
            if file or not opened.seekable():
                return _read_copy(opened, path)
            return _read(opened, path, path)
    except TraceError as error:
        msg = f"{str(path)!r} can't be read as a trace: {error}"
        raise TraceError(msg) from None
    except OSError as error:
        if error.errno and not error.filename:  # the path opened, and couldn't be read
            error.filename = str(path)
        raise


def _read(file: IO[bytes], path: Path, name: Path) -> Trace:
    """Read what has been opened, and has a path and a name."""
    start = file.read(len(_SQLITE))
    file.seek(0)
    if start == _SQLITE:
        from autopar.traces.nsys import read_export  # sqlite3 is slow to import

        return read_export(path)
    if not start:
        msg = "it is empty. Export it again, after the profiler has stopped."
        raise TraceError(msg)
    if name.suffix in _REPORTS:
        how = f"run `nsys export --type sqlite {name.name}` and read what that writes."
        msg = f"it is a report of Nsight Systems in its own format; {how}"
        raise TraceError(msg)
    if start.startswith(_GZIP):
        file = cast(IO[bytes], gzip.GzipFile(fileobj=file))
        with contextlib.suppress(gzip.BadGzipFile, EOFError, zlib.error):
            start = file.read(len(_SQLITE))
        file.seek(0)
        if start == _SQLITE:
            return _read_copy(file, name)
    # In small pieces, since what can't be unpacked takes its piece with it.
    pieces = iter(partial(file.read, _PIECE), b"")
    return read_text(codecs.iterdecode(pieces, "utf-8-sig", "replace"))


def _read_copy(file: IO[bytes], name: Path) -> Trace:
    """Read what has no file of its own, which SQLite needs, or can be read only once."""
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        return _read(copy, Path(copy.name), name)
