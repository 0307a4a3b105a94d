"""Record: what an experiment found, with all it takes to believe it, in memory and as a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autopar.files import write_atomically
from autopar.records.claim import Estimate, Figure, interval
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

SCHEMA = 1
_MAX_BYTES = 100_000  # a record is read by people and travels with the package
_MAX_FILE_BYTES = 300_000  # so does a file beside it
FOLDER = Path(__file__).parents[1] / "recorded"
_AGAIN = "On a machine with GPUs run: python -m autopar record"
_NAME = re.compile(r"\w([\w .,()+-]{0,98}[\w)])?")  # of one file, in the folder where it belongs
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# What JSON must hold: a type, (one, of, several), [all alike], {str: all alike}, {"these": keys}.
_NUMBER = int, float
_FIELD = str, int, float
_SHAPE: dict[str, Any] = {
    "schema": int,
    "experiment": str,
    "parameters": {str: object},
    "digest": str,
    "measurements": {
        str: {
            "values_s": [_NUMBER],
            "flops": (*_NUMBER, type(None)),
            "size_bytes": (*_NUMBER, type(None)),
        }
    },
    "timelines": {
        str: {"alignment_error_s": _NUMBER, "names": [str], "lanes": [[str]], "spans": [[int]]}
    },
    "checks": {str: bool},
    "values": {str: _NUMBER},
    "hardware": {str: (*_FIELD, [_FIELD], [{str: (*_FIELD, [_FIELD])}])},
    "software": {str: str},
    "recorded_at": str,
    "command": str,
    "files": {str: str},
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


@dataclass(frozen=True, repr=False)
class Record:
    """An experiment's findings with all that is needed to believe them; they never change.

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
        return Estimate(*interval(figure, self.measurements), self.origin, self.processors)

    def __str__(self) -> str:
        return f"{self.experiment}: {self.origin}"

    def __repr__(self) -> str:
        """Short: the fields, with all samples and spans, would be tens of pages."""
        return f"<Record of {self}>"


def newest_of(
    name: str, folder: Path | str | None = None, *, digest: str = "", again: str = _AGAIN
) -> Record:
    """Load the record of a name that was measured last, on whichever machine.

    Args:
        name: The record's name.
        folder: Where records lie, one folder per machine; those that come with autopar if not
            given.
        digest: That of the code and parameters that it must have been measured with; any if empty.
        again: The last sentence of an error: how to record it anew.

    Raises:
        RecordError: There is none, one of that name is damaged, or all are of another digest.
    """
    _check_name(name, "experiment")
    folder = Path(folder or FOLDER)
    paths = [each / f"{name}.json" for each in sorted(folder.glob("*/"))]
    paths = [path for path in paths if os.path.lexists(path)]
    if not paths:
        msg = f"{folder.name}/*/{name}.json: there is no such record. {again}"
        raise RecordError(msg)
    found = [load_record(path, again) for path in paths]
    fitting = [each for each in found if digest in ("", each.digest)]
    if not fitting:
        msg = (
            f"{name}.json: was measured with other code or parameters (its digest is "
            f"{found[-1].digest[:19]}, now {digest[:19]}). {again}"
        )
        raise RecordError(msg)
    return max(fitting, key=lambda each: datetime.fromisoformat(each.recorded_at))


def write_record(record: Record, folder: Path | str = FOLDER) -> Path:
    """Write a record as JSON to its machine's folder, atomically, and return where.

    Raises:
        RecordError: It takes more than 100 kB, or a file of it more than 300 kB; its name or that
            of a file would leave the folder; or it could not be read again.
    """
    _check_name(record.experiment, "experiment")
    machine = re.sub(r"[^a-z0-9]+", "-", record.processors.lower()).strip("-")
    _check_name(machine, "machine")
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
    path = Path(folder) / machine / f"{record.experiment}.json"
    for name, content in record.files.items():
        if len(content) > _MAX_FILE_BYTES:
            msg = f"{path.name}: {name} takes {len(content)} bytes, over {_MAX_FILE_BYTES}"
            raise RecordError(msg)
    try:
        text = _json({**fields, "seal": _seal(fields)})
        if len(text) > _MAX_BYTES:
            msg = f"it takes {len(text)} bytes, over {_MAX_BYTES}; keep fewer spans or samples"
            raise RecordError(msg)
        _decoded(text.encode(), record.experiment, lambda name, _: record.files[name])
    except (RecordError, *_UNREADABLE) as error:
        msg = f"{path.name}: can't be written: {error}"
        raise RecordError(msg) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in record.files.items():
        write_atomically(path.parent / name, content)
    write_atomically(path, text)
    return path


