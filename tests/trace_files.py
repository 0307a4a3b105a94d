"""Small trace files of every format, of which everything is known to the nanosecond."""

import gzip
import itertools
import json
import sqlite3
from contextlib import closing

from autopar.timeline.chrome_trace import write_trace
from autopar.timeline.span import Span, Timeline

BASE_US = 4692784718000.0  # torch counts from a round time some months ago


def event(category, name, ts, dur, **arguments):
    """One event of a Chrome trace; times in microseconds from the beginning of the work."""
    where = {"pid": 1, "tid": 2, "ts": BASE_US + ts, "dur": dur}
    return {"ph": "X", "cat": category, "name": name, **where, "args": arguments}


def call(name, ts, dur, correlation, category="cuda_runtime"):
    return event(category, name, ts, dur, correlation=correlation)


def kernel(name, ts, dur, correlation=None, *, device=0, stream=7):
    return event("kernel", name, ts, dur, device=device, stream=stream, correlation=correlation)


def copy(name, ts, dur, size, correlation=None, *, stream=13):
    where = {"device": 0, "stream": stream, "correlation": correlation, "bytes": size}
    return event("gpu_memcpy", name, ts, dur, **where)


def kineto_events():
    """A product and its copy to pageable memory, half hidden behind a second product."""
    return [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        event("Trace", "PyTorch Profiler (0)", 0.0, 400.0),
        event("user_annotation", "forward", 10.0, 300.0),
        event("gpu_user_annotation", "forward", 40.0, 100.0),
        event("cpu_op", "aten::mm", 11.0, 20.0),
        call("cudaLaunchKernel", 20.0, 5.0, 1),
        call("cuLaunchKernel", 21.0, 3.0, 1, "cuda_driver"),
        call("cudaLaunchKernel", 30.0, 5.0, 2),
        call("cudaMemcpyAsync", 40.0, 8.0, 3),
        call("cudaStreamSynchronize", 50.0, 160.0, 4),
        kernel("gemm", 40.0, 100.0, 1),
        kernel("gemm 2", 140.0, 30.5, 2),
        copy("Memcpy DtoH (Device -> Pageable)", 140.5, 60.0, 4096, 3),
        {"ph": "s", "id": 1, "pid": 1, "tid": 2, "ts": BASE_US, "cat": "ac2g", "name": "ac2g"},
    ]


def kineto(events=None, *, indent=1, **header):
    """The text of such a file; `torch.profiler` has the events last but one."""
    events = kineto_events() if events is None else events
    head = {"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000, **header}
    return json.dumps({**head, "traceEvents": events, "traceName": "t.json"}, indent=indent)


def own_timeline():
    """A page's timeline, on the nanosecond and from zero, as `write_trace` keeps it."""
    spans = (
        Span("gemm", "GPU 0 stream 7", 0.0, 100e-6),
        Span("all-reduce", "GPU 0 stream 20", 50e-6, 170.123e-6, "communication"),
        Span("D2H", "GPU 0 copies to host", 100e-6, 160e-6, "copy"),
        Span("é \u2192 \U0001f600", "host", 5e-6, 300e-6, "host"),
        Span("sum", "left", 5e-6, 5e-6),
    )
    return Timeline(spans, 2.5e-6, "recorded by hand")


_NSYS = {
    "StringIds (id INTEGER PRIMARY KEY, value TEXT)": [
        (1, "cudaLaunchKernel_v7000"),
        (2, "cudaMemcpyAsync_v3020_ptsz"),
        (3, "void gemm<float>(int)"),
        (4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (5, "named"),
        (6, "cudaDeviceSynchronize_v3020"),
        (7, "gemm"),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, "
    "correlationId INT, nameId INT, returnValue INT)": [
        (20_000, 25_000, 0, 77 << 24 | 5, 1, 1, 0),
        (30_000, 35_000, 0, 77 << 24 | 5, 2, 1, 0),
        (40_000, 48_000, 0, 77 << 24 | 5, 3, 2, 0),
        (50_000, 210_000, 0, 77 << 24 | 5, 4, 6, 0),
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, demangledName INT, shortName INT)": [
        (40_000, 140_000, 0, 1, 7, 1, 77 << 24, 3, 7),
        (60_001, 170_500, 0, 1, 20, 2, 77 << 24, 4, 4),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT)": [
        (140_500, 200_500, 0, 1, 13, 3, 77 << 24, 4096, 2, 2, 0),
        (150_500, 160_500, 0, 1, 14, 9, 77 << 24, 4096, 1, 1, 2),
    ],
    "CUPTI_ACTIVITY_KIND_MEMSET (start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, value INT, bytes INT)": [
        (39_000, 39_900, 0, 1, 7, 8, 77 << 24, 0, 64)
    ],
    "NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT)": [
        (10_000, 310_000, 59, "forward", None, 77 << 24 | 5),
        (15_000, 16_000, 60, None, 5, 77 << 24 | 6),
        (15_000, None, 34, "a mark", None, 77 << 24 | 5),
    ],
}


def write_nsys(path, tables=None, *, leave_out=(), more=None):
    """An export of Nsight Systems; `more` rows go to the tables named."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA page_size = 512")  # the smallest, so that every byte tells
        for table, rows in (_NSYS if tables is None else tables).items():
            name = table.split()[0]
            if name in leave_out:
                continue
            connection.execute(f"CREATE TABLE {table}")
            marks = ", ".join("?" * (table.count(",") + 1))
            every = itertools.chain(rows, (more or {}).get(name, ()))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", every)


def write_all(folder):
    """A file of every format, by its name."""
    (folder / "kineto.json").write_text(kineto())
    (folder / "list.json").write_text(json.dumps(kineto_events()))
    ranks = kineto(distributedInfo={"backend": "nccl", "rank": 1, "world_size": 2}, indent=None)
    (folder / "rank.json").write_text(ranks)
    (folder / "kineto.json.gz").write_bytes(gzip.compress(kineto().encode(), mtime=0))
    write_trace(own_timeline(), folder / "own.json")
    write_nsys(folder / "nsys.sqlite")
    return {path.name: path for path in sorted(folder.iterdir())}
