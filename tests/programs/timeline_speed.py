"""Take the overlap of many intervals, report on a large trace, and print as JSON what that took.

Usage: python timeline_speed.py [COUNT]
A million intervals, and a million events in a Chrome trace of more than 200 MB, if not given.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from autopar.timeline.intervals import at_once, common, covered, length_s
from autopar.traces.command import inspect

sys.path.insert(0, str(Path(__file__).parent))
from trace_speed import peak_bytes, write_chrome


def overlap(count):
    """Half of the intervals hidden behind the other half, and how many of both at once."""
    chance = np.random.default_rng(0)
    starts = np.sort(chance.uniform(0, count, count))
    every = np.column_stack((starts, starts + chance.exponential(1.0, count)))
    chance.shuffle(every)
    start_s = time.perf_counter()
    first, second = covered(every[: count // 2]), covered(every[count // 2 :])
    hidden_s = length_s(common(first, second))
    at_once([first, second], covered(every))
    return {"count": count, "seconds": time.perf_counter() - start_s, "hidden_s": hidden_s}


def report(count, folder):
    """Read and report as text, then as files as well."""
    path, found = folder / "large.json", {}
    write_chrome(path, count)
    for name, endings in (("text", ()), ("text and files", ("html", "json"))):
        outputs = {ending: folder / f"out.{ending}" for ending in endings}
        start_s = time.perf_counter()
        text = inspect([path], None, outputs)
        found[name] = {
            "seconds": time.perf_counter() - start_s,
            "peak_bytes": peak_bytes(),
            "characters": len(text),
            "output_bytes": {each: out.stat().st_size for each, out in outputs.items()},
        }
    return {"size_bytes": path.stat().st_size, **found}


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as scratch:
        figures = {"overlap": overlap(number), "report": report(number, Path(scratch))}
    print(json.dumps(figures, indent=2))
