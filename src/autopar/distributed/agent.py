"""Agent: the process that starts a program's ranks on this machine, and ends all if one fails.

It is PyTorch's elastic agent, which `torchrun` runs as well. Here it also tells in a file which
rank failed first, and it ends with the process that has started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_RANK = "from autopar.distributed.member import main; main()"


def main(ranks: str, given: str) -> int:
    """Run ranks, as a folder tells them, until all have ended; return 1 if one failed."""
    mine = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks read nothing
    threading.Thread(target=_end_with, args=[mine], daemon=True).start()
    folder = Path(given)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="localhost",
        run_id="autopar",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-u", "-c", _RANK, given)
    except ChildFailedError as error:
        told = {int(path.name.split()[1]): path for path in folder.glob("rank *")}
        first = folder / "first"  # links to what the rank tells that was the first to raise
        raised = next((rank for rank, path in told.items() if path == first.resolve()), None)
        errors = {rank: json.loads(path.read_text("utf-8")) for rank, path in told.items()}
        cause = first_cause(error.failures, errors, raised)
        (folder / "failure").write_text(json.dumps(cause), encoding="utf-8")
        return 1
    return 0


def first_cause(
    failures: Mapping[int, ProcessFailure],
    errors: Mapping[int, tuple[str, str]],
    raised: int | None,
) -> tuple[int, str, str]:
    """The rank whose failure made the others fail, why it failed, and its traceback.

    A rank that was killed, or that ended the process, leaves no error, while those that wait for
    it raise one; of ranks that raised, `raised` was the first. As soon as the agent has noticed one
    failure it ends all other ranks by SIGTERM: so that one counts only where it was noticed first.
    """
    noticed_first = next(iter(failures))

    def place(rank: int) -> tuple[int, bool]:
        if rank in errors:
            return 1, rank != raised
        by_agent = failures[rank].exitcode == -signal.SIGTERM and rank != noticed_first
        return (2 if by_agent else 0), True

    rank = min(failures, key=place)
    if rank in errors:
        return rank, *errors[rank]
    status = failures[rank].exitcode
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"by itself (exit {status})"
    return rank, f"its process was ended {how}", ""


def _end_with(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # which the elastic agent passes on to the ranks


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
