"""Record: what an experiment found, with all it takes to believe it, in memory and as a file."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from autopar.measurement import Measurement
from autopar.span import Span, Timeline
from autopar.storage import write_atomically
from autopar.verdict import Estimate, Figure, interval

SCHEMA = 1
_MAX_BYTES = 100_000  # a record is read by people and travels with the package
_MAX_FILE_BYTES = 300_000  # so does a file beside it
FOLDER = Path(__file__).parent / "recorded"
_AGAIN = "On a machine with GPUs run: python -m autopar record"
_FIELDS = {
    "schema": int,
    "experiment": str,
    "parameters": dict,
    "digest": str,
    "measurements": dict,
    "timelines": dict,
    "checks": dict,
    "values": dict,
    "hardware": dict,
    "software": dict,
    "recorded_at": str,
    "command": str,
    "seal": str,
}


class RecordError(RuntimeError):
    """A record that can't be used; the message says which file, why, and how to record it anew."""


@dataclass(frozen=True)
class Findings:
    """What an experiment returns.

    Args:
        measurements: Its timings; labels must differ.
        timelines: Label to timeline.
        checks: What must be true for the timings to count, and whether it was.
        values: Other numbers, with the unit in the name.
        files: Small files to keep beside the record, by name, such as another tool's report.

    Raises:
        ValueError: Two measurements of one label.
    """

    measurements: Sequence[Measurement]
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    checks: Mapping[str, bool] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = [measurement.label for measurement in self.measurements]
        if len(set(labels)) < len(labels):
            msg = f"measurements have the labels {labels}; expected each label once"
            raise ValueError(msg)


@dataclass(frozen=True)
class Record:
    """An experiment's findings with all that is needed to believe them.

    Attributes:
        experiment: Its name.
        parameters: What it was called with.
        digest: Of the measured code and the parameters.
        measurements: Label to measurement, raw samples included.
        timelines: Label to timeline.
        checks: What was checked before anything was timed; all true.
        values: Other numbers, with the unit in the name.
        files: Name to content.
        hardware: The machine, as `describe` tells.
        software: Versions, and the commit or the digest of autopar's sources.
        recorded_at: UTC, ISO 8601.
        command: What measured it.
        live: Whether this process measured it.
        again: Measures once more and adds the samples, where this process measured it.
        again_s: Seconds that this takes.
    """

    experiment: str
    parameters: Mapping[str, Any]
    digest: str
    measurements: Mapping[str, Measurement]
    timelines: Mapping[str, Timeline]
    checks: Mapping[str, bool]
    values: Mapping[str, float]
    files: Mapping[str, bytes]
    hardware: Mapping[str, Any]
    software: Mapping[str, Any]
    recorded_at: str
    command: str
    live: bool
    again: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    again_s: float = 0.0

    @property
    def processors(self) -> str:
        """The GPUs it was measured on, or the CPU where there were none."""
        return str(self.hardware["processors"])

    @property
    def origin(self) -> str:
        """Where and when it was measured, in words."""
        how = "measured live on" if self.live else "recorded on"
        return f"{how} {self.processors}, {self.recorded_at[:10]}, torch {self.software['torch']}"

    def estimate(self, figure: Figure) -> Estimate:
        """A figure derived from the timings, with its interval, for `claim`.

        Args:
            figure: Gets the median seconds by label, and returns a number.

        Raises:
            KeyError: It asks for a label under which nothing was measured.
        """
        value, low, high, samples = interval(figure, self.measurements)
        again = functools.partial(self._again, figure) if self.again else None
        return Estimate(
            value, low, high, samples, self.origin, self.processors, again, self.again_s
        )

    def _again(self, figure: Figure) -> Estimate:
        assert self.again is not None
        self.again()
        return self.estimate(figure)

    def __str__(self) -> str:
        return f"{self.experiment}: {self.origin}"


def newest_record(name: str, folder: Path | str | None = None, again: str = _AGAIN) -> Record:
    """Load the record of a name that was measured last, on whichever machine.

    Args:
        name: The record's name.
        folder: As in `recorded`.
        again: The last sentence of an error: how to record it anew.

    Raises:
        RecordError: There is none, or one of that name is damaged.
    """
    folder = Path(folder or FOLDER)
    paths = sorted(folder.glob(f"*/{name}.json"))
    if not paths:
        msg = f"{folder.name}/*/{name}.json: there is no such record. {again}"
        raise RecordError(msg)
    return max((load_record(path, again) for path in paths), key=lambda each: each.recorded_at)


