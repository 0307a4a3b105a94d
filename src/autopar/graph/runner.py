"""Runner: the lanes and streams that carry out a graph's plans."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch

from autopar.device import new_stream
from autopar.graph.execution import Execution
from autopar.graph.plan import Plan
from autopar.graph.run import Run
from autopar.lanes.clock import device_clock
from autopar.lanes.cpu import cpu_lane
from autopar.lanes.lane import Lane
from autopar.refusal import NoValue


class Starting(NoValue):
    """A run that begins with a `with` block."""

    _HOW = "nothing runs before a block: write `with graph.start() as run:`, and ask that."

    def __init__(self, started: contextlib.AbstractContextManager[Run]) -> None:
        self._started = started

    def __enter__(self) -> Run:
        return self._started.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._started.__exit__(*error)


class Runner:
    """The lanes and streams of a graph; as a context manager it keeps them between runs."""

    def __init__(self) -> None:
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}  # by name and threads
        self._kept: contextlib.ExitStack | None = None
        self._process = os.getpid()  # where they are kept

    def __enter__(self) -> Self:
        if self._kept is not None:
            msg = "the graph's lanes are open already; expected one `with graph:` at a time."
            raise RuntimeError(msg)
        self._kept, self._process = contextlib.ExitStack(), os.getpid()
        return self

    def __exit__(self, *error: Any) -> None:
        kept, self._kept = self._kept, None
        self._lanes.clear()
        if kept is not None:
            kept.close()

    @contextlib.contextmanager
    def started(
        self, plan: Plan, *, in_order: bool = False, here: bool = False, **how: Any
    ) -> Iterator[Run]:
        """Start a plan's run, and wait for all of it at the end of the block; see `Execution`.

        Where this thread can do it all, `here` lets it do that, once it waits.
        """
        here = here and plan.is_for_one_thread
        if not here and self._kept is not None and self._process != os.getpid():
            msg = (
                "the graph's lanes are open in another process, which this one was forked from; "
                "expected a run where they are. Leave the `with` block first, or fork before it."
            )
            raise RuntimeError(msg)
        launched = {} if in_order or here else plan.gpu_of_lane
        none: contextlib.AbstractContextManager[dict[str, Lane]] = contextlib.nullcontext({})
        with none if here else self._open(plan, in_order, launched) as lanes:
            streams = self._streams_of(launched)
            execution = Execution(plan, streams, in_order=in_order, **how)
            run = Run(execution)
            try:
                if here:
                    execution.start_here()
                else:
                    execution.start(lanes)
                yield run
                run.wait()
            except BaseException:
                execution.failure.break_off()
                raise
            finally:
                for lane in lanes.values():
                    lane.wait()
                execution.end()

    def kept(self) -> contextlib.AbstractContextManager[object]:
        """Keep lanes for a while, if they are not kept already."""
        return self if self._kept is None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _open(
        self, plan: Plan, in_order: bool, launched: Mapping[str, torch.device]
    ) -> Iterator[dict[str, Lane]]:
        """Lanes by name, a launcher's or a worker's; left afterwards, unless they are kept."""
        steps = plan.steps_in_order if in_order else plan.steps
        threads = max(1, torch.get_num_threads() // plan.cpu_lanes)
        with contextlib.ExitStack() as opened:
            lanes, given = self._lanes if self._kept is not None else {}, {}
            for name, share in steps.of.items():
                launches = any(step.lane in launched for step in share)
                form = name, 1 if launches else threads
                if form not in lanes:
                    lane = cpu_lane(form[1], name=name, kind="host" if launches else "compute")
                    lanes[form] = (self._kept or opened).enter_context(lane)
                given[name] = lanes[form]
            yield given

    def _streams_of(self, launched: Mapping[str, torch.device]) -> dict[str, torch.cuda.Stream]:
        for lane, gpu in launched.items():
            if lane not in self._streams:
                device_clock(gpu, max_age_s=1.0)  # while there is no work to disturb
                self._streams[lane] = new_stream(gpu)
        return self._streams
