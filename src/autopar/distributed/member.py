"""Member: what one rank of a process group does: join it, call a function, tell all the result."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from autopar.device import cpu, present

_PIECE = 4 << 20  # bytes; a store takes up to 8 MiB at once
_numbers = itertools.count()  # of the calls, which all ranks make in the same order


def _by_name(returned: Any) -> bytes:
    """Pickled for ranks that all run the same script, so that its classes are theirs as well."""
    try:
        return pickle.dumps(returned)
    except Exception:  # of many kinds
        return bytes(cloudpickle.dumps(returned))


def take_part(
    fn: Callable[..., Any],
    args: Sequence[Any],
    ranks: int,
    device: str,
    timeout_s: float,
    dumps: Callable[[Any], bytes] = _by_name,
) -> list[Any]:
    """Call a function as one of the first `ranks` ranks; return what each of these returned.

    Each call has a process group of its own. Ranks beyond those only wait for the results.
    """
    store, rank, there = _meeting_place()
    if there < ranks:
        msg = (
            f"on_ranks needs {ranks} ranks, and torchrun has started {there}; expected as "
            f"many or more. Start it with torchrun --nproc-per-node {ranks}."
        )
        raise ValueError(msg)
    timeout = timedelta(seconds=timeout_s)
    store.set_timeout(timeout)
    shared: Any = PrefixStore(f"call {next(_numbers)}", store)
    if rank < ranks:
        with _group(shared, rank, ranks, device, timeout) as own:
            returned = fn(own, *args)
        _put(shared, f"returned by {rank}", dumps(returned))
    return [pickle.loads(_get(shared, f"returned by {number}")) for number in range(ranks)]


def _put(store: Any, key: str, content: bytes) -> None:
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}, {number}", piece)
    store.set(key, str(len(pieces)))


def _get(store: Any, key: str) -> bytes:
    return b"".join(store.get(f"{key}, {number}") for number in range(int(store.get(key))))


@functools.cache  # its port can be opened once
def _meeting_place() -> tuple[Any, int, int]:
    """What all processes of `torchrun` read and write, this one's rank, and how many they are."""
    store, rank, there = next(iter(rendezvous("env://")))
    return store, rank, there


@contextmanager
def _group(
    store: Any, rank: int, ranks: int, device: str, timeout: timedelta
) -> Iterator[torch.device]:
    """Join the process group, with the rank's device, and leave it; a rank that fails just ends."""
    backend, own = "gloo", cpu()
    if device == "cuda":
        backend, own = "cpu:gloo,cuda:nccl", present(int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=timeout,
        device_id=own if device == "cuda" else None,
    )
    yield own
    dist.barrier()  # a rank that leaves earlier ends what others may still be in
    dist.destroy_process_group()
