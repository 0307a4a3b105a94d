"""Read large traces and report on one; print as JSON how long that took, in how much memory.

Usage: python large_traces.py [EVENTS]
A million events make a Chrome trace of more than 200 MB, and an export of Nsight Systems.
"""

import json
import re
import sys
import tempfile
import time
from pathlib import Path

from autopar.traces.command import Options, inspect
from autopar.traces.read import read_evidence

sys.path.insert(0, str(Path(__file__).parents[1]))
from trace_files import event, write_nsys

_EACH = 4  # events of one operator: itself, its range or its wait, its launch, its kernel
_NAME = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def chrome_events(i):
    """What one operator leaves: all times in it are right."""
    ts, number = 20 * i + 0.123, {"External id": i, "correlation": i + 1}
    yield event("cpu_op", "aten::add", ts, 9.5, **number, Sequence_number=i, Fwd_thread_id=0)
    yield event("cuda_runtime", "cudaLaunchKernel", ts + 2, 3.25, **number, cbid=211)
    where = {"device": i % 2, "context": 1, "stream": 7, "grid": [216, 1, 1], "block": [128, 1, 1]}
    yield event("kernel", f"{_NAME}({i % 97})", ts + 8, 19.5, **number, **where)
    if i % 2:
        yield event("user_annotation", f"step {i % 10}", ts, 19.0)
    else:
        moved = {"bytes": 4096, "memory bandwidth (GB/s)": 12.5, "stream": 13, "device": 1}
        yield event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", ts + 9, 15.0, **moved)


def write_chrome(path, count):
    """A trace of torch.profiler with about `count` events, spread over lines as it does."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "baseTimeNanoseconds": 1, "traceEvents": [\n')
        file.write(json.dumps(event("Trace", "PyTorch Profiler (0)", 0.0, 1.0)))
        for i in range(count // _EACH):
            file.writelines(f",\n{json.dumps(each, indent=2)}" for each in chrome_events(i))
        file.write('\n], "traceName": "large.json"}\n')


def write_export(path, count):
    """An export of Nsight Systems with about `count` rows."""
    at = [(1_000_000 + 20_000 * i, i) for i in range(count // _EACH)]
    kernels = "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName"
    tables = {
        "StringIds (id, value)": [(0, "cudaLaunchKernel_v7000"), (1, _NAME)],
        "CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)": (
            (ns, ns + 3000, 5 << 24 | 7, i, 0) for ns, i in [*at, *((ns + 1, -i) for ns, i in at)]
        ),
        f"CUPTI_ACTIVITY_KIND_KERNEL ({kernels})": (
            (ns + 5000, ns + 24000, i % 2, 1, 7, i, 5 << 24, 1) for ns, i in at
        ),
        "NVTX_EVENTS (start, end, eventType, text, textId, globalTid)": (
            (ns, ns + 9000, 59, "step", None, 5 << 24 | 7) for ns, i in at
        ),
    }
    write_nsys(path, tables)


def peak_bytes():
    """The most memory this process has had: Linux's own maximum begins with the parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def measured(work):
    """Seconds of this process's CPU and the most memory so far, and what came of it."""
    start_s = time.process_time()
    value = work()
    return {"seconds": time.process_time() - start_s, "peak_bytes": peak_bytes()}, value


def main(count, folder):
    """Write and read both, then report on the first as text and files."""
    found, chrome = {}, folder / "large.json"
    for path, write in ((chrome, write_chrome), (folder / "large.sqlite", write_export)):
        write(path, count)
        figures, trace = measured(lambda path=path: read_evidence(path))
        figures["size_bytes"] = path.stat().st_size
        figures |= {"work": len(trace.work), "host": len(trace.host)}
        found[path.name] = figures | {"warnings": trace.warnings}
        del trace
    outputs = {ending: folder / f"out.{ending}" for ending in ("html", "json")}
    figures, (text, _) = measured(lambda: inspect([chrome], Options(outputs=outputs)))
    figures["output_bytes"] = [len(text), *(path.stat().st_size for path in outputs.values())]
    print(json.dumps(found | {"report": figures}, indent=2))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(int((sys.argv[1:] or [1_000_000])[0]), Path(scratch))
