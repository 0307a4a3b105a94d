"""Nsys: evidence from the SQLite files that `nsys export --type sqlite` writes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autopar.traces.check import clean, evidence_of, number, whole_number, work_tag
from autopar.traces.trace import HOST, UNKNOWN, Rows, Tag, Trace, TraceError

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES = f"{_PREFIX}KERNEL", f"{_PREFIX}MEMCPY"
_FILLS, _GRAPHS = f"{_PREFIX}MEMSET", f"{_PREFIX}GRAPH_TRACE"
_CALLS = (f"{_PREFIX}RUNTIME", f"{_PREFIX}DRIVER")
_WORK = {_KERNELS, _COPIES, _FILLS, _GRAPHS}
_RANGES = "NVTX_EVENTS"
EVENTS = (_KERNELS, _COPIES, _FILLS, _GRAPHS, *_CALLS, _RANGES)  # tables of what has a start
NAMES = [  # columns that have the numbers of strings
    *((_KERNELS, "demangledName"), (_KERNELS, "shortName")),
    *((_CALLS[0], "nameId"), (_CALLS[1], "nameId"), (_RANGES, "textId")),
]
_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "globalPid", "correlationId")
_ENDED = (59, 60)  # ranges pushed and popped, or started and ended; others are marks
# Of damaged files not even the messages can always be decoded.
_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_VERSION = re.compile(r"_v\d+(_pt[sd]+z)?$")
# As CUPTI numbers them.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


def read_export(path: Path) -> Trace:
    """What an export of Nsight Systems says."""
    # Neither locked nor changed, and no other file is made beside it.
    place = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(place, uri=True)) as connection:
            export = _Export(connection)
            trace = evidence_of(_work(export), _calls(export), _ranges(export), Rows(), Rows())
    except _ERRORS as error:
        msg = f"it is an SQLite database that can't be read: {_words(error)}. Export it again."
        raise TraceError(msg) from error
    if not (len(trace.work) or len(trace.ranges)):
        listed = ", ".join(map(clean, sorted(export.tables)[:5])) or "(none)"
        msg = (
            f"it is an SQLite database without work of a GPU or NVTX ranges: its tables are "
            f"{listed}. Expected an export of Nsight Systems, with {_KERNELS}: record with "
            f"nsys profile --trace=cuda,nvtx."
        )
        why = " ".join((*export.remarks, *trace.remarks))
        raise TraceError(f"nothing of it can be used: {why}" if why else msg)
    warnings = (*trace.warnings, *dict.fromkeys(export.remarks))
    # Without all of its work, no idle time of a GPU is known; without all calls, no cause of it.
    gpus = {tag.gpu for tag in trace.work.tags} if export.damage & _WORK else set()
    in_part = {*gpus, *([HOST] if export.damage - _WORK else [])}
    doubts = dict.fromkeys(in_part, "A table of it was read in part only.") | trace.doubts
    return replace(trace, warnings=warnings, doubts=doubts, origin="an export of Nsight Systems")


class _Export:
    """An open export: rows as the tables have them, up to the first damage."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self.remarks: list[str] = []
        self.damage: set[str] = set()  # tables that were read in part only
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in listed}
        self._strings = dict(self.rows("StringIds", "id", "value"))
        tables = (_KERNELS, _COPIES, _FILLS, _GRAPHS)
        processes = {pid for table in tables for pid in self.rows(table, "globalPid")}
        self._several = len(processes - {(None,)}) > 1
        self._contexts: dict[str, Any] = {}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, with None for columns that its version does not have."""
        if table not in self.tables:
            return
        try:
            present = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
            wanted = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
            yield from self._connection.execute(f'SELECT {wanted} FROM "{table}"')
        except _ERRORS as error:
            self.damage.add(table)
            self.remarks.append(f"The table {table} was read in part only: {_words(error)}.")

    def name(self, *keys: Any) -> str:
        """The first of some keys that is the number of a string."""
        words = (self._strings.get(key) for key in keys if isinstance(key, int))
        return clean(next((word for word in words if isinstance(word, str)), "unnamed"))

    def add_call(
        self, rows: Rows, name: str, start: Any, end: Any, serial: Any, correlation: Any = None
    ) -> None:
        """Add a call or a range of a thread."""
        number_ = serial & 0xFFFFFF if isinstance(serial, int) else "unknown"
        thread = clean(f"{self._process(serial)}thread {number_}")
        launch = self._launch(serial, correlation)
        rows.add(rows.place(Tag(name, thread)), _times_us(start, end), launch)

    def add_work(
        self, rows: Rows, name: str, row: Sequence[Any], size: Any = None, *, is_copy: bool = False
    ) -> None:
        """Add work of a GPU, from the values of `_COLUMNS`."""
        start, end, device, context, stream, serial, correlation = row
        gpu = queue = ""
        if isinstance(device, int) and isinstance(stream, int):
            gpu = clean(f"{self._process(serial)}GPU {device}")
            # Contexts number their streams each for itself.
            first = self._contexts.setdefault(gpu, context)
            queue = clean(f"stream {stream}" + (f" of context {context}" * (context != first)))
        place = rows.place(work_tag(name, gpu, queue, is_copy=is_copy))
        launch = self._launch(serial, correlation)
        rows.add(place, _times_us(start, end), launch, whole_number(size))

    def _process(self, serial: Any) -> str:
        """What names of one process among several begin with: all but 24 bits of a thread's."""
        several = self._several and isinstance(serial, int)
        return f"process {serial >> 24 & 0xFFFFFF} " if several else ""

    def _launch(self, serial: Any, correlation: Any) -> int:
        """A correlation, which is of 32 bits, with its process."""
        if not isinstance(correlation, int):
            return UNKNOWN
        process = serial >> 24 & 0xFFFFFF if self._several and isinstance(serial, int) else 0
        return process << 32 | correlation & 0xFFFFFFFF


