"""Launch: call a function on several ranks, each in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autopar.refusal import whole_number
from autopar.timing.fresh_process import check_source, finds_autopar, program_of

_LINES = 12  # of what failing ranks printed, or of a traceback, in an error
# It ends at once: threads of libraries, such as NCCL's, may hold up a process whose peers are gone.
_MAIN = """
import contextlib, os, pickle, sys, traceback
from torch.distributed.elastic.multiprocessing.errors import record
from autopar.distributed.launch import on_ranks

@record
def _rank_main():
    with open({given!r}, "rb") as file:
        args, options = pickle.load(file)
    returned = on_ranks({name}, *args, **options)
    if os.environ["RANK"] == "0":
        with open({returned!r}, "wb") as file:
            pickle.dump(returned, file)

status = 1
try:
    _rank_main()
    status = 0
except BaseException:
    with contextlib.suppress(FileExistsError):  # another rank was the first to fail
        os.symlink(os.environ["RANK"], {first!r})
    traceback.print_exc()
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
"""


def on_ranks(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    device: str = "cpu",
    timeout_s: float = 300.0,
) -> list[Any]:
    """Call `fn(device, *args)` on every rank of a process group, and return what each returned.

    In a program that `torchrun` has started, its processes are the ranks, and each gets the list.
    Otherwise new processes are started here, by PyTorch's elastic agent, with the function's source
    and what that loads as globals: installed modules, functions, numbers and strings. These are
    known by their names alone, whichever module they are of, so two must not have the same; and the
    variables of a function around it are not known.

    Args:
        fn: A function whose source can be read. `torch.distributed` is ready for use in it.
        *args: Its arguments after its rank's device. They and what it returns are pickled, which
            may take up to 8 MiB a rank: write more to a file.
        ranks: How many processes. `torchrun` must have started as many or more.
        device: `cuda` for one GPU a rank, with NCCL for its tensors; `cpu` for Gloo alone.
        timeout_s: How long all of it, or one exchange between ranks, may take.

    Raises:
        RuntimeError: A rank failed, and all others were ended. The message names it and the cause.
        TimeoutError: It took too long, and all ranks were ended.
        TypeError: `fn` is not a function with a name and a source.
        ValueError: There are fewer ranks than asked for, or no such device.

    >>> import torch.distributed as dist
    >>> def total(device, number):
    ...     x = torch.full((), number, device=device)
    ...     dist.all_reduce(x)
    ...     return x.item()
    >>> on_ranks(total, 21, ranks=2)  # doctest: +SKIP
    [42, 42]
    """
    whole_number("ranks", ranks, of=", each a process")
    if device not in ("cpu", "cuda"):
        msg = f"device is {device!r}; expected 'cpu', or 'cuda' for a GPU for each rank."
        raise ValueError(msg)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from autopar.distributed.member import take_part  # torch.distributed is slow to import

        return take_part(fn, args, ranks, device, timeout_s)
    check_source(fn)
    options = {"ranks": ranks, "device": device, "timeout_s": timeout_s}
    with tempfile.TemporaryDirectory() as folder:
        given, returned = Path(folder) / "given", Path(folder) / "returned"
        given.write_bytes(pickle.dumps((args, options)))
        paths = {name: str(Path(folder) / name) for name in ("given", "returned", "first")}
        main = _MAIN.format(name=fn.__name__, **paths)
        _run(program_of(fn, main, folder), ranks, timeout_s)
        return list(pickle.loads(returned.read_bytes()))


def _run(file: Path, ranks: int, timeout_s: float) -> None:
    """Run a program on ranks of its own, and raise what ended it if it has failed."""
    failure, printed = file.with_name("failure"), file.with_name("printed")
    threads = max(1, (os.cpu_count() or 1) // ranks)  # else each rank takes all cores
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **finds_autopar()}
    command = [sys.executable, "-m", "autopar.distributed.agent", str(ranks)]
    # While standard input is open the agent runs: it ends with this process, however that ends.
    with (
        printed.open("wb") as output,
        subprocess.Popen(
            [*command, file, failure],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        ) as agent,
    ):
        try:
            agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            msg = f"{file.stem} on {ranks} ranks was not done in {timeout_s:g} s, and was ended."
            raise TimeoutError(msg) from None
    if agent.returncode:
        said = printed.read_text(encoding="utf-8", errors="replace").splitlines()
        words = [f"the agent failed (exit {agent.returncode})", *said[-_LINES:]]
        if failure.exists():
            rank, cause, stack = json.loads(failure.read_text(encoding="utf-8"))
            words = [f"rank {rank} failed: {cause}", *stack.splitlines()[-_LINES:]]
        msg = "\n".join([f"{file.stem} on {ranks} ranks: {words[0]}", *words[1:]])
        raise RuntimeError(msg)
