"""Print as JSON what a Python makes of code: normalized sources, and an experiment's digest.

Usage: python digests.py FOLDER_OF_THE_PACKAGE SOURCE...

Runs on a Python without torch: the rooms get a stand-in for it, as their code is only read.
"""

import hashlib
import importlib
import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock


def pretend_torch():
    for name in ("", ".autograd", ".utils", "._C", ".profiler"):
        sys.modules[f"torch{name}"] = MagicMock()


def import_rooms(package):
    """The rooms that experiments use, without importing all the others with the package."""
    autopar = sys.modules["autopar"] = types.ModuleType("autopar")
    autopar.__path__ = [package]
    for room in ("workload", "worker", "stream", "lane", "digest"):
        setattr(autopar, room, importlib.import_module(f"autopar.{room}"))
    return autopar


def experiment(size):
    """An experiment whose digest must not depend on the Python that computes it."""
    label = f"{size:>{len(str(size))}} é {size!r} naïve {{braces}}"  # nested, and not ASCII
    with d2l.worker.cpu_lane() as lane, d2l.stream.cuda_lane() as other:
        x = other.submit(products, d2l.workload.matrix(size), 3)
        return label, lane.submit(helper, x), SCALE


def helper(x):
    return f"""{x} of
        {f"{x}" + "inner"}"""


SCALE = 1e-3
d2l = products = None  # rooms, once they are imported


def main():
    package, *sources = sys.argv[1:]
    pretend_torch()
    autopar = import_rooms(package)
    global d2l, products
    d2l, products = autopar, autopar.workload.products
    texts = [autopar.digest.normalized(Path(source).read_text("utf-8")) for source in sources]
    print(
        json.dumps(
            {
                "version": sys.version_info[:2],
                "normalized": [hashlib.sha256(text.encode()).hexdigest() for text in texts],
                "digest": autopar.digest.code_digest(experiment, {"size": 8}),
            }
        )
    )


if __name__ == "__main__":
    main()
