"""Runner: the lanes and streams that carry out a graph's plans."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch

from autopar.device import new_stream, synchronize
from autopar.graph.plan import Plan
from autopar.graph.run import Run
from autopar.lanes.clock import device_clock
from autopar.lanes.cpu import cpu_lane
from autopar.lanes.lane import Lane


class Runner:
    """The lanes and streams of a graph; as a context manager it keeps them between runs.

    Args:
        cpu_lanes: How many CPU workers share the threads that torch has for operators.

    Attributes:
        tracks: Whether autograd tracks what tasks do, where it is on.
    """

    def __init__(self, cpu_lanes: int) -> None:
        self.tracks = True
        self._threads_each = max(1, torch.get_num_threads() // cpu_lanes)
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._lanes: dict[str, Lane] = {}
        self._kept: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        if self._kept is not None:
            msg = "the graph's lanes are open already; expected one `with graph:` at a time."
            raise RuntimeError(msg)
        self._kept = contextlib.ExitStack()
        return self

    def __exit__(self, *error: Any) -> None:
        kept, self._kept = self._kept, None
        self._lanes.clear()
        if kept is not None:
            kept.close()

    @contextlib.contextmanager
    def started(self, plan: Plan) -> Iterator[Run]:
        """Start a plan's run, and wait for all of it at the end of the block."""
        launcher, worker = (1, "host"), (self._threads_each, "compute")
        kinds = {
            host: launcher if own[0].lane in plan.gpu_of_lane else worker
            for host, own in plan.shares.items()
        }
        with self._open(list(plan.shares), kinds) as lanes:
            streams = self._streams_of(plan)
            run = Run(plan, streams, tracks=self.tracks)
            try:
                run.start(lanes)
                yield run
                run.wait()
            except BaseException:
                run.stop()
                raise
            finally:
                for lane in lanes.values():
                    lane.wait()
                run.ended()

    def one_by_one(self, plan: Plan, *, alone: bool = False) -> Run:
        """Carry out a plan, one task after another; `alone` takes a GPU's times on the device."""
        name = "one by one"
        with self._open([name], {name: (self._threads_each, "compute")}) as lanes:
            run = Run(plan, {}, tracks=self.tracks)
            synchronize(*run._ready)
            try:
                run.start_serially(lanes[name], alone=alone)
                run.wait()
            except BaseException:
                run.stop()
                raise
            finally:
                lanes[name].wait()
        run.ended()
        return run

    def kept(self) -> contextlib.AbstractContextManager[object]:
        """Keep lanes for a while, if they are not kept already."""
        return self if self._kept is None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _open(
        self, names: Iterable[str], kinds: Mapping[str, tuple[int, str]]
    ) -> Iterator[dict[str, Lane]]:
        """Lanes by name, with their threads and kinds; left afterwards, unless they are kept."""
        with contextlib.ExitStack() as own:
            lanes = self._lanes if self._kept is not None else {}
            for name in names:
                if name not in lanes:
                    threads, kind = kinds[name]
                    lane = cpu_lane(threads, name=name, kind=kind)
                    lanes[name] = (self._kept or own).enter_context(lane)
            yield {name: lanes[name] for name in names}

    def _streams_of(self, plan: Plan) -> dict[str, torch.cuda.Stream]:
        for lane, gpu in plan.gpu_of_lane.items():
            if lane not in self._streams:
                device_clock(gpu, max_age_s=1.0)  # while there is no work to disturb
                self._streams[lane] = new_stream(gpu)
        return self._streams