def _work(export: _Export) -> Rows:
    work = Rows()
    for *row, whole, short in export.rows(_KERNELS, *_COLUMNS, "demangledName", "shortName"):
        export.add_work(work, export.name(whole, short), row)
    for fill in export.rows(_FILLS, *_COLUMNS):
        export.add_work(work, "Memset", fill)
    for *row, graph in export.rows(_GRAPHS, *_COLUMNS, "graphId"):
        name = f"CUDA graph {graph} (--cuda-graph-trace=node shows its nodes)"
        export.add_work(work, name, row)
    columns = ("bytes", "copyKind", "srcKind", "dstKind")
    for *row, size, kind, source, target in export.rows(_COPIES, *_COLUMNS, *columns):
        ends = [_MEMORY_KINDS.get(end, "unknown") for end in (source, target)]
        way = _COPY_KINDS.get(kind, "of another kind")
        name = f"Memcpy {way} ({' -> '.join(ends)})"
        export.add_work(work, name, row, size, is_copy=True)
    return work


def _calls(export: _Export) -> Rows:
    calls = Rows()
    columns = ("nameId", "start", "end", "globalTid", "correlationId")
    name_of = cache(lambda key: _VERSION.sub("", export.name(key)))
    for table in _CALLS:
        for key, *row in export.rows(table, *columns):
            export.add_call(calls, name_of(key), *row)
    return calls


def _ranges(export: _Export) -> Rows:
    ranges = Rows()
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    unended = 0
    for start, end, kind, text, key, serial in export.rows(_RANGES, *columns):
        if kind is not None and kind not in _ENDED:
            continue
        if end is None:
            unended += 1
            continue
        name = clean(text) if isinstance(text, str) else export.name(key)
        export.add_call(ranges, name, start, end, serial)
    if unended:
        export.remarks.append(f"{unended:,} NVTX ranges have no end, and were left out.")
    return ranges


def _times_us(start: Any, end: Any) -> tuple[float, float]:
    """Start and duration in microseconds, from nanoseconds: exact till they are divided."""
    start_ns, end_ns = number(start), number(end)
    return start_ns / 1e3, (end_ns - start_ns) / 1e3


def _words(error: object) -> str:
    """What an error says, in one line of bounded length."""
    return " ".join(f"{error!s:.200}".split())
