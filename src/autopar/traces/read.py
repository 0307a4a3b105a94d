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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, cast

from autopar.files import path_of
from autopar.timeline.span import Timeline
from autopar.traces.chrome import read_text
from autopar.traces.trace import Trace, TraceError

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_START, _PIECE = 64, 1 << 13  # bytes
# What else is given by mistake: how it begins, and what to do.
_OTHERS = (
    (_GZIP, "it was packed with gzip twice; unpack it once."),
    (b"PK", "it is a zip archive; unpack it first."),
    (b"\x80", "it is a pickle, such as of torch.cuda.memory; export a Chrome trace instead."),
    (b"\x28\xb5\x2f\xfd", "it is packed with zstd; unpack it first."),
    (b"\x89PNG", "it is a picture (PNG)."),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0"), "its text is UTF-16; save it as UTF-8."),
    (b"<", "it is a page of HTML or XML, perhaps of a failed download; fetch it again."),
)
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


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
    >>> from autopar import Span, Timeline, write_trace
    >>> run = Timeline((Span("mm", "stream", 0.0, 2.0), Span("D2H", "bus", 1.0, 3.0, "copy")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(run, f"{folder}/run.json")
    ...     read_trace(f"{folder}/run.json").hidden()
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
    start = file.read(_START)
    file.seek(0)
    if start.startswith(_SQLITE):
        from autopar.traces.nsys import read_export  # sqlite3 is slow to import

        return read_export(path)
    if not start.startswith(_GZIP):
        if why := _mistake(name, start):
            raise TraceError(why)
        return read_text(_texts(file))
    with gzip.GzipFile(fileobj=file) as packed:
        unpacked = cast(IO[bytes], packed)
        with contextlib.suppress(gzip.BadGzipFile, EOFError, zlib.error):
            if unpacked.read(len(_SQLITE)) == _SQLITE:
                unpacked.seek(0)
                return _read_copy(unpacked, name)
        with contextlib.suppress(gzip.BadGzipFile, EOFError, zlib.error):
            unpacked.seek(0)
            if why := _mistake(name, unpacked.read(_START) or b"["):
                raise TraceError(why)
        unpacked.seek(0)
        return read_text(_texts(unpacked))


def _read_copy(file: IO[bytes], name: Path) -> Trace:
    """Read what has no file of its own, which SQLite needs, or can be read only once."""
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        return _read(copy, Path(copy.name), name)


def _texts(file: IO[bytes]) -> Iterator[str]:
    """The text of a file, in small pieces, since what can't be unpacked takes its piece with it."""
    return codecs.iterdecode(iter(partial(file.read, _PIECE), b""), "utf-8-sig", "replace")


def _mistake(path: Path, start: bytes) -> str:
    """What is wrong with a file that is given by mistake, and what to do; empty if it is not."""
    if not start:
        return "it is empty. Export it again, after the profiler has stopped."
    if path.name.endswith(_REPORTS):
        return (
            f"it is a report of Nsight Systems in its own format; run `nsys export --type sqlite "
            f"{path.name}` and read what that writes."
        )
    return next((words for mark, words in _OTHERS if start.lstrip().startswith(mark)), "")
