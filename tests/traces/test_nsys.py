"""From exports of Nsight Systems to evidence, whatever their version has."""

import re
import sqlite3
from contextlib import closing

import pytest
from trace_builder import work_of
from trace_files import write_nsys

from autopar.records.store import FOLDER, load_record
from autopar.traces.read import read_evidence
from autopar.traces.report import Report
from autopar.traces.trace import TraceError

_PID = 77 << 24
_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_KERNELS, _CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


@pytest.fixture
def read(tmp_path):
    def write_and_read(*arguments, **options):
        write_nsys(tmp_path / "x.sqlite", *arguments, **options)
        return read_evidence(tmp_path / "x.sqlite")

    return write_and_read


def spans_of(trace):
    return [
        (span.name, span.lane, span.kind, round(span.start_s * 1e9), round(span.end_s * 1e9))
        for span in trace.timeline.spans
    ]


def test_every_table_is_read_and_joined(read):
    trace = read()
    pageable, pinned = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pinned -> Device)"
    assert spans_of(trace) == [
        ("forward", "host", "host", 10_000, 310_000),
        ("named", "host thread 6", "host", 15_000, 16_000),
        ("Memset", "GPU 0 stream 7", "compute", 39_000, 39_900),
        ("void gemm<float>(int)", "GPU 0 stream 7", "compute", 40_000, 140_000),
        (_NCCL, "GPU 0 stream 20", "communication", 60_001, 170_500),
        (pageable, "GPU 0 copies to host", "copy", 140_500, 200_500),
        (pinned, "GPU 0 copies from host", "copy", 150_500, 160_500),
    ]
    launches = [work.launch and work.launch.name for work in work_of(trace)]
    assert launches == [None, "cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", None]
    copies = [work for work in work_of(trace) if work.span.kind == "copy"]
    assert [(work.size_bytes, work.memory) for work in copies] == [
        *((4096, "pageable"), (4096, "pinned"))
    ]
    assert [call.name for call in trace.host.of("call").spans()] == [
        *("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize")
    ]
    assert trace.host.of("call").times_s[3, 1] == pytest.approx(210e-6, abs=1e-12)
    assert (trace.warnings, trace.doubts) == ((), {})


def test_a_missing_table_is_normal(read):
    whole = {span[0] for span in spans_of(read())}
    for table, lost in (("CUPTI_ACTIVITY_KIND_MEMSET", {"Memset"}), (_CALLS, set())):
        part = read(leave_out={table})
        assert whole - {span[0] for span in spans_of(part)} == lost
        assert (part.warnings, len(part.host.of("call"))) == ((), 0 if table == _CALLS else 4)


def test_columns_that_a_version_lacks_are_done_without(read):
    trace = read(
        {
            "StringIds (id, value)": [(1, "short")],
            f"{_KERNELS} (start, end, deviceId, streamId, shortName)": [(5_000, 6_000, 0, 7, 1)],
            "NVTX_EVENTS (start, end, text)": [(4_000, 7_000, "step"), (4_500, None, "mark")],
        }
    )
    assert [s[:2] for s in spans_of(trace)] == [("step", "host"), ("short", "GPU 0 stream 7")]
    assert trace.warnings == ("1 NVTX ranges have no end, and were left out.",)


def test_several_processes_have_gpus_and_launches_of_their_own(read):
    more = {
        _KERNELS: [(90_000, 95_000, 0, 1, 7, 1, 78 << 24, 3, 7)],
        _CALLS: [(80_000, 85_000, 0, 78 << 24 | 5, 1, 1, 0)],
    }
    trace = read(more=more)
    assert {work.gpu for work in work_of(trace)} == {"process 77 GPU 0", "process 78 GPU 0"}
    (other,) = (work for work in work_of(trace) if work.gpu == "process 78 GPU 0")
    assert other.launch.start_s == pytest.approx(80e-6, abs=1e-12)
    assert trace.doubts == {}


def test_streams_of_several_contexts_may_overlap(read):
    trace = read(more={_KERNELS: [(50_000, 55_000, 0, 2, 7, 99, _PID, 3, 7)]})
    assert trace.doubts == {}
    assert "GPU 0 stream 7 of context 2" in trace.timeline.lanes


