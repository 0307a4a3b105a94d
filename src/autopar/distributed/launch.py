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

import cloudpickle

from autopar.device import num_gpus
from autopar.distributed.rank import ENDED, RAISED, returned_by
from autopar.effects.calls import name_of
from autopar.refusal import check_type, positive, whole_number
from autopar.timing.fresh_process import search_path

_LINES = 12  # of what the agent printed, or of a traceback, in an error
_FUNCTION = "a function, which each rank calls with its device and the other arguments."


def on_ranks(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    device: str = "cpu",
    timeout_s: float = 300.0,
) -> list[Any]:
    """Call `fn(device, *args)` on every rank of a process group, and return what each returned.

    In a program that `torchrun` has started, its processes are the ranks, and each gets the list.
    Otherwise new processes are started here, by PyTorch's elastic agent. They are given the
    function by cloudpickle: one of this script or notebook with the variables and classes that it
    uses, as they are now; one of another module by its name, so that each rank imports that. Each
    begins with random numbers of its own. What ranks print comes out here once all have ended.

    Args:
        fn: A function. `torch.distributed` is ready for use in it.
        *args: Its arguments after its rank's device. They and what it returns are pickled.
        ranks: How many processes. `torchrun` must have started as many or more.
        device: `cuda` for one GPU a rank, with NCCL for its tensors; `cpu` for Gloo alone.
        timeout_s: How long all of it, or one exchange between ranks, may take.

    Raises:
        RuntimeError: A rank failed, and all others were ended. The message names it and the cause.
        TimeoutError: It took too long, and all ranks were ended.
        TypeError: `fn` is no function, or it or an argument can't be pickled, as a lock.
        ValueError: There are fewer ranks or GPUs than asked for, or no such device; `timeout_s` is
            not above zero.

    >>> import autopar as ap
    >>> import torch.distributed as dist
    >>> def total(device, number):
    ...     x = torch.full((), number, device=device)
    ...     dist.all_reduce(x)
    ...     return x.item()
    >>> ap.on_ranks(total, 21, ranks=2)  # doctest: +SKIP
    [42, 42]
    """
    check_type("fn", fn, Callable, _FUNCTION)
    whole_number("ranks", ranks, of=", each a process")
    positive("timeout_s", timeout_s, "a number of seconds above 0, as timeout_s=60.")
    if device not in ("cpu", "cuda"):
        msg = f"device is {device!r}; expected 'cpu', or 'cuda' for a GPU for each rank."
        raise ValueError(msg)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from autopar.distributed.member import take_part  # torch.distributed is slow to import

        return take_part(fn, args, ranks, device, timeout_s)
    if device == "cuda" and num_gpus() < ranks:
        msg = f"device is 'cuda' for {ranks} ranks; expected a GPU for each, of {num_gpus()} here."
        raise ValueError(msg)
    options = {"ranks": ranks, "device": device, "timeout_s": timeout_s}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            (folder / "given").write_bytes(cloudpickle.dumps((fn, args, options)))
        except Exception as error:
            msg = (
                f"{name_of(fn)}, what it uses or its arguments can't be given to other processes: "
                f"{error}. Make that within the function."
            )
            raise TypeError(msg) from error
        work = f"{name_of(fn)} on {ranks} ranks"
        _run(folder, work, ranks, timeout_s)
        try:
            return list(pickle.loads(returned_by(folder, "0").read_bytes()))
        except Exception as error:
            msg = f"{work}: what it returned can't be read here: {error!r}. Return plain values."
            raise RuntimeError(msg) from error


def _run(folder: Path, work: str, ranks: int, timeout_s: float) -> None:
    """Run ranks as a folder tells them, and raise what ended them if one has failed."""
    threads = max(1, (os.cpu_count() or 1) // ranks)  # else each rank takes all cores
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **search_path()}
    environment["PYTHONIOENCODING"] = "utf-8"  # as it is read here
    outputs = folder / "stdout", folder / "stderr"
    # While standard input is open the agent runs: it ends with this process, however that ends.
    with (
        outputs[0].open("wb") as stdout,
        outputs[1].open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "autopar.distributed.agent", str(ranks), folder],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
        ) as agent,
    ):
        try:
            agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            msg = f"{work} was not done in {timeout_s:g} s, and was ended."
            raise TimeoutError(msg) from None
        finally:
            agent.terminate()
            said = [file.read_text(encoding="utf-8", errors="replace") for file in outputs]
            for stream, text in zip((sys.stdout, sys.stderr), said, strict=True):
                encoding = getattr(stream, "encoding", None) or "utf-8"
                text = text.encode(encoding, "backslashreplace").decode(encoding)
                print(text, end="", file=stream)
    if agent.returncode:
        words = [f"the agent failed (exit {agent.returncode})", *said[1].splitlines()[-_LINES:]]
        # Ranks that wait for one whose process has ended raise an error because of that.
        for first in (folder / ENDED, folder / RAISED):
            if first.exists():
                rank, cause, stack = json.loads(first.read_text(encoding="utf-8"))
                words = [f"rank {rank} failed: {cause}", *stack.splitlines()[-_LINES:]]
                break
        raise RuntimeError("\n".join([f"{work}: {words[0]}", *words[1:]]))
