"""The command line: `python -m autopar devices`, `... timeline FILE`, `... record`."""

# ruff: noqa: E402  Ctrl-C is seen to before more is imported

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130  # as shells report for a program that ended because of Ctrl-C


def _end(*_: object) -> None:
    os._exit(_INTERRUPTED)


def _end_at_interrupts() -> None:
    """Let Ctrl-C end the process at once: in imports its error comes out as another, or not."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, _end)


def _hear_interrupts() -> None:
    """Let Ctrl-C raise its error again, which closes what is open, once all is imported."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    _end_at_interrupts()

import argparse
import itertools
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autopar.records.provenance import __version__

# Each verb imports what it needs, as torch takes seconds and `timeline` does without.
_PACKAGES = Path(__file__).parents[1]
_UNREAD = 141  # as shells report for a program that ended because nobody reads on
_TIMEOUT_S = 900.0  # no script takes a third of it
_TRACES = (
    "Chrome trace of torch.profiler (.json, .json.gz), SQLite export of Nsight Systems (.sqlite), "
    "or a folder of them"
)
_FAIL_UNDER = (
    "end with status 3 if a GPU's column 'at least / time' is below SHARE, such as 90%%: its work "
    "could then be done in less than 90%% of the time"
)
_AGAIN = "On a machine that has what it needs run: python -m autopar record SCRIPT"
_RANGE = "look only at ranges of this name, which NVTX or record_function gave"
_SCRIPTS = "a script, or a part of its path in the gallery; without any, all of the gallery"
_OUTPUTS = {
    "html": "the whole report as one HTML page",
    "json": "the figures as JSON, times in seconds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 if it failed, 2 if it can't be done here."""
    try:
        if arguments is None:  # this process is there for nothing else
            _end_at_interrupts()
        try:
            return _run_verb(arguments)
        finally:
            if sys.stdout:  # it may be closed
                sys.stdout.flush()
            if arguments is None:
                _end_at_interrupts()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename:
            raise
        # Of what is printed: the reader has enough, as `head` has, or a disk is full. The rest goes
        # nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD if isinstance(error, BrokenPipeError) else _complain(str(error), 1)


def _run_verb(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m autopar", description=__doc__)
    parser.add_argument("--version", action="version", version=f"autopar {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("devices", help="describe this machine, and measure what its threads give")
    # What is not given is not among the options: defaults are those of `Wanted`.
    what, absent = "explain a profiler's trace: why no overlap?", argparse.SUPPRESS
    add = verbs.add_parser("timeline", help=what, argument_default=absent).add_argument
    add("files", nargs="+", type=_place, metavar="FILE", help=_TRACES)
    add("--brief", action="store_true", help="print the answer alone, in a few lines")
    add("--top", type=_count, metavar="N", help="show N findings, and N rows a table (default 10)")
    add("--gpu", metavar="GPU", help="look at this GPU only, as 0 or 'rank 1 *'")
    add("--range", dest="range_name", metavar="GLOB", help=_RANGE)
    add("--list-ranges", action="store_true", help="print the names of all ranges, and no more")
    add("--compare", type=_place, metavar="OTHER", help="say what changed since this older trace")
    add("--fail-under", type=_share, metavar="SHARE", help=_FAIL_UNDER)
    for ending, what in _OUTPUTS.items():
        add(f"--{ending}", type=_place, metavar="OUT", help=f"write {what}")
    record = verbs.add_parser("record", help="run scripts of the gallery, and write their records")
    record.add_argument("scripts", nargs="*", metavar="SCRIPT", help=_SCRIPTS)
    record.add_argument("--to", type=Path, metavar="FOLDER", help="read and write records here")
    record.add_argument("--check", action="store_true", help="run nothing, list outdated records")
    options = parser.parse_args(arguments)
    if options.verb == "timeline":
        return _timeline(options)
    if options.verb == "devices":
        return _devices()
    return _record(options.scripts, options.to, check=options.check)


def _devices() -> int:
    from autopar.machine import capacity, describe

    _hear_interrupts()
    machine = describe()
    machine["software"] = {"autopar": __version__, **machine["software"]}
    print(machine)
    print(f"capacity\n  {capacity()}")
    return 0


def _place(text: str) -> Path:
    """A path; `-` alone is standard input or output, and `./-` a file."""
    path = Path(text)
    return path.absolute() if text != "-" and path == Path("-") else path


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        msg = f"{text!r} is no number of rows; expected 1 or more."
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        msg = f"{text!r} is no share; expected 0 to 1, or 0% to 100%."
        raise argparse.ArgumentTypeError(msg)
    return share


def _timeline(options: argparse.Namespace) -> int:
    from autopar.traces.command import UNREAD, Wanted, inspect
    from autopar.traces.trace import TraceError

    _hear_interrupts()
    given = vars(options)
    outputs = {name: given.pop(name) for name in _OUTPUTS if name in given}
    files, _ = given.pop("files"), given.pop("verb")
    try:
        report, status = inspect(files, Wanted(**given, outputs=outputs))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        status = UNREAD if isinstance(error, TraceError) else 2
        return _complain(" ".join(str(error).split()), status)
    print(report, end="")
    return status


def _record(names: Sequence[str], to: Path | None, *, check: bool) -> int:
    """Run each script in a process of its own, so that none warms a pool for another."""
    from autopar.device import num_gpus
    from autopar.records.gallery import scripts_of, stale_records, unshown_records
    from autopar.records.store import FOLDER

    _hear_interrupts()
    folder = to or FOLDER
    gallery = scripts_of(Path("gallery").resolve())
    chosen = {name: _named(name, gallery) for name in names}
    missing = [name for name, scripts in chosen.items() if not scripts]
    scripts = list(dict.fromkeys(itertools.chain(*chosen.values()))) if names else gallery
    if missing or not scripts:
        return _complain(
            f"no such script: {', '.join(missing) or 'gallery/**/plot_*.py'}. Run this from the "
            f"root of a checkout, or name the scripts."
        )
    if check:
        stale = stale_records(scripts, folder)
        stale += () if names else unshown_records(gallery, folder)
        lines = [*map(_shortened, stale), f"{len(stale)} records do not hold. {_AGAIN}"]
        print("\n".join(lines) if stale else f"The records of {len(scripts)} scripts hold.")
        return 1 if stale else 0
    if not num_gpus():
        return _complain(
            "recording needs CUDA GPUs, and PyTorch sees none here. The records that come with "
            "autopar were measured on a machine that has them; the site builds from those."
        )
    start_s = time.perf_counter()
    counts = {script: _run(script, folder.resolve()) for script in scripts}
    failed = [script.name for script, count in counts.items() if count is None]
    count = sum(filter(None, counts.values()))
    print(f"{count} records of {len(counts)} scripts in {time.perf_counter() - start_s:.0f} s")
    stale = stale_records([script for script in scripts if script in gallery], folder, FOLDER)
    if stale:
        print("\n".join(stale), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}; no record of theirs was replaced", file=sys.stderr)
    return 1 if failed or stale else 0


def _shortened(line: str) -> str:
    """What is wrong with a record, and with which script it is made again."""
    why, _, remedy = line.partition(". ")
    script = remedy.partition(" gallery/")[2].removesuffix(".py")
    return f"{why}. {script or remedy}"


def _named(name: str, gallery: Sequence[Path]) -> list[Path]:
    """The script of a path, or those of the gallery with this in their place: `copies/plot_1`."""
    if Path(name).is_file():
        return [Path(name).resolve()]
    return [path for path in gallery if name in f"{path.parent.name}/{path.stem}"]


def _run(script: Path, folder: Path) -> int | None:
    """Run a script as a reader would; the number of its records, None if it failed.

    They come to the folder when it has run to its end: till then a check of it may fail.
    """
    from autopar.files import write_atomically
    from autopar.records.experiment import RECORD_TO

    print(f"recording {script.name} ...", flush=True)
    start_s, why, count = time.perf_counter(), "", 0
    packages = os.pathsep.join([str(_PACKAGES), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as figures, tempfile.TemporaryDirectory() as records:
        variables = {RECORD_TO: records, "MPLBACKEND": "Agg", "PYTHONPATH": packages}
        environment, command = os.environ | variables, [sys.executable, "-u", str(script)]
        try:
            subprocess.run(command, cwd=figures, env=environment, timeout=_TIMEOUT_S, check=True)
        except subprocess.CalledProcessError as error:
            why = f"exit status {error.returncode}"
        except subprocess.TimeoutExpired:
            why = "not done by then"
        for path in () if why else sorted(Path(records).glob("*/*")):
            place = folder / path.relative_to(records)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, path.read_bytes())
            count += place.suffix == ".json"
    ending = f"FAILED ({why})" if why else f"{count} records"
    print(f"{script.name}: {ending} in {time.perf_counter() - start_s:.1f} s", flush=True)
    return None if why else count


def _complain(message: str, status: int = 2) -> int:
    print(f"python -m autopar: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
