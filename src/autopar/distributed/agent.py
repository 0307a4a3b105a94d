"""Agent: the process that starts a program's ranks on this machine, and ends all if one fails.

It is PyTorch's elastic agent, which `torchrun` runs as well; here it also ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_RANK = "from autopar.distributed.rank import main; main()"


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
    except ChildFailedError:  # as its rank has told
        return 1
    return 0


def _end_with(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # which the elastic agent passes on to the ranks


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
