"""Task graph: tasks that state what they depend on, and a plan that runs everything else at once.

    graph.add(fn, x, other_task, device=...)  ->  plan: lanes, waits, copies  ->  run, or its twin

A task depends on the tasks among its arguments. Reads and writes of memory keep the order of the
program: any number of readers of it, or one writer (`writes=`), as in MXNet's engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Self

import torch

from autopar.effects.memory import Closed
from autopar.effects.task import Task
from autopar.graph.audit import Audit
from autopar.graph.capture import Captured, captured
from autopar.graph.graph_lanes import GraphLanes, LaneCounts
from autopar.graph.plan import Plan, planned, tasks_and_copies
from autopar.graph.program import Program
from autopar.graph.run import Run, Starting
from autopar.refusal import Turns, check_keywords, whole_number


class TaskGraph(Closed):
    """Tasks on any devices, with their dependencies; it can be run again and again.

    Results cross devices by themselves, over copy lanes. As a context manager it keeps its lanes
    open between runs; otherwise each run opens and leaves its own. What is all on one CPU lane,
    or torch's operators all on one stream, the thread that calls `run` does itself.

    Args:
        cpu_lanes: CPU workers, which share out torch's threads, so that sums may round otherwise.
        streams: CUDA streams for the tasks of each GPU.

    If either is not given, there is one, or up to 4: whichever `measure` has found to be faster,
    and before that one for traced code, whose operators are short, and for chains.

    Raises:
        ValueError: There are no lanes or no streams, or far too many.

    >>> import torch
    >>> import autopar as ap
    >>> graph = ap.TaskGraph()
    >>> six = graph.add(torch.mul, graph.add(torch.add, torch.ones(2), 1), 3)
    >>> graph.run()[six]
    tensor([6., 6.])
    """

    def __init__(self, *, cpu_lanes: int | None = None, streams: int | None = None) -> None:
        self._program = Program(self)
        self._lanes = GraphLanes(cpu_lanes, streams)
        self._measured_s: dict[LaneCounts, dict[int, float]] = {}  # by node
        self._planned: Plan | None = None
        self._run: Run | None = None
        self._turns = Turns()

    def add(
        self,
        fn: Callable[..., Any],
        *args: Any,
        device: torch.device | str | int | None = None,
        name: str | None = None,
        writes: Iterable[Task | torch.Tensor] | None = None,
        cost_s: float | None = None,
        **kwargs: Any,
    ) -> Task:
        """Add `fn(*args, **kwargs)`; tasks among the arguments stand for their results.

        Tensors and results on other devices are copied to the task's first. Torch's operators
        declare what they read and write. Other functions, modules too, run in the order of the
        program with all other tasks, unless `writes` says what they change.

        Args:
            fn: What to call.
            *args: Its arguments; tasks and tensors may be in nested containers.
            device: Where it runs; with its first task or tensor if not given, else where all
                tensors lie that the function holds, else on the CPU.
            name: Its name; if not given, the function's, or that of the module's class.
            writes: Results, tensors and arrays that it changes in place; none, if it is `()`. Then
                nothing else may be changed, or drawn at random, or read but arguments and what is
                held, as by a module; `.grad`, attributes of tensors and classes, and buffers behind
                `torch.frombuffer` are not held.
            cost_s: Seconds that it takes; a guess if not given, until `measure` was called.
            **kwargs: Its keyword arguments; `functools.partial` binds one named like those above.

        Raises:
            TypeError: `fn` can't be called, or takes no such keyword; `name` is no text, or
                `writes` is, or holds, something else.
            ValueError: A task is of another graph or in a container that can't be looked into, the
                device is not on this machine, the cost is no time, or what is written is a task
                that is no argument, or lies on another device.
        """
        check_keywords(fn, kwargs, "add's own: device=, name=, writes=, cost_s=")
        task = self._program.add(
            fn, args, kwargs, device=device, name=name, writes=writes, cost_s=cost_s
        )
        self._planned = None
        return task

    @classmethod
    def trace(cls, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Self, Any]:
        """Make a graph of what unmodified PyTorch code does, operator by operator.

        Each runs where its result lies, so code that moves tensors between devices is spread over
        them. Backward passes by `torch.autograd.grad` and changes in place are part of it. Numbers,
        shapes and modes are those of this call; tensors, be they given or found by the function,
        keep their places, and are read anew in each run. Results are not tracked by autograd, and
        equal bit for bit, but where torch, or a library, calls others while it is traced: torch for
        singular values or eigenvalues alone, in inference mode for `linear` and `matmul`, and for
        an LSTM on a CPU with grad mode on.

        A number that the data decides, as `x.sum().item()`, is computed in each run; code
        that prints it or decides by it is refused. Use `isinstance`: `type(n) is float` is false.
        What an operator raises by its data each run raises, also where the code would catch it.

        Nothing is changed here: buffers, random numbers and all else that the function changes in
        a call change in each run, or the function is refused. No other thread may draw random
        numbers meanwhile, or run what `torch.compile` makes. Ctrl-C is heard at the next function
        of PyTorch's, and a second one at once, which may abort the process.

        Args:
            fn: A function or a module.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The graph, and what the function returned, with tasks for tensors, or for a number.

        Raises:
            TypeError: `fn` can't be called.
            ValueError: It can't be traced, as when it does one thing or another depending on the
                data, or counts its calls; the message has the reason, with the line or the name.

        >>> import torch
        >>> import autopar as ap
        >>> graph, result = ap.TaskGraph.trace(lambda x: {"y": x @ x.t()}, torch.ones(1, 2))
        >>> graph.run()[result]
        {'y': tensor([[2.]])}
        """
        graph = cls()
        result = graph.add_traced(fn, *args, **kwargs)
        _ = (plan := graph.plan())._steps, plan._is_for_one_thread  # in time for the first run
        return graph, result

    def add_traced(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Add what unmodified PyTorch code does to a graph, whose tasks autograd tracks no more.

        Takes, returns and raises what `trace` does, but for the graph.
        """
        from autopar.graph.tracing import traced  # which imports much that nothing else needs

        result = self._program.add_traced(traced(fn, args, kwargs))
        self._planned = None
        return result

    def order(self, first: Task, then: Task) -> None:
        """Let a task wait for another, whatever their arguments are.

        Raises:
            ValueError: A task is of another graph.
            TypeError: Something is no task.
        """
        self._program.order(first, then)
        self._planned = None

    def plan(self) -> Plan:
        """Which lane each task and copy goes to, in which order, and what it waits for.

        Tasks that take longer to the end go first, by costs that were given or measured.

        Raises:
            ValueError: Tasks wait for each other in a circle.
            RuntimeError: A module that was traced has other tensors as its weights now, or the
                default dtype is another.
        """
        self._program.require_as_traced()
        if self._planned is None or self._program.hazards.is_stale():
            self._planned = self._plan()
        return self._planned

    def run(self, *, timed: bool = False) -> Run:
        """Run all tasks, each as soon as its lane comes to it, and wait for them.

        What tasks change in place, they change anew in each run. What one sets in context
        variables, later ones of the same run may see.

        Args:
            timed: Whether the run is to know its timeline where tasks are on a GPU: two events for
                each take the host some microseconds. On a CPU it always does.

        Raises:
            Exception: What the first task to fail raised, with a note that names it. No other is
                begun after that, and all that are under way are waited for.
            ValueError: As `plan` does.
        """
        for _ in self._alone():
            run = self._ran(self.plan(), timed=timed)
        return run

    def start(self, *, timed: bool = False) -> Starting:
        """Start all tasks, and wait for them at the end of the block; `run[task]` waits for one.

        Args:
            timed: As in `run`.

        Raises:
            Exception: As `run` does, unless a result that was asked for has raised it.
            RuntimeError: The graph is running, or a second block is begun with the same run.

        >>> import autopar as ap
        >>> graph = ap.TaskGraph()
        >>> total = graph.add(sum, [1, 2])
        >>> with graph.start() as run:
        ...     run[total]  # there may be other work before it
        3
        """
        return Starting(self._started(timed))

    def waitall(self) -> None:
        """Wait for all tasks of the run that is under way, if there is one."""
        if self._run is not None:
            self._run.wait()

    def run_serial(self) -> Run:
        """Run the same tasks one after another, in the order of the program.

        Raises:
            Exception: As `run` does.
        """
        for _ in self._alone():
            run = self._ran(self.plan(), in_order=True)
        return run

    def check(self) -> list[str]:
        """Run the tasks one after another, and hold them to what their `writes` says.

        Returns:
            A sentence for each tensor that torch's operators change in a task that did not say so,
            or read though it was not given and another task changes it; and for random numbers.

        Raises:
            Exception: As `run` does, with a RuntimeError for a change of a tensor that a task was
                given, or that its function holds, and that is not in its `writes`.
        """
        for _ in self._alone():
            plan = self.plan()
            audit = Audit(plan.nodes, plan._hazards)
            self._ran(plan, in_order=True, audit=audit)
        return audit.sentences()

    def measure(self, repeats: int = 3, *, alone: bool = True) -> None:
        """Run the tasks and keep each one's time; later plans are made by it.

        On a GPU the time is the device's, without the launch. Without `cpu_lanes` or `streams`,
        later plans have several lanes if they could gain by these times, and whole runs were faster
        as they are here, inside `with graph:` or outside. For that tasks may run a hundred times;
        those that write do so each time.

        Args:
            repeats: How often at least, after one run to warm up; the median counts.
            alone: One after another, so that times and limit are those of each task by itself;
                otherwise as `run` runs them, with what tasks take from each other.

        Raises:
            ValueError: There are no repeats.
            Exception: As `run` does.
        """
        whole_number("repeats", repeats)
        self.plan()  # refuses what can't be run
        for _ in self._alone():
            self._measure(repeats, alone)
        self._planned = None

    def capture(self, inputs: Iterable[torch.Tensor] = ()) -> Captured:
        """Make a CUDA graph of all tasks, with parallel branches where they pay in a trial.

        Tensors and generators of random numbers have their values again after the trial.

        Args:
            inputs: Tensors given to `add` that each replay is to have anew; others are read where
                they lie.

        Raises:
            ValueError: A task is not on the one GPU, or an input is no argument of any.
            RuntimeError: A task can't be captured, as one that waits for the GPU; or the current
                stream is being captured.
        """
        with torch.set_grad_enabled(self._program.hazards.tracks):
            return captured(self.plan(), inputs)

    def __repr__(self) -> str:
        lanes = self._lanes.many.cpu_lanes
        return f"<TaskGraph: {tasks_and_copies(self._program.nodes)}, up to {lanes} CPU lanes>"

    def __enter__(self) -> Self:
        self._lanes.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lanes.__exit__(*error)

    def _measure(self, repeats: int, alone: bool) -> None:
        few, many = self._lanes.few, self._lanes.many
        counts = [few, many][: 1 + (self._plan(few).resources != self._plan(many).resources)]
        self._measured_s = {n: self._costs_s(self._plan(n), repeats, alone) for n in counts}
        plans = {n: self._plan(n) for n in counts}  # by these costs
        self._lanes.choose(plans, repeats, lambda plan, here: self._ran(plan, here=here).wall_s)

    def _costs_s(self, plan: Plan, repeats: int, alone: bool) -> dict[int, float]:
        # No run outlives its turn, so that the next one finds its memory, pinned or not, free.
        how: dict[str, bool] = {"in_order": True, "alone": True} if alone else {"timed": True}
        with self._lanes.kept():
            self._ran(plan, in_order=True, alone=True)
            runs_s = [self._ran(plan, **how).cost_s for _ in range(repeats + (not alone))]
        return {n: statistics.median(run_s[n] for run_s in runs_s[-repeats:]) for n in runs_s[0]}

    # Generators, in loops, which close them at once: Ctrl-C may cut off what contextlib calls.
    def _started(self, timed: bool) -> Generator[Run]:
        for _ in self._alone():
            run = self._run = Run(self.plan(), asked=True, timed=timed)
            for _ in self._lanes.carrying_out(run._execution, here=False):
                yield run

    def _ran(self, plan: Plan, *, here: bool = True, **how: Any) -> Run:
        run = self._run = Run(plan, **how)
        for _ in self._lanes.carrying_out(run._execution, here=here):
            pass
        run.wait()
        return run

    def _alone(self) -> Iterator[None]:
        msg = "the graph is running; expected one run at a time. Wait: graph.waitall()."
        for _ in self._turns.take(msg):
            try:
                yield
            finally:
                self._run = None

    def _plan(self, lanes: LaneCounts | None = None) -> Plan:
        """The plan with some numbers of lanes, or with those that are thought the fastest."""
        few, known = self._lanes.few, lanes or self._lanes.best
        beside = self._lanes.many if self._program.hazards.may_track else few  # else all is short
        most = known or beside
        return planned(self, self._program, most, known or few, self._measured_s.get(most, {}))