def test_whole_graphs_are_work_and_say_how_to_see_inside(read):
    columns = "start, end, deviceId, graphId, contextId, streamId, correlationId, globalPid"
    row = (5_000, 9_000, 0, 3, 1, 7, 4, _PID)
    (span,) = spans_of(read({f"CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})": [row]}))
    assert span[1:] == ("GPU 0 stream 7", "compute", 5_000, 9_000)
    assert span[0].startswith("CUDA graph 3 (--cuda-graph-trace=node")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((50_000, 40_000, 0, 1, 9, 50, _PID, 3, 7), "takes -10.0 µs"),
        ((None, b"\xff", 0, 1, 9, 50, _PID, 3, 7), "starts at nan µs"),
        ((50_000, 60_000, 0, 1, None, 50, _PID, 3, 7), "which GPU and stream"),
    ],
)
def test_what_cannot_be_is_said_and_doubted(read, row, why):
    assert re.search(why, read(more={_KERNELS: [row]}).doubts["GPU 0"])


def test_databases_with_nothing_to_show_are_refused(read):
    with pytest.raises(TraceError, match="its tables are users. Expected an export"):
        read({"users (id, name)": [(1, "me")]})
    with pytest.raises(TraceError, match="nothing of it can be used: 1 of 1 records of GPUs"):
        read({f"{_KERNELS} (start, end)": [(5, 6)]})


def test_reading_leaves_no_trace_and_needs_no_right_to_write(tmp_path):
    path = tmp_path / "a b?#%.sqlite"
    write_nsys(path)
    before = path.read_bytes()
    path.chmod(0o400)
    assert work_of(read_evidence(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def damage(path, table):
    """Spoil the page on which a table begins; what is then read."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, [table]).fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 512 : page * 512] = b"\xff" * 512
    path.write_bytes(data)
    trace = read_evidence(path)
    assert any(f"{table} was read in part only" in words for words in trace.warnings)
    return trace


@pytest.mark.parametrize(
    ("table", "count", "doubted"),
    [
        ("NVTX_EVENTS", 5, ["host"]),  # of the GPUs' work all is there
        ("CUPTI_ACTIVITY_KIND_MEMSET", 6, [f"GPU {number}" for number in range(3)]),
        ("StringIds", 7, ["GPU 0", "GPU 1", "GPU 2", "host"]),  # which tell what communicates
    ],
)
def test_a_damaged_database_is_read_in_part_with_a_warning(tmp_path, table, count, doubted):
    path, more = tmp_path / "x.sqlite", {}
    if table != "NVTX_EVENTS":  # one that has no stream is of no GPU
        places = ((2, 7), (1, 7), (3, None))
        rows = [(90_000, 91_000, gpu, 1, stream, 50, _PID, 3, 7) for gpu, stream in places]
        more = {_KERNELS: rows}
    write_nsys(path, more=more)
    trace = damage(path, table)
    assert (len(trace.work), list(trace.doubts)) == (count, doubted)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(TraceError, match=r"x\.sqlite"):
        read_evidence(path)


def test_where_all_work_is_lost_no_gpu_is_named_but_its_absence_is_not_believed(tmp_path):
    other = {"CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"}
    write_nsys(tmp_path / "x.sqlite", leave_out=other)
    trace = damage(tmp_path / "x.sqlite", _KERNELS)
    assert (len(trace.work), list(trace.doubts), trace.is_whole) == (0, ["GPUs"], False)


def test_an_export_that_the_tool_itself_made_is_read():
    path = FOLDER / "2-x-nvidia-h200" / "x4_nsight.sqlite"
    count = load_record(path.with_name("x4_nsight_systems.json")).parameters["count"]
    trace = read_evidence(path)
    assert (trace.warnings, trace.doubts) == ((), {})
    copies = [work for work in work_of(trace) if work.span.kind == "copy"]
    products = [work for work in work_of(trace) if work.span.kind == "compute"]
    assert len(copies) == len(products) == 2 * count  # each in two ways
    assert all("gemm" in work.span.name for work in products)
    assert {work.memory for work in copies} == {"pinned"}
    assert {work.size_bytes for work in copies} == {4000 * 4000 * 4}
    assert {work.launch and work.launch.name for work in copies} == {"cudaMemcpyAsync"}
    assert {work.launch and work.launch.name for work in products} == {"cudaLaunchKernelExC"}
    causes = [finding.cause for finding in Report(trace, name=path.name).findings]
    assert causes == ["elsewhere", "one stream"]  # between the two ways, the program prepares
