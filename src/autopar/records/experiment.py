"""Experiment: a function that measures, run here or shown from the record of where it was run."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from autopar.device import cpu, num_gpus
from autopar.machine import describe, processor_names
from autopar.records import gallery
from autopar.records.digest import code_digest
from autopar.records.nsight import ToolError
from autopar.records.provenance import provenance
from autopar.records.record import Findings, Record
from autopar.records.store import Wanted, check_name, newest_of, write_record
from autopar.refusal import check_type, several, whole_number

RECORD_TO = "AUTOPAR_RECORD_TO"  # environment: the folder to write records to, while recording

Experiment = Callable[..., Findings]


def observed(
    experiment: Experiment, *, name: str, parameters: Mapping[str, Any], gpus: int = 0
) -> Record:
    """Run an experiment here and now, once: what was found is final.

    Arguments are those of `recorded`; with no GPUs, the origin names the CPU.

    Raises:
        RuntimeError: A check of the experiment failed, so its timings would mean nothing.

    >>> import autopar as ap
    >>> def add_up(count):
    ...     return ap.Findings([ap.measure(lambda: sum(range(count)), label="sum")])
    >>> list(ap.observed(add_up, name="add_up", parameters={"count": 1_000}).measurements)
    ['sum']
    """
    _check(experiment, name, parameters, gpus)
    digest = code_digest(experiment, parameters)  # first, as it may refuse what takes hours
    findings = experiment(**parameters)
    if not isinstance(findings, Findings):
        msg = (
            f"experiment {name!r} returned {type(findings).__name__}; expected Findings. End it in "
            f"`return ap.Findings(measurements, timelines, checks)`, or return what ap.race does."
        )
        raise TypeError(msg)
    findings = replace(findings)  # which checks what was added to it, too
    if findings.failed:
        failed = ", ".join(findings.failed)
        msg = f"experiment {name!r} failed its check: {failed}. Its timings don't count."
        raise RuntimeError(msg)
    machine, processors = describe(), processor_names(None if gpus else [cpu()])
    return Record(
        experiment=name,
        parameters=dict(parameters),
        digest=digest,
        measurements={measurement.label: measurement for measurement in findings.measurements},
        timelines={label: timeline.rebased() for label, timeline in findings.timelines.items()},
        checks=dict(findings.checks),
        values={value: float(number) for value, number in findings.values.items()},
        hardware={"processors": processors, **machine["hardware"]},
        software={**provenance(), **machine["software"]},
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(experiment),
        files=dict(findings.files),
        live=True,
    )


def recorded(
    experiment: Experiment,
    *,
    name: str,
    parameters: Mapping[str, Any],
    gpus: int = 1,
    threads: int = 1,
    programs: Sequence[str] = (),
    modules: Sequence[str] = (),
    variables: Sequence[str] = (),
    folder: Path | str | None = None,
) -> Record:
    """Run an experiment if this machine has all it needs, else load what one measured that has.

    A record must have been measured with these parameters. Of several, those of this very code come
    first, then the newest. The origin of one of earlier code says so; cells of a notebook are not
    held against records. A record is also loaded where a profiler that the experiment starts does
    not work.

    Args:
        experiment: A function of keyword arguments that returns `Findings`.
        name: The record's name.
        parameters: Its keyword arguments; must be JSON.
        gpus: How many GPUs the experiment needs; with none, the origin names the CPU.
        threads: How many hardware threads of the CPU it needs.
        programs: Programs that it starts, which must be on the path.
        modules: Python modules that it imports, beside those that autopar needs.
        variables: Environment variables that it reads, which must be set.
        folder: Where records lie, one folder per machine; those that come with autopar if not
            given.

    Raises:
        RecordError: There is none, one is damaged or edited, or all are of other parameters.
        RuntimeError: A check of the experiment failed.

    >>> import autopar as ap
    >>> def add_up(count):
    ...     return ap.Findings([ap.measure(lambda: sum(range(count)), label="sum")])
    >>> record = ap.recorded(add_up, name="add_up", parameters={"count": 1_000}, gpus=0)
    >>> record.live  # as this machine has all that it needs
    True
    """
    _check(experiment, name, parameters, gpus)
    whole_number("threads", threads, 1, of=", as many as the experiment needs")
    of_one = "a list of names, even of a single one."
    has: dict[str, object] = {
        **({f"{gpus} GPU{'s' * (gpus > 1)}": num_gpus() >= gpus} if gpus else {}),
        **({f"{threads} CPU threads": (os.cpu_count() or 1) >= threads} if threads > 1 else {}),
        **{program: shutil.which(program) for program in several("programs", programs, of_one)},
        **{
            module: importlib.util.find_spec(module.partition(".")[0])
            for module in several("modules", modules, of_one)
        },
        **{name: os.environ.get(name) for name in several("variables", variables, of_one)},
    }
    lacking = [need for need, is_here in has.items() if not is_here]
    record_to = os.environ.get(RECORD_TO)
    if not lacking:
        try:
            record = observed(experiment, name=name, parameters=parameters, gpus=gpus)
        except ToolError as error:
            print(f"{error}\nSo its record is shown.")
        else:
            if record_to:
                write_record(record, record_to)
            return record
    elif record_to:
        print(f"{name}: not measured, for want of {', '.join(lacking)}")
    again = f"On a machine with {' and '.join(has)} run: {_command(experiment)}"
    return newest_of(Wanted(name, partial(code_digest, experiment), parameters, again), folder)


def newest_record(name: str, folder: Path | str | None = None) -> Record:
    """Load the record that an experiment of the gallery has left, without the experiment.

    Of several it is the one that `recorded` takes. In a checkout it says so if the gallery's code
    is another by now, parameters included. An installed autopar has no gallery: its records were
    checked before.

    Args:
        name: The record's name.
        folder: Where records lie, as for `recorded`.

    Raises:
        RecordError: There is none, or one is damaged or edited.

    >>> from autopar.records.store import FOLDER
    >>> import autopar as ap
    >>> ap.newest_record("e3_compute_and_copy", FOLDER).live  # as it was measured elsewhere
    False
    """
    scripts = [] if folder else gallery.scripts_of()
    shown = gallery.shown_by(script for script in scripts if name in script.read_text())
    by_name = {wanted.name: wanted for wanted in shown}
    return newest_of(by_name.get(name, Wanted(name)), folder)


def _check(experiment: Experiment, name: str, parameters: Mapping[str, Any], gpus: int) -> None:
    """Refuse what could be neither run nor recorded, before anything runs."""
    expected = "a function that returns Findings. Pass it without calling it."
    check_type("experiment", experiment, Callable, expected)
    check_name(name, "record")
    whole_number("gpus", gpus, 0, of=", as many as the experiment needs")
    try:
        json.dumps(dict(parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        msg = (
            f"parameters of {name!r} can't be kept in a record ({error}); expected a dict of "
            f"numbers, strings and lists. Make tensors and the like in the experiment."
        )
        raise TypeError(msg) from error


def _command(experiment: Experiment) -> str:
    return gallery.command_of(Path(inspect.getsourcefile(experiment) or ""))  # none of a cell
