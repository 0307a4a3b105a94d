"""Nsys: evidence from the SQLite files that `nsys export --type sqlite` writes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autopar.display.format import printable, shortened
from autopar.traces.check import evidence_of, number, whole_number, work_tag
from autopar.traces.trace import HOST, UNKNOWN, Rows, Tag, Trace, TraceError

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES = f"{_PREFIX}KERNEL", f"{_PREFIX}MEMCPY"
_FILLS, _GRAPHS = f"{_PREFIX}MEMSET", f"{_PREFIX}GRAPH_TRACE"
_CALLS = (f"{_PREFIX}RUNTIME", f"{_PREFIX}DRIVER")
_WORK = {_KERNELS, _COPIES, _FILLS, _GRAPHS}
_RANGES, _TEXTS = "NVTX_EVENTS", "StringIds"
# Tables of what has a start -> the columns that tell its name.
_NAMED_BY = {
    _KERNELS: ("demangledName", "shortName"),
    _FILLS: (),
    _GRAPHS: ("graphId",),
    _COPIES: ("copyKind", "srcKind", "dstKind"),
    **dict.fromkeys(_CALLS, ("nameId",)),
    _RANGES: ("text", "textId", "eventType"),
}
EVENTS = tuple(_NAMED_BY)
NAMES = [  # columns that have the numbers of strings
    *((_KERNELS, "demangledName"), (_KERNELS, "shortName")),
    *((_CALLS[0], "nameId"), (_CALLS[1], "nameId"), (_RANGES, "textId")),
]
_COLUMNS = ("start", "end", "correlationId", "bytes")
_WHERE = ("globalPid", "globalTid", "deviceId", "contextId", "streamId")
_ENDED = (59, 60, None)  # ranges pushed and popped, or started and ended; others are marks
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
            trace = evidence_of(export.records(), handed={}, in_order=())
    except _ERRORS as error:
        msg = f"it is an SQLite database that can't be read: {error!s:.200}. Export it again."
        raise TraceError(msg) from error
    remarks = tuple(dict.fromkeys(export.remarks))
    if not (len(trace.work) or len(trace.host.of("range"))):
        listed = ", ".join(map(printable, map(shortened, sorted(export.tables)[:5]))) or "(none)"
        msg = (
            f"it is an SQLite database without work of a GPU or NVTX ranges: its tables are "
            f"{listed}. Expected an export of Nsight Systems, with {_KERNELS}: record with "
            f"nsys profile --trace=cuda,nvtx."
        )
        why = " ".join((*remarks, *trace.remarks))
        raise TraceError(f"nothing of it can be used: {why}" if why else msg)
    # Without all of its work, or what that is called, no figure of a GPU is known; without all
    # calls, no cause of idle time.
    gpus = sorted({tag.gpu for tag in trace.work.present}) or ["GPUs"]
    doubts = gpus * bool(export.damage & {*_WORK, _TEXTS}) + [HOST] * bool(export.damage - _WORK)
    return replace(
        trace,
        warnings=(*trace.warnings, *remarks),
        doubts=dict.fromkeys(doubts, "A table of it was read in part only.") | trace.doubts,
        origin="an export of Nsight Systems",
    )


class _Export:
    """An open export: rows as the tables have them, up to the first damage."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self.remarks: list[str] = []
        self.damage: set[str] = set()  # tables that were read in part only
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in listed}
        self._strings = dict(self._rows(_TEXTS, "id", "value"))
        processes = {pid for table in _WORK for pid in self._rows(table, "globalPid")}
        self._several = len(processes - {(None,)}) > 1
        self._contexts: dict[str, Any] = {}

    def records(self) -> Rows:
        """What is in all tables."""
        rows, unended = Rows(), 0
        for table, naming in _NAMED_BY.items():
            columns = (*_COLUMNS, *_WHERE, *naming)
            for start, end, correlation, size, *where in self._rows(table, *columns):
                if table == _RANGES and where.pop() not in _ENDED:
                    continue
                if table == _RANGES and end is None:
                    unended += 1
                    continue
                start_ns, launch = number(start), UNKNOWN
                if isinstance(correlation, int):  # of 32 bits, of each process for itself
                    launch = self._process(*where[:2]) << 32 | correlation & 0xFFFFFFFF
                times_us = start_ns / 1e3, (number(end) - start_ns) / 1e3  # exact till divided
                rows.add((table, *where), self._tag, times_us, launch, whole_number(size))
        if unended:
            self.remarks.append(f"{unended:,} NVTX ranges have no end, and were left out.")
        return rows

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, with None for columns that its version does not have."""
        if table not in self.tables:
            return
        try:
            present = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
            wanted = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
            yield from self._connection.execute(f'SELECT {wanted} FROM "{table}"')
        except _ERRORS as error:
            self.damage.add(table)
            self.remarks.append(f"The table {table} was read in part only: {error!s:.200}.")

    def _tag(
        self, table: str, pid: Any, tid: Any, device: Any, context: Any, stream: Any, *named: Any
    ) -> Tag:
        """What a row is of: work on a stream, or a call or a range of a thread."""
        process = f"process {self._process(pid, tid)} " if self._several else ""
        name = self._name(table, named)
        if table not in _WORK:
            thread = tid & 0xFFFFFF if isinstance(tid, int) else "unknown"
            return Tag(name, f"{process}thread {thread}", "range" if table == _RANGES else "call")
        gpu = queue = ""
        if isinstance(device, int) and isinstance(stream, int):
            gpu = f"{process}GPU {device}"
            # Contexts number their streams each for itself.
            first = self._contexts.setdefault(gpu, context)
            queue = f"stream {stream}" + f" of context {context}" * (context != first)
        return work_tag(name, gpu, queue, is_copy=table == _COPIES)

    def _process(self, pid: Any, tid: Any) -> int:
        """The number of a process among several: all but 24 bits of a thread's."""
        serial = tid if isinstance(tid, int) else pid
        return serial >> 24 & 0xFFFFFF if self._several and isinstance(serial, int) else 0

    def _name(self, table: str, named: tuple[Any, ...]) -> str:
        if table == _FILLS:
            return "Memset"
        if table == _GRAPHS:
            return f"CUDA graph {named[0]} (--cuda-graph-trace=node shows its nodes)"
        if table == _COPIES:
            way, *ends = named
            source, target = (_MEMORY_KINDS.get(end, "unknown") for end in ends)
            return f"Memcpy {_COPY_KINDS.get(way, 'of another kind')} ({source} -> {target})"
        # The text itself, or the first that is the number of one.
        words = [self._strings.get(key, key) for key in named if key is not None]
        name = next((word for word in words if isinstance(word, str)), "unnamed")
        return _VERSION.sub("", name) if table in _CALLS else name
