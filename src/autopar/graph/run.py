"""Run: one run of a graph, as its caller sees it: results by task, times, and a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from traceback import format_exception_only
from typing import Any

import torch

from autopar.effects.memory import Closed, held_by, is_size
from autopar.effects.task import Task
from autopar.graph.execution import Execution, Moment
from autopar.graph.node import Node, on_gpus
from autopar.graph.plan import Plan, tasks_and_copies
from autopar.graph.schedule import limit_s
from autopar.lanes.clock import device_clock
from autopar.lanes.handle import use_on_current_streams, wait_for_event
from autopar.lanes.outcome import note
from autopar.refusal import NoValue, what
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import format_seconds
from autopar.torch_private import pytree


class Run(Closed):
    """One run of a graph: its results by task, its timeline, its limit.

    Attributes:
        plan: What it does.

    >>> import autopar as ap
    >>> graph = ap.TaskGraph()
    >>> two = graph.add(max, 1, 2)
    >>> run = graph.run()
    >>> run[two], run.limit_s <= run.wall_s
    (2, True)
    """

    def __init__(self, plan: Plan, **how: Any) -> None:
        self.plan = plan
        self._execution = Execution(plan, **how)
        self._seen = set[int]()  # threads that have got the first error

    def __getitem__(self, task: Any) -> Any:
        """The result of a task, or of tasks in nested containers; waits for it.

        What is no task in a container stays as it is, as a number that traced code has returned.

        Raises:
            Exception: What the task raised.
            RuntimeError: It was not run, as another one failed before.
            KeyError: It is no task of the graph that was run, or lies where it can't be replaced.
        """
        return results_of(task, self._result)

    def _result(self, task: Task) -> Any:
        number = task.number
        if task._graph is not self.plan._graph or number >= len(self.plan.nodes):
            msg = f"{task!r} is no task of this run; expected one that was added before it."
            raise KeyError(msg)
        execution = self._execution
        workers = [worker for worker in execution.workers.values() if not worker.done()]
        if threading.get_ident() in [worker._waits_for() for worker in workers]:
            msg = (
                f"{task!r} was asked for by a task of the same run, which might wait for itself; "
                f"expected it as an argument. Give it to graph.add."
            )
            raise RuntimeError(msg)
        if not execution.issued[number]:
            execution.awaited(number)._wait_until_issued()
        end = execution.ends[number]
        if end is None:
            error, failed = execution.errors[0]
            if failed is not None and failed.number == number:
                self._raise_error()
            why = f"task {failed.name!r} failed" if failed else "the run was broken off"
            name = self.plan.nodes[number].name
            msg = f"task {name!r} has no result: it was not run, because {why}."
            raise RuntimeError(msg) from error
        if isinstance(end, torch.cuda.Event):
            wait_for_event(end)
        return execution.results[number]

    def wait(self) -> None:
        """Wait for all tasks; Ctrl-C ends the wait.

        Raises:
            Exception: What the first task to fail raised, with a note that names it.
        """
        self._execution.join()
        errors = self._execution.errors
        if errors and errors[0][1] and threading.get_ident() not in self._seen:
            self._raise_error()

    def _tell(self, error: BaseException) -> None:
        """Note on an error that is on its way which task has failed, if nobody here knows."""
        for failure, failed in self._execution.errors[:1]:
            if failed and threading.get_ident() not in self._seen:
                if isinstance(error, GeneratorExit):  # which nobody sees
                    self._raise_error()
                said = format_exception_only(failure)[0].strip()
                note(error, f"task {failed.name!r} failed, too: {said}")

    def _raise_error(self) -> None:
        self._seen.add(threading.get_ident())
        raise self._execution.errors[0][0]

    @property
    def wall_s(self) -> float:
        """Seconds from the start until all tasks were done; no number before that."""
        return self._execution.wall_s

    @property
    def spans(self) -> dict[int, Span]:
        """When each task and copy ran, by its number; waits for them.

        Raises:
            RuntimeError: It has tasks on a GPU, and was run without `timed=True`.
        """
        execution = self._execution
        execution.join()
        lane_of, spans = {entry.job: entry.lane for entry in self.plan.schedule.entries}, {}
        for node, start, end in zip(self.plan.nodes, execution.starts, execution.ends, strict=True):
            if start is None or end is None:
                continue
            if start != start:  # it is no number: nobody has asked for it
                msg = (
                    f"task {node.name!r} ran on {node.device}, where times cost as much as short "
                    f"launches and are taken if asked for; expected run(timed=True). Run it so."
                )
                raise RuntimeError(msg)
            lane, start_s, end_s = lane_of[node.number], _time_s(node, start), _time_s(node, end)
            spans[node.number] = Span(node.name, lane, start_s, max(start_s, end_s), node.kind)
        return spans

    @property
    def timeline(self) -> Timeline:
        """When each task and copy ran; on a stream, by events. See `spans`."""
        return Timeline(tuple(self.spans.values()))

    @property
    def cost_s(self) -> dict[int, float]:
        """Seconds that each task and copy took, by its number."""
        return {number: span.duration_s for number, span in self.spans.items()}

    @property
    def limit_s(self) -> float:
        """The larger of the longest chain and the busiest resource, in seconds.

        By the costs that the plan was made with, or by the tasks' times in this run if it knew
        none.
        """
        if self.plan.known:
            return self.plan.limit_s
        cost_s = self.cost_s
        jobs = [
            job._replace(cost_s=cost_s.get(number, 0.0))
            for number, job in enumerate(self.plan.schedule.jobs)
        ]
        return limit_s(jobs, self.plan.resources)

    def __repr__(self) -> str:
        state = "under way"
        if self._execution.errors:
            _, failed = self._execution.errors[0]
            state = "broken off" if failed is None else f"failed in task {failed.name!r}"
        elif self.wall_s == self.wall_s:  # it is a number
            state = f"done in {format_seconds(self.wall_s)}"
        return f"<Run: {tasks_and_copies(self.plan.nodes)}, {state}>"


class Starting(NoValue):
    """A run that begins with a `with` block."""

    _HOW = "nothing runs before a block: write `with graph.start() as run:`, and ask that."

    def __init__(self, steps: Generator[Run]) -> None:
        self._steps = steps  # to start it, and to wait for it

    def __enter__(self) -> Run:
        try:
            run = next(self._steps, None)
            if run is None:
                msg = "this run was started before; expected one block for each. Call start again."
                raise RuntimeError(msg)
            self._run = run
            return run
        except BaseException:
            self._steps.close()  # if Ctrl-C came behind it
            raise

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._steps.close()
            self._run._tell(error)
        else:
            next(self._steps, None)
            self._run.wait()  # not within a generator, which lets no StopIteration through


def results_of(asked: Any, result_of: Callable[[Task], Any]) -> Any:
    """The result of a task, or of all in nested containers, for the current streams to use.

    Refuses to look up what is no task, and tasks where they can't be replaced by results.
    """
    if type(asked) is Task:  # by far the most often
        value = result_of(asked)
    elif type(asked) is list and all(type(part) is Task for part in asked):  # in half the time
        value = [*map(result_of, asked)]
    else:
        leaves, spec = pytree.tree_flatten(asked, is_leaf=is_size)
        for part in held_by(*(leaf for leaf in leaves if type(leaf) is not Task)):
            if type(part) is Task:
                where = "lies in a container of another kind"
                msg = f"{part!r} {where}; expected lists, tuples and dicts."
                raise KeyError(msg)
        if spec.is_leaf():
            expected = "expected a task, as graph.add returns it. Keep that one."
            msg = f"the key is {what(asked)}; {expected}"
            raise KeyError(msg)
        found = [result_of(leaf) if type(leaf) is Task else leaf for leaf in leaves]
        value = spec.unflatten(found)
    use_on_current_streams(on_gpus(value))
    return value


def _time_s(node: Node, moment: Moment) -> float:
    return moment if isinstance(moment, float) else device_clock(node.gpus[0]).time_s(moment)
