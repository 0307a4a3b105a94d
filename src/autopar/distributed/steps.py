"""Steps: ways to train a model on several ranks, checked, timed in turn, and seen."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopar.distributed.joint import joint_checks
from autopar.records.race import Ways, race
from autopar.records.record import Findings
from autopar.refusal import several
from autopar.timeline.span import Timeline
from autopar.timing.measurement import require_labels
from autopar.traces.profiler import timelines_of

COMPUTING = "computing alone"
SEEN = 3  # steps of each way: one may meet a mood of the machine
_STEPS, _RATE = 3, 0.02  # steps and rate of a short training, with losses that clearly differ

Step = Callable[..., torch.Tensor]


def race_of_steps(
    ways: Mapping[str, Callable[[nn.Module], Step]],
    alone: Step,
    model: nn.Module,
    batch: Sequence[torch.Tensor],
    *,
    ddp: Mapping[str, Mapping[str, Any]] | None = None,
    parts: Ways | None = None,
    see: Sequence[str] = (),
    save: str = "",
    close: float = 1e-4,
    repeats: int = 7,
) -> Findings:
    """Race ways to train a model on several ranks, of which each calls this with the same model.

    Each rank gets its share of the batch. What it computes is compared with what one process does
    that has all shares, one after another: the gradients of a step, as `race` compares, and the
    losses of a short training, added up over ranks. If results differ on one rank, no rank keeps
    times. Ranks meet before each sample; `findings_of_ranks` makes one of what all have found.

    Args:
        ways: Label to what makes a step for a model. A step is called with the rank's share of each
            tensor and the rows of the whole batch. It returns this rank's part of the loss, and
            leaves the gradients of all ranks in the model. The first is the baseline.
        alone: The step of one process: called with a model before the same arguments. It zeroes
            gradients first. With the rank's share it is timed as the part `computing alone`.
        model: Each way gets a copy of it, and the last training is its own. It begins alike on all
            ranks: seed it.
        batch: Tensors with a row for each example.
        ddp: Label to options of `DistributedDataParallel`, which then takes part as a way. It takes
            the mean over ranks, so its loss is divided by fewer rows.
        parts: Label to what else is timed beside the ways.
        see: Labels of the ways whose timelines are taken; on a CPU there is nothing to be seen.
            For each of three steps is kept how long communication was exposed, which is when the
            rank did not compute: in seconds, as a share of all communication, and beside the last
            message, which has nothing to hide behind.
        save: How the names of the ranks' traces begin, which are kept; none if not given.
        close: The largest difference of gradients and of losses, as in `race`.
        repeats: Rounds, at least three.

    Raises:
        TypeError: As `race` does.
        ValueError: As `race` does; there is no process group; a label stands for two ways.

    >>> import torch
    >>> import autopar as ap
    >>> def backward(model, x, rows):  # the mean over all rows, and not the rank's alone
    ...     model.zero_grad()
    ...     loss = model(x).square().sum() / rows
    ...     loss.backward()
    ...     return loss.detach()
    >>> def each_rank(device):
    ...     torch.manual_seed(0)
    ...     model, x = ap.workload.network(8, 2, device), torch.ones(6, 8, device=device)
    ...     return ap.race_of_steps({}, backward, model, [x], ddp={"DDP": {}})
    >>> ap.findings_of_ranks(ap.on_ranks(each_rank, ranks=2))  # doctest: +SKIP
    <Findings: measurements 2, checks 3>
    """
    if not dist.is_initialized():
        msg = "there is no process group; expected a call on every rank, as by autopar.on_ranks."
        raise ValueError(msg)
    if twice := {*ways} & {*(ddp or {})} or {COMPUTING} & {*(parts or {})}:
        msg = f"{sorted(twice)} would stand for two ways or parts; expected different labels."
        raise ValueError(msg)
    every = {**ways, **{label: _in_ddp(alone, options) for label, options in (ddp or {}).items()}}
    see = several("see", see, "labels of the ways, in a list.")
    require_labels("see", see, [*every])
    rank, ranks, rows = dist.get_rank(), dist.get_world_size(), len(batch[0])
    shares = [(*parts, rows) for parts in zip(*(x.tensor_split(ranks) for x in batch), strict=True)]
    share, plain = shares[rank], partial(_share_by_share, model, alone, shares)
    models = {label: copy.deepcopy(model) for label in every}
    steps = {label: partial(every[label](own), *share) for label, own in models.items()}
    runs = {label: partial(_gradients, own, steps[label]) for label, own in models.items()}
    expected = [gradient.clone() for gradient in _gradients(model, plain)]
    found = _together(
        partial(
            race,
            runs,
            parts={COMPUTING: partial(alone, model, *share), **(parts or {})},
            expected=expected,
            close=dict.fromkeys(runs, close),
            devices=batch[0].device,
            repeats=repeats,
        ),
        batch[0].device,
    )
    if see and batch[0].is_cuda and found.measurements:
        found = _seen({label: runs[label] for label in see}, save, found)
    losses = _losses(model, plain) / ranks
    checks = {"the loss falls": bool(losses[-1] < losses[0])}
    for label, own in models.items():
        same = torch.allclose(_losses(own, steps[label]), losses, rtol=close)
        checks[f"{label}: losses equal one process's"] = same
    return replace(found, checks={**found.checks, **checks})


class _DiffersElsewhereError(Exception):
    """Another rank has found that results differ, and takes no times."""


def _together(race_alone: Callable[..., Findings], device: torch.device) -> Findings:
    """Findings of a race on each rank, and none with times if results differ on one."""

    def meet(*, is_right: bool = True) -> None:
        flag = torch.tensor(float(is_right), device=device)
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        if not flag:
            raise _DiffersElsewhereError

    found = Findings([], {}, {})
    with suppress(_DiffersElsewhereError):
        found = race_alone(setup=meet)
        meet(is_right=bool(found.measurements))
        return found
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found.checks)
    return Findings([], {}, joint_checks(every))


def communication(timeline: Timeline) -> dict[str, float]:
    """What a rank's timeline tells of messages, each of which may wait for another rank."""
    sent = [span for span in timeline.spans if span.kind == "communication"]
    if not sent:
        return {}
    exposed_s = timeline.exposed_s("communication")
    return {
        "exposed, s": exposed_s,
        "exposed, share": exposed_s / timeline.busy_s("communication"),
        "exposed / last": exposed_s / sent[-1].duration_s,
    }


