"""Nsight: call a function under NVIDIA's two profilers, and read what they say of it."""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autopar.timing.fresh_process import in_fresh_process
from autopar.traces.nsys import EVENTS, NAMES
from autopar.traces.read import read_trace

# Without the last two options before the output it would sample the CPU: gigabytes.
SYSTEMS = "nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --output={report}"
EXPORT = "nsys export --type=sqlite --output={report}.sqlite {report}.nsys-rep"
# Only the range named `compute`, pushed and popped. Else clocks would be held below their rate.
COMPUTE = (
    "ncu --clock-control none --nvtx --nvtx-include compute/ "
    "--section SpeedOfLight --section LaunchStats --section Occupancy --csv --log-file {log}"
)
DURATION = "Duration"
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 1e-2}


class ToolError(RuntimeError):
    """A tool is there, and does not work here."""


@contextlib.contextmanager
def _working(tool: str) -> Iterator[None]:
    """Tell a tool that does not work here from results that are wrong."""
    try:
        yield
    except (RuntimeError, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        msg = f"{tool} does not work on this machine: {error}"
        raise ToolError(msg) from error


def systems(fn: Callable[..., Any], *args: Any, export: Path, **given: Any) -> Any:
    """Call `fn(*args)` in a new process under Nsight Systems, and write its report as SQLite.

    Args:
        fn: A function, as for `in_fresh_process`.
        *args: Its arguments.
        export: The file to write, which `read_trace` reads.
        **given: Other arguments of `in_fresh_process`.

    Raises:
        ToolError: `nsys` is not there or fails.
    """
    report = export.with_suffix("")
    with _working("nsys"):
        under = shlex.split(SYSTEMS.format(report=report))
        returned = in_fresh_process(fn, *args, under=under, **given)
        command = shlex.split(EXPORT.format(report=report))
        subprocess.run(command, check=True, capture_output=True)
        report.with_suffix(".sqlite").replace(export)
    return returned


def cut(export: Path, names: Sequence[str], small: Path) -> Path:
    """Write what an export has of ranges with given names as an export of its own.

    Raises:
        KeyError: The export has no such range.
    """
    ranges = [span for span in read_trace(export).select("host") if span.name in names]
    if missing := set(names) - {span.name for span in ranges}:
        msg = f"{export.name} has no range {', '.join(sorted(missing))}"
        raise KeyError(msg)
    times = [(round(1e9 * span.start_s), round(1e9 * span.end_s)) for span in ranges]
    inside = " OR ".join(f"start BETWEEN {start} AND {end}" for start, end in times)
    with contextlib.closing(sqlite3.connect(small)) as database, database:
        database.execute("ATTACH ? AS whole", [str(export)])
        there = {name for (name,) in database.execute("SELECT name FROM whole.sqlite_master")}
        named = [(table, column) for table, column in NAMES if table in there]
        used = " UNION ".join(f"SELECT {column} FROM {table}" for table, column in named)
        rows = {**dict.fromkeys(EVENTS, inside), "ENUM_CUDA_MEM_KIND": "TRUE"}
        for table, which in {**rows, "StringIds": f"id IN ({used})"}.items():
            if table in there:  # those of which nothing was seen are not
                whole = f"SELECT * FROM whole.{table} WHERE {which}"
                database.execute(f"CREATE TABLE {table} AS {whole}")
    return small


def compute(fn: Callable[..., Any], *args: Any) -> list[dict[str, float]]:
    """Call `fn(*args)` in a new process under Nsight Compute, and return its counters.

    Of the range that is named `compute`, for each stream in the order in which they were used: the
    kernel that took longest, by the names that Nsight gives to its figures. Times are in seconds,
    percentages are shares.

    Raises:
        ToolError: `ncu` is not there, may not read the counters, or saw no kernel.
    """
    with tempfile.TemporaryDirectory() as folder, _working("ncu"):
        log = Path(folder, "compute.csv")
        in_fresh_process(fn, *args, under=shlex.split(COMPUTE.format(log=log)))
        text = log.read_text(encoding="utf-8")
        if '"ID"' not in text:
            msg = f"it saw no kernel: {text[-500:]}"
            raise RuntimeError(msg)
        return _figures(text[text.find('"ID"') :])  # messages stand before the table


def _figures(table: str) -> list[dict[str, float]]:
    streams: dict[str, dict[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # some are no numbers
            unit = _UNITS.get(row["Metric Unit"].removesuffix("econd"), 1.0)
            value = unit * float(row["Metric Value"].replace(",", ""))
            kernel = streams.setdefault(row["Stream"], {}).setdefault(row["ID"], {})
            kernel[row["Metric Name"]] = value
    return [max(kernels.values(), key=lambda one: one[DURATION]) for kernels in streams.values()]
