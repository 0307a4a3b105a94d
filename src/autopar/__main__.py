"""The command line: `python -m autopar devices`, `... timeline FILE`, `... record`."""

# ruff: noqa: E402  Ctrl-C is seen to before more is imported

from __future__ import annotations

import os
import signal
import sys


def _on_interrupt(*, raises: bool) -> None:
    """Let Ctrl-C raise its error, which closes what is open, or else end the process at once.

    In imports its error comes out as another, or not, so till all is imported it is the latter.
    Where it is ignored, as in a job in the background, it stays so.
    """
    handlers = signal.SIG_DFL, signal.default_int_handler
    if signal.getsignal(signal.SIGINT) is handlers[not raises]:
        signal.signal(signal.SIGINT, handlers[raises])


if __name__ == "__main__":
    _on_interrupt(raises=False)

import argparse
import itertools
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autopar.records.provenance import __version__

# Each verb imports what it needs, as torch takes seconds and `timeline` does without.
_INTERRUPTED = 130  # as shells report for a program that ended because of Ctrl-C
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
_RANGE = "look only at ranges of this name, which NVTX or record_function gave"
_SCRIPTS = "a script, or a part of its path in the gallery; without any, all of the gallery"
_FOLDER = "read and write records here; if not given, where AUTOPAR_RECORD_TO says, or the package"
_OUTPUTS = {
    "html": "the whole report as one HTML page",
    "json": "the figures as JSON, times in seconds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 if it failed, 2 if it can't be done here."""
    if arguments is None:  # this process is there for nothing else
        _on_interrupt(raises=False)
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return 2
    verb = {"devices": _devices, "timeline": _timeline, "record": _record}[options.verb]
    try:
        status = verb(options)
        if sys.stdout:  # it may be closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename:
            raise
        # Of what is printed: the reader has enough, as `head` has, or a disk is full. The rest goes
        # nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD if isinstance(error, BrokenPipeError) else _complain(str(error), 1)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m autopar", description=__doc__)
    parser.add_argument("--version", action="version", version=f"autopar {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.add_parser("devices", help="describe this machine, and measure what its threads give")
    # What is not given is not among the options: defaults are those of `Options`.
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
    what = "run scripts of the gallery, and write their records"
    add = verbs.add_parser("record", help=what).add_argument
    add("scripts", nargs="*", metavar="SCRIPT", help=_SCRIPTS)
    add("--to", type=Path, metavar="FOLDER", help=_FOLDER)
    add("--check", action="store_true", help="run nothing, list outdated records")
    return parser


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


def _devices(_: argparse.Namespace) -> int:
    from autopar.machine import capacity, describe

    _on_interrupt(raises=True)
    machine = describe()
    machine["software"] = {"autopar": __version__, **machine["software"]}
    print(f"{machine}\ncapacity\n  {capacity()}")
    return 0


def _timeline(options: argparse.Namespace) -> int:
    from autopar.traces.command import UNREAD, Options, inspect
    from autopar.traces.trace import TraceError

    _on_interrupt(raises=True)
    given = vars(options)
    outputs = {name: given.pop(name) for name in _OUTPUTS if name in given}
    files, _ = given.pop("files"), given.pop("verb")
    try:
        report, status = inspect(files, Options(**given, outputs=outputs))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        status = UNREAD if isinstance(error, TraceError) else 2
        return _complain(" ".join(str(error).split()), status)
    print(report, end="")
    return status


def _record(options: argparse.Namespace) -> int:
    """Run each script in a process of its own, so that none warms a pool for another."""
    from autopar.device import num_gpus
    from autopar.records.experiment import RECORD_TO
    from autopar.records.gallery import scripts_of, stale_records, unshown_records
    from autopar.records.store import FOLDER

    _on_interrupt(raises=True)
    folder = options.to or Path(os.environ.get(RECORD_TO) or FOLDER)
    gallery = scripts_of(Path("gallery").resolve())
    named = {name: _named(name, gallery) for name in options.scripts}
    missing = [name for name, scripts in named.items() if not scripts]
    scripts = list(dict.fromkeys(itertools.chain(*named.values()))) if named else gallery
    if missing or not scripts:
        where = "Run this from the root of a checkout, or name the scripts."
        return _complain(f"no such script: {', '.join(missing) or 'gallery/**/plot_*.py'}. {where}")
    if options.check:
        try:
            stale = stale_records(scripts, folder)
            stale += [] if named else unshown_records(gallery, folder)
        except ValueError as error:  # of a script that can't be read
            return _complain(str(error))
        end = f"{len(stale) or 'None'} of the records of {len(scripts)} scripts are outdated."
        print("\n".join([*stale, end]))
        return 1 if stale else 0
    if not num_gpus():
        return _complain(
            "recording needs CUDA GPUs, and PyTorch sees none here. The records that come with "
            "autopar were measured on a machine that has them; the site builds from those."
        )
    failed = [script.name for script in scripts if not _run(script, folder.resolve())]
    stale = stale_records([script for script in scripts if script in gallery], folder, FOLDER)
    if stale:
        print("\n".join(stale), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}; no record of theirs was replaced", file=sys.stderr)
    return 1 if failed or stale else 0


def _named(name: str, gallery: Sequence[Path]) -> list[Path]:
    """The script of a path, or those of the gallery with this in their place: `copies/plot_1`."""
    if Path(name).is_file():
        return [Path(name).resolve()]
    return [path for path in gallery if name in f"{path.parent.name}/{path.stem}"]


def _run(script: Path, folder: Path) -> bool:
    """Run a script as a reader would; whether it ran to its end.

    Its records come to the folder then: till then a check of it may fail.
    """
    from autopar.files import write_atomically
    from autopar.records.experiment import RECORD_TO
    from autopar.timing.fresh_process import search_path

    print(f"recording {script.name} ...", flush=True)
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as figures, tempfile.TemporaryDirectory() as records:
        variables = {RECORD_TO: records, "MPLBACKEND": "Agg", **search_path()}
        environment, command = os.environ | variables, [sys.executable, "-u", str(script)]
        try:
            subprocess.run(command, cwd=figures, env=environment, timeout=_TIMEOUT_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{script.name}: FAILED: {error}", flush=True)
            return False
        paths = sorted(Path(records).glob("*/*"))
        for path in paths:
            place = folder / path.relative_to(records)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, path.read_bytes())
    count = sum(path.suffix == ".json" for path in paths)
    print(f"{script.name}: {count} records in {time.perf_counter() - start_s:.1f} s", flush=True)
    return True


def _complain(message: str, status: int = 2) -> int:
    from autopar.display.format import printable

    print(f"python -m autopar: {printable(message)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
