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

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main(ranks: str, program: str, failure: str) -> int:
    """Run a program on ranks until all have ended; return 1 if one failed, which the file tells."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
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
    )
    try:
        elastic_launch(config, sys.executable)("-u", program)
    except ChildFailedError as error:
        first = Path(failure).with_name("first")  # links to the number of who raised first
        raised = int(str(first.readlink())) if first.is_symlink() else None
        cause = first_cause(error.failures, raised)
        Path(failure).write_text(json.dumps(cause), encoding="utf-8")
        return 1
    return 0


def first_cause(failures: Mapping[int, ProcessFailure], raised: int | None) -> tuple[int, str, str]:
    """The rank whose failure made the others fail, why it failed, and its traceback.

    A rank that was killed, or that ended the process, leaves no error, while those that wait for
    it raise one; of ranks that raised, `raised` was the first. As soon as the agent has noticed one
    failure it ends all other ranks by SIGTERM: so that one counts only where it was noticed first.
    """
    noticed_first = next(iter(failures))

    def place(rank: int) -> tuple[int, bool]:
        if isinstance(failures[rank].message, dict):
            return 1, rank != raised
        by_agent = failures[rank].exitcode == -signal.SIGTERM and rank != noticed_first
        return (2 if by_agent else 0), True

    rank = min(failures, key=place)
    failed = failures[rank]
    if isinstance(told := failed.message, dict):
        return rank, told["message"], told["extraInfo"]["py_callstack"]
    return rank, f"{told} (exit {failed.exitcode})", ""


def _end_with_standard_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # which the elastic agent passes on to the ranks


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