def load_record(path: Path | str, again: str = _AGAIN) -> Record:
    """Read a record and check that it is whole and as it was written.

    Args:
        path: The JSON file.
        again: The last sentence of the error: how to record it anew.

    Raises:
        RecordError: The file is missing, truncated, edited, of an unknown schema version, of
            another experiment than its name says, or no record at all.
    """
    path = Path(path)

    def beside(name: str, seal: str) -> bytes:
        content = _content(path.parent / name, _MAX_FILE_BYTES, f"its file {name}")
        if _sha256(content) != seal:
            msg = f"its file {name} is not the one that was recorded"
            raise RecordError(msg)
        return content

    try:
        return _decoded(_content(path, _MAX_BYTES, "it"), path.stem, beside)
    except (RecordError, *_UNREADABLE) as error:
        why = str(error) if isinstance(error, RecordError) else f"it can't be read ({error!r})"
        msg = f"{path.parent.name}/{path.name}: {why}. {again}"
        raise RecordError(msg) from None


# What reading text that anyone may have written can raise.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, RecursionError),
)


def _content(path: Path, most: int, what: str) -> bytes:
    """A regular file's bytes, which are not too many."""
    if not path.is_file():  # nothing, a folder, a link to itself, a pipe that would wait
        msg = (
            f"{what} is {'no file' if os.path.lexists(path) else 'missing: there is no such file'}"
        )
        raise RecordError(msg)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        msg = f"{what} takes over {most} bytes"
        raise RecordError(msg)
    return content


def _decoded(content: bytes, name: str, beside: Callable[[str, str], bytes]) -> Record:
    """A record from its bytes; its reasons not to be one are errors' whole text.

    Args:
        content: What the file holds.
        name: The experiment that it must be of.
        beside: Gives a file beside it, by name and seal.
    """
    try:
        fields = json.loads(
            content.decode(),
            object_pairs_hook=_once,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_finite,
        )
        json.dumps(fields, ensure_ascii=False).encode()  # half a character can't be shown
    except (ValueError, RecursionError) as error:
        msg = f"is not whole JSON ({error})"
        raise RecordError(msg) from None
    if not isinstance(fields, dict) or "schema" not in fields:
        msg = "is not a record: it has no schema version"
        raise RecordError(msg)
    if type(fields["schema"]) is not int or fields["schema"] != SCHEMA:
        msg = f"has schema version {fields['schema']!r}; this autopar reads {SCHEMA}"
        raise RecordError(msg)
    if not isinstance(seal := fields.pop("seal", None), str):
        msg = "its field 'seal' is missing or not a string"
        raise RecordError(msg)
    if seal != _seal(fields):
        msg = "was edited: its contents don't match its seal"
        raise RecordError(msg)
    fields.setdefault("files", {})
    for field_name in {**_SHAPE, **fields}:
        shape = _SHAPE.get(field_name)
        if shape is None or not _fits(fields.get(field_name), shape):
            msg = f"its field {field_name!r} is missing or not as autopar writes it"
            raise RecordError(msg)
    if fields["experiment"] != name:
        msg = f"is a record of {fields['experiment']!r}, not of {name!r}"
        raise RecordError(msg)
    if not _DIGEST.fullmatch(fields["digest"]) or not all(fields["checks"].values()):
        msg = "has no digest of what was measured, or a check that failed"
        raise RecordError(msg)
    if datetime.fromisoformat(fields["recorded_at"]).tzinfo is None:
        msg = f"was recorded at {fields['recorded_at']!r}, with no time zone"
        raise RecordError(msg)
    for each in fields["files"]:
        _check_name(each, "file")
    measurements = {
        label: Measurement(label, tuple(each["values_s"]), each["flops"], each["size_bytes"])
        for label, each in fields.pop("measurements").items()
    }
    timelines = {label: _unpack(each) for label, each in fields.pop("timelines").items()}
    fields["files"] = {each: beside(each, seal) for each, seal in fields["files"].items()}
    del fields["schema"]
    record = Record(**fields, measurements=measurements, timelines=timelines, live=False)
    return with_origin(record)


def _check_name(name: str, what: str) -> None:
    """Refuse a name that would lead out of the folder, or to a record where none is meant.

    Raises:
        RecordError: It is no plain name of a file.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"{what} name {name!r} is no file's name; expected letters, digits, spaces, - and _"
        raise RecordError(msg)
    if what == "file" and name.lower().endswith(".json"):
        msg = f"file name {name!r} is a record's; expected another ending than .json"
        raise RecordError(msg)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, if it names nothing twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = f"an object has a key twice: {sorted(name for name, _ in pairs)}"
        raise ValueError(msg)
    return found


def _whole(number: str) -> int:
    if len(number) > 18:  # of 64 bits
        msg = f"{number[:18]}... is too large a number"
        raise ValueError(msg)
    return int(number)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        msg = f"{number} is no finite number"
        raise ValueError(msg)
    return value


def _fits(value: Any, shape: Any) -> bool:
    """Whether a JSON value is as a shape says, to any depth."""
    if isinstance(shape, tuple):
        return any(_fits(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if str in shape:
            return all(_fits(each, shape[str]) for each in value.values())
        return value.keys() == shape.keys() and all(_fits(value[key], shape[key]) for key in shape)
    return shape is object or type(value) is shape  # exactly: True is no number


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
        if min(name, place) < 0:
            msg = f"a span has the number {min(name, place)}"
            raise ValueError(msg)
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
    return _sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode())


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