def write_record(record: Record, folder: Path | str = FOLDER) -> Path:
    """Write a record as JSON to its machine's folder, atomically, and return where.

    Raises:
        RecordError: It takes more than 100 kB, or a file of it more than 300 kB.
    """
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": record.experiment,
        "parameters": record.parameters,
        "digest": record.digest,
        "measurements": {
            label: {
                "values_s": [round(s, 9) for s in each.values_s],
                "flops": each.flops,
                "size_bytes": each.size_bytes,
            }
            for label, each in record.measurements.items()
        },
        "timelines": {label: _pack(each) for label, each in record.timelines.items()},
        "checks": record.checks,
        "values": record.values,
        "hardware": record.hardware,
        "software": record.software,
        "recorded_at": record.recorded_at,
        "command": record.command,
    }
    if record.files:
        fields["files"] = {name: _sha256(content) for name, content in record.files.items()}
    text = _json({**fields, "seal": _seal(fields)})
    machine = re.sub(r"[^a-z0-9]+", "-", record.processors.lower()).strip("-")
    path = Path(folder) / machine / f"{record.experiment}.json"
    if len(text.encode()) > _MAX_BYTES:
        msg = (
            f"{path.name}: takes {len(text)} bytes, over {_MAX_BYTES}; keep fewer spans or samples"
        )
        raise RecordError(msg)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in record.files.items():
        if len(content) > _MAX_FILE_BYTES:
            msg = f"{path.name}: {name} takes {len(content)} bytes, over {_MAX_FILE_BYTES}"
            raise RecordError(msg)
        write_atomically(path.parent / name, content)
    write_atomically(path, text)
    return path


def load_record(path: Path | str, again: str = _AGAIN) -> Record:
    """Read a record and check that it is whole and as it was written.

    Args:
        path: The JSON file.
        again: The last sentence of the error: how to record it anew.

    Raises:
        RecordError: The file is missing, truncated, edited, or of an unknown schema version.
    """
    path = Path(path)

    def refuse(why: str) -> NoReturn:
        msg = f"{path.parent.name}/{path.name}: {why}. {again}"
        raise RecordError(msg) from None

    def beside(name: str, seal: str) -> bytes:
        try:
            content = (path.parent / name).read_bytes()
        except OSError as error:
            refuse(f"its file {name} can't be read ({error.strerror})")
        if _sha256(content) != seal:
            refuse(f"its file {name} is not the one that was recorded")
        return content

    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        refuse("there is no such file")
    except (OSError, ValueError) as error:
        refuse(f"is not whole JSON ({error})")
    if not isinstance(fields, dict) or "schema" not in fields:
        refuse("is not a record: it has no schema version")
    if fields["schema"] != SCHEMA:
        refuse(f"has schema version {fields['schema']!r}; this autopar reads {SCHEMA}")
    for name, kind in _FIELDS.items():
        if not isinstance(fields.get(name), kind):
            refuse(f"its field {name!r} is missing or not a {kind.__name__}")
    if fields.pop("seal") != _seal(fields):
        refuse("was edited: its contents don't match its seal")
    del fields["schema"]
    fields["files"] = {name: beside(name, seal) for name, seal in fields.get("files", {}).items()}
    try:
        measurements = {
            label: Measurement(label, tuple(each["values_s"]), each["flops"], each["size_bytes"])
            for label, each in fields.pop("measurements").items()
        }
        timelines = {label: _unpack(each) for label, each in fields.pop("timelines").items()}
        record = Record(**fields, measurements=measurements, timelines=timelines, live=False)
        return with_origin(record)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        refuse(f"has a measurement or timeline that can't be read ({error!r})")


def with_origin(record: Record) -> Record:
    """Let every measurement and timeline say where it comes from."""
    measurements = {
        label: replace(each, origin=record.origin) for label, each in record.measurements.items()
    }
    timelines = {
        label: replace(each, origin=record.origin) for label, each in record.timelines.items()
    }
    return replace(
        record,
        measurements=MappingProxyType(measurements),
        timelines=MappingProxyType(timelines),
    )


def _pack(timeline: Timeline) -> dict[str, Any]:
    """A timeline as columns of whole nanoseconds, with names and lanes numbered."""
    names = list(dict.fromkeys(span.name for span in timeline.spans))
    lanes = list(dict.fromkeys((span.lane, span.kind) for span in timeline.spans))
    return {
        "alignment_error_s": timeline.alignment_error_s,
        "names": names,
        "lanes": lanes,
        "spans": [
            (
                names.index(span.name),
                lanes.index((span.lane, span.kind)),
                round(span.start_s * 1e9),
                round(span.end_s * 1e9),
            )
            for span in timeline.spans
        ],
    }


def _unpack(packed: Mapping[str, Any]) -> Timeline:
    spans = []
    for name, place, start_ns, end_ns in packed["spans"]:
        lane, kind = packed["lanes"][place]
        spans.append(Span(packed["names"][name], lane, start_ns / 1e9, end_ns / 1e9, kind))
    return Timeline(tuple(spans), packed["alignment_error_s"])


def _json(fields: Mapping[str, Any]) -> str:
    """One line for every field, measurement and timeline: small, and readable in a diff."""
    lines = []
    for name, value in fields.items():
        if name in ("measurements", "timelines", "hardware", "software") and value:
            inner = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
            lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n}")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _seal(fields: Mapping[str, Any]) -> str:
    """A SHA-256 over the contents, so that an edit by hand shows."""
    return _sha256(json.dumps(fields, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
