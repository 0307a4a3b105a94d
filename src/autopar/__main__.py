"""The command line: `python -m autopar devices`, `... timeline FILE`, `... record`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autopar.device import num_gpus
from autopar.experiment import RECORD_TO
from autopar.machine import capacity, describe
from autopar.record import FOLDER
from autopar.storage import write_atomically

_PACKAGE = Path(__file__).parent
_OUTPUTS = {
    "html": "all of it as one HTML page",
    "png": "the picture as PNG",
    "svg": "the picture as SVG",
    "json": "the figures as JSON",
    "trace": "the timeline for ui.perfetto.dev",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 if it failed, 2 if it can't be done here."""
    parser = argparse.ArgumentParser(prog="python -m autopar", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("devices", help="describe this machine, and how much it really gives")
    timeline = verbs.add_parser(
        "timeline", help="what a profiler's trace shows, and why no overlap"
    )
    timeline.add_argument("files", nargs="+", type=Path, metavar="FILE", help="or a folder of them")
    timeline.add_argument("--range", metavar="NAME", help="only this NVTX or record_function range")
    for ending, what in _OUTPUTS.items():
        timeline.add_argument(f"--{ending}", type=Path, metavar="OUT", help=f"write {what}")
    record = verbs.add_parser("record", help="run gallery scripts here and write their records")
    record.add_argument("scripts", nargs="*", type=Path, help="all of gallery/ if not given")
    record.add_argument("--to", type=Path, default=FOLDER, help="folder of records")
    options = parser.parse_args(arguments)
    if options.verb == "timeline":
        outputs = {each: path for each in _OUTPUTS if (path := getattr(options, each))}
        return _timeline(options.files, options.range, outputs)
    return _devices() if options.verb == "devices" else _record(options.scripts, options.to)


def _devices() -> int:
    print(describe())
    print(f"capacity\n  {capacity()}")
    return 0


def _timeline(files: Sequence[Path], range_name: str | None, outputs: dict[str, Path]) -> int:
    from autopar.inspection import inspect  # much that only this verb needs

    try:
        print(inspect(files, range_name, outputs), end="")
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _complain(about)
    except ValueError as error:  # as a TraceError is
        return _complain(" ".join(str(error).split()))
    return 0


def _record(scripts: Sequence[Path], folder: Path) -> int:
    """Run each script in a process of its own, so that none warms a pool for another."""
    if not num_gpus():
        return _complain(
            "recording needs CUDA GPUs, and PyTorch sees none here. The records that come with "
            "autopar were measured on a machine that has them; the site builds from those."
        )
    scripts = scripts or sorted(Path("gallery").glob("**/plot_*.py"))
    missing = [str(script) for script in scripts if not script.is_file()]
    if missing or not scripts:
        return _complain(
            f"no such script: {', '.join(missing) or 'gallery/**/plot_*.py'}. Run this from the "
            f"root of a checkout, or name the scripts."
        )
    failed = [script.name for script in scripts if not _run(script.resolve(), folder.resolve())]
    if failed:
        print(f"failed: {', '.join(failed)}; no record of theirs was replaced", file=sys.stderr)
    return 1 if failed else 0


def _run(script: Path, folder: Path) -> bool:
    """Run a gallery script as a reader would, with records and figures going elsewhere.

    Its records come to the folder when it has run to its end: till then a claim of it may fail.
    """
    path = os.pathsep.join([str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    print(f"recording {script.name} ...", end=" ", flush=True)
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as figures, tempfile.TemporaryDirectory() as records:
        environment = os.environ | {RECORD_TO: records, "MPLBACKEND": "Agg", "PYTHONPATH": path}
        done = subprocess.run([sys.executable, script], cwd=figures, env=environment, check=False)
        for made in () if done.returncode else Path(records).glob("*/*"):
            place = folder / made.relative_to(records)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, made.read_bytes())
    ending = "FAILED" if done.returncode else "done"
    print(f"{ending} in {time.perf_counter() - start_s:.1f} s")
    return done.returncode == 0


def _complain(message: str) -> int:
    print(f"python -m autopar: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
