"""Experiment: a function that measures, run here or shown from the record of where it was run."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autopar.device import cpu, num_gpus
from autopar.digest import code_digest
from autopar.machine import describe, processor_names
from autopar.measurement import check_label
from autopar.provenance import provenance
from autopar.record import (
    Findings,
    Record,
    RecordError,
    newest_record,
    with_origin,
    write_record,
)

RECORD_TO = "AUTOPAR_RECORD_TO"  # environment: the folder to write records to, while recording

Experiment = Callable[..., Findings]


def observed(
    experiment: Experiment, *, name: str, parameters: Mapping[str, Any], gpus: int = 0
) -> Record:
    """Run an experiment here and now.

    Args:
        experiment: A function of keyword arguments that returns `Findings`.
        name: The experiment's name.
        parameters: Its keyword arguments; must be JSON.
        gpus: How many GPUs it uses; with none, its origin names the CPU.

    Raises:
        RuntimeError: A check of the experiment failed, so its timings would mean nothing.
    """
    check_label(name)
    findings = experiment(**parameters)
    failed = [check for check, held in findings.checks.items() if not held]
    if failed:
        msg = f"experiment {name!r} failed its check: {', '.join(failed)}. Its timings don't count."
        raise RuntimeError(msg)
    processors = processor_names(None if gpus else [cpu()])
    description = describe()
    record = Record(
        experiment=name,
        parameters=dict(parameters),
        digest=code_digest(experiment, parameters),
        measurements={each.label: each for each in findings.measurements},
        timelines={label: each.rebased() for label, each in findings.timelines.items()},
        checks={check: bool(held) for check, held in findings.checks.items()},
        values={value: float(number) for value, number in findings.values.items()},
        files=dict(findings.files),
        hardware={"processors": processors, **description["hardware"]},
        software={**provenance(), **description["software"]},
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(experiment),
        live=True,
    )
    return with_origin(record)


def recorded(
    experiment: Experiment,
    *,
    name: str,
    parameters: Mapping[str, Any],
    gpus: int = 1,
    programs: Sequence[str] = (),
    folder: Path | str | None = None,
) -> Record:
    """Run an experiment if this machine has all it needs, else load what one measured that has.

    A record is refused unless it was measured with this very code and these parameters.

    Args:
        experiment: A function of keyword arguments that returns `Findings`.
        name: The record's name.
        parameters: Its keyword arguments; must be JSON.
        gpus: How many GPUs the experiment needs.
        programs: Programs that it starts, which must be on the path.
        folder: Where records lie, one folder per machine; those that come with autopar if not
            given. Of several machines' records the newest is taken.

    Raises:
        RecordError: There is no record, or it is damaged, edited, of another version of the
            format, or was measured with other code or parameters.
        RuntimeError: A check of the experiment failed.
    """
    record_to = os.environ.get(RECORD_TO)
    missing = [program for program in programs if not shutil.which(program)]
    if num_gpus() >= gpus and not missing:
        record = observed(experiment, name=name, parameters=parameters, gpus=gpus)
        if record_to:
            write_record(record, record_to)
        return record
    if record_to:
        msg = f"recording {name!r} needs {gpus} GPUs; this machine has {num_gpus()}"
        msg += f" and lacks {', '.join(missing)}" if missing else ""
        raise RecordError(msg)
    needed = " and ".join([f"{gpus} GPUs", *programs])
    again = f"On a machine with {needed} run: {_command(experiment)}"
    record = newest_record(name, folder, again)
    digest = code_digest(experiment, parameters)
    if record.digest != digest:
        msg = (
            f"{name}.json: was measured with other code or parameters (its digest is "
            f"{record.digest[:19]}, now {digest[:19]}). {again}"
        )
        raise RecordError(msg)
    return record


def _command(experiment: Experiment) -> str:
    """The command that records this experiment's script, without this machine's paths."""
    script = Path(inspect.getsourcefile(experiment) or "gallery")
    parts = script.parts
    shown = "/".join(parts[parts.index("gallery") :]) if "gallery" in parts else script.name
    return f"python -m autopar record {shown}"
