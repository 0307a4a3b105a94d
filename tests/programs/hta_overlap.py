"""Let HolisticTraceAnalysis say how much communication is behind compute in tests/trace_data.

It needs an environment of its own: python -m venv V; V/bin/pip install HolisticTraceAnalysis==0.5.0

Usage: HTA_DISABLE_NS_ROUNDING=1 V/bin/python tests/programs/hta_overlap.py >trace_data/hta.json
Without that variable it shortens every kernel to whole microseconds.
"""

import contextlib
import importlib.metadata
import json
import sys
from pathlib import Path

_TRACES = Path(__file__).parents[1] / "trace_data"


def main():
    """Print its version, command and figures."""
    from hta.trace_analysis import TraceAnalysis  # no environment of this project has it

    files = {rank: str(_TRACES / f"allreduce_rank{rank}.json.gz") for rank in (0, 1)}
    with contextlib.redirect_stdout(sys.stderr):
        analysis = TraceAnalysis(trace_files=files, trace_dir=str(_TRACES))
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        times = analysis.get_temporal_breakdown(visualize=False)
    found = {
        "traces": "three steps of two ranks on 2 x NVIDIA H200 (torch 2.11.0+cu130, NCCL 2.28.9): "
        "four products, each with an all-reduce beside it, and two copies to the host",
        "tool": f"HolisticTraceAnalysis {importlib.metadata.version('HolisticTraceAnalysis')}",
        "command": "HTA_DISABLE_NS_ROUNDING=1 python tests/programs/hta_overlap.py",
        "hidden_percent": [float(each) for each in overlap["comp_comm_overlap_pctg"]],
        "compute_us": [round(float(each), 3) for each in times["compute_time(us)"]],
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
