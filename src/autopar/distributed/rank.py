"""Rank: the process of one rank, and above it a small one that tells how it ended.

Nobody else can: a process that ends in the middle of a function leaves no error, all ranks get
SIGTERM once one has failed, and a status of 0, as of `os._exit(0)`, says that all went well.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import cloudpickle

from autopar.files import write_atomically

RAISED, ENDED = "raised by rank", "ended by rank"
_EARLY = (
    "ended itself (exit {}) before the function returned; expected a value or an error. Raise one "
    "instead: it comes out here."
)


def main() -> None:
    """Be a rank in a new process, and fail if that ends before it has returned."""
    folder, rank, by_agent = Path(sys.argv[1]), os.environ["RANK"], list[int]()
    if not (pid := os.fork()):  # before torch is imported, which starts threads
        _do(folder, rank)
    # What the agent sends goes to both, and this one ends with the other: else the agent would take
    # the rank for ended, and leave it where it is.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: by_agent.append(number))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    has_returned = status == 0 and returned_by(folder, rank).exists()
    if not (has_returned or by_agent or (folder / f"{RAISED} {rank}").exists()):
        names = {each.value: each.name for each in signal.Signals}
        by = names.get(-status, f"signal {-status}")
        how = f"was ended by {by}" if status < 0 else _EARLY
        _tell(folder, ENDED, rank, f"its process {how.format(status)}")
    os._exit(not has_returned)


def _do(folder: Path, rank: str) -> NoReturn:
    """Do what a folder says, tell it what comes of that, and end.

    Threads of libraries, such as NCCL's, may hold up a process whose peers are gone, so it waits
    for none. What is registered to be done at its end is done if all has gone well.
    """
    status = 1
    try:
        from autopar.distributed.member import take_part

        fn, args, options = pickle.loads((folder / "given").read_bytes())
        # As in the script that they are from, whose classes libraries then find by their names.
        vars(sys.modules["__main__"]).update(getattr(fn, "__globals__", {}))
        returned = take_part(fn, args, **options, dumps=cloudpickle.dumps)
        content = cloudpickle.dumps(returned) if rank == "0" else b""
        returned_by(folder, rank).write_bytes(content)
        with suppress(Exception):  # it has returned
            atexit._run_exitfuncs()  # such as to end daemon processes, or to write logs
        status = 0
    except BaseException as error:
        said = "".join(traceback.format_exception_only(error)).strip()  # it may have no text
        _tell(folder, RAISED, rank, said, traceback.format_exc())
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def returned_by(folder: Path, rank: str) -> Path:
    """What is there once a rank has returned; that of rank 0 has what all returned."""
    return folder / f"returned by rank {rank}"


def _tell(folder: Path, sort: str, rank: str, cause: str, stack: str = "") -> None:
    """Say why a rank failed, and keep which was the first of its sort."""
    told = folder / f"{sort} {rank}"
    write_atomically(told, json.dumps([rank, cause, stack]))  # it may be ended at any time
    with suppress(FileExistsError):
        (folder / sort).symlink_to(told)