def _in_ddp(alone: Step, options: Mapping[str, Any]) -> Callable[[nn.Module], Step]:
    """What makes a step with `DistributedDataParallel`, of which all gradients are sums as well."""

    def made(model: nn.Module) -> Step:
        own, ranks = nn.parallel.DistributedDataParallel(model, **options), dist.get_world_size()

        def step(*share: Any) -> torch.Tensor:
            *rows_of, rows = share
            return alone(own, *rows_of, rows / ranks) / ranks

        return step

    return made


def _share_by_share(model: nn.Module, alone: Step, shares: Sequence[Sequence[Any]]) -> torch.Tensor:
    """What one process does that has all shares, with kernels of the same sizes as each rank's.

    Others add up in another order. Where a number is then below zero and not above, a network takes
    another path, and the gradients of an example differ as a whole.
    """
    trained, losses = _trained(model), []
    totals = [torch.zeros_like(parameter) for parameter in trained]
    for share in shares:
        losses.append(alone(model, *share))
        for total, parameter in zip(totals, trained, strict=True):
            if parameter.grad is not None:
                total += parameter.grad
    for total, parameter in zip(totals, trained, strict=True):
        parameter.grad = total
    return torch.stack(losses).sum()


def _gradients(model: nn.Module, step: Callable[[], object]) -> list[Any]:
    step()
    return [  # of what no example uses, as much as of a sum of nothing
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in _trained(model)
    ]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _losses(model: nn.Module, step: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The losses over some steps of training, summed over ranks."""
    losses, optimizer = [], torch.optim.SGD(_trained(model), _RATE)
    for _ in range(_STEPS):
        losses.append(step().detach())
        optimizer.step()
    total = torch.stack(losses)
    dist.all_reduce(total)
    return total


def _seen(ways: Ways, save: str, found: Findings) -> Findings:
    """Findings with the timeline of each way's last step, and what all that were seen tell."""
    several_steps = {f"{label}, step {i}": ways[label] for i in range(SEEN) for label in ways}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{save or 'trace'}_rank_{dist.get_rank()}.json.gz")
        every = timelines_of(several_steps, setup=dist.barrier, save=path)
        files = {path.name: path.read_bytes()} if save else {}
    told = {
        f"{step}: {figure}": value
        for step, timeline in every.items()
        for figure, value in communication(timeline).items()
    }
    timelines = {label: every[f"{label}, step {SEEN - 1}"] for label in ways}
    return replace(found, timelines=timelines, values={**found.values, **told}, files=files)
