"""Store: records as JSON files, a folder for each machine, refused if not as they were written."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from autopar.files import write_atomically
from autopar.records.record import Record, RecordError
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
# What reading text that anyone may have written can raise.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, RecursionError),
)


def newest_of(
    name: str, folder: Path | str | None = None, *, digest: str = "", again: str = _AGAIN
) -> Record:
    """Load the record of a name that was measured last, on whichever machine.

    Args:
        name: The record's name.
        folder: Where records lie; those that come with autopar if not given.
        digest: That of the code and parameters that it must have been measured with; any if empty.
        again: The last sentence of an error: how to record it anew.

    Raises:
        RecordError: There is none, one of that name is damaged, or all are of another digest.
    """
    _check_name(name, "experiment")
    folder = Path(folder or FOLDER)
    paths = [machine / f"{name}.json" for machine in sorted(folder.glob("*/"))]
    records = [load_record(path, again) for path in paths if os.path.lexists(path)]
    _require(records, f"{folder.name}/*/{name}.json: there is no such record. {again}")
    fitting = [record for record in records if digest in ("", record.digest)]
    if not fitting:
        msg = (
            f"{name}.json: was measured with other code or parameters (its digest is "
            f"{records[-1].digest[:19]}, now {digest[:19]}). {again}"
        )
        raise RecordError(msg)
    return max(fitting, key=lambda record: datetime.fromisoformat(record.recorded_at))


def write_record(record: Record, folder: Path | str = FOLDER) -> Path:
    """Write a record as JSON to its machine's folder, atomically, and return where.

    Raises:
        RecordError: It takes more than 100 kB, or a file of it more than 300 kB; its name or that
            of a file would leave the folder; or it could not be read again.
    """
    _check_name(record.experiment, "experiment")
    machine = re.sub(r"[^a-z0-9]+", "-", record.processors.lower()).strip("-")
    _check_name(machine, "machine")
    path = Path(folder) / machine / f"{record.experiment}.json"
    for name, content in record.files.items():
        size = len(content)
        too_large = f"{path.name}: {name} takes {size} bytes, over {_MAX_FILE_BYTES}"
        _require(size <= _MAX_FILE_BYTES, too_large)
    try:
        fields = _encoded(record)
        text = _json({**fields, "seal": _seal(fields)})
        too_large = f"it takes {len(text)} bytes, over {_MAX_BYTES}; keep fewer spans or samples"
        _require(len(text) <= _MAX_BYTES, too_large)
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
        _require(_sha256(content) == seal, f"its file {name} is not the one that was recorded")
        return content

    try:
        return _decoded(_content(path, _MAX_BYTES, "it"), path.stem, beside)
    except (RecordError, *_UNREADABLE) as error:
        why = str(error) if isinstance(error, RecordError) else f"it can't be read ({error!r})"
        msg = f"{path.parent.name}/{path.name}: {why}. {again}"
        raise RecordError(msg) from None


def _require(held: object, otherwise: str) -> None:
    if not held:
        raise RecordError(otherwise)


def _check_name(name: str, what: str) -> None:
    """Refuse a name that would lead out of the folder, or to a record where none is meant."""
    plain = isinstance(name, str) and _NAME.fullmatch(name)
    expected = "expected letters, digits, spaces, - and _"
    _require(plain, f"{what} name {name!r} is no file's name; {expected}")
    mistaken = what == "file" and name.lower().endswith(".json")
    another = "expected another ending than .json"
    _require(not mistaken, f"file name {name!r} is a record's; {another}")


def _content(path: Path, most: int, what: str) -> bytes:
    """A regular file's bytes, which are not too many."""
    _require(os.path.lexists(path), f"{what} is missing: there is no such file")
    _require(path.is_file(), f"{what} is no file")  # a folder, a link to itself, a pipe: would wait
    with path.open("rb") as file:
        content = file.read(most + 1)
    _require(len(content) <= most, f"{what} takes over {most} bytes")
    return content


def _encoded(record: Record) -> dict[str, Any]:
    """What JSON has of a record, but for the seal."""
    fields = {
        "schema": SCHEMA,
        "experiment": record.experiment,
        "parameters": record.parameters,
        "digest": record.digest,
        "measurements": {
            label: {
                "values_s": [round(s, 9) for s in measurement.values_s],
                "flops": measurement.flops,
                "size_bytes": measurement.size_bytes,
            }
            for label, measurement in record.measurements.items()
        },
        "timelines": {label: _pack(timeline) for label, timeline in record.timelines.items()},
        "checks": record.checks,
        "values": record.values,
        "hardware": record.hardware,
        "software": record.software,
        "recorded_at": record.recorded_at,
        "command": record.command,
    }
    if record.files:
        fields["files"] = {name: _sha256(content) for name, content in record.files.items()}
    return fields


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
    is_record = isinstance(fields, dict) and "schema" in fields
    _require(is_record, "is not a record: it has no schema version")
    version = fields["schema"]
    known = type(version) is int and version == SCHEMA
    _require(known, f"has schema version {version!r}; this autopar reads {SCHEMA}")
    seal = fields.pop("seal", None)
    _require(isinstance(seal, str), "its field 'seal' is missing or not a string")
    _require(seal == _seal(fields), "was edited: its contents don't match its seal")
    fields.setdefault("files", {})
    for key in {**_SHAPE, **fields}:
        fits = key in _SHAPE and _fits(fields.get(key), _SHAPE[key])
        _require(fits, f"its field {key!r} is missing or not as autopar writes it")
    experiment = fields["experiment"]
    _require(experiment == name, f"is a record of {experiment!r}, not of {name!r}")
    sound = _DIGEST.fullmatch(fields["digest"]) and all(fields["checks"].values())
    _require(sound, "has no digest of what was measured, or a check that failed")
    time = fields["recorded_at"]
    _require(datetime.fromisoformat(time).tzinfo, f"was recorded at {time!r}, with no time zone")
    for file in fields["files"]:
        _check_name(file, "file")
    decoded = {
        "measurements": {
            label: Measurement(label, **packed) for label, packed in fields["measurements"].items()
        },
        "timelines": {label: _unpack(packed) for label, packed in fields["timelines"].items()},
        "files": {file: beside(file, seal) for file, seal in fields["files"].items()},
    }
    del fields["schema"]
    return Record(**{**fields, **decoded}, live=False)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, if it names nothing twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        msg = f"an object has a key twice: {sorted(name for name, _ in pairs)}"
        raise ValueError(msg)
    return fields


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
    if isinstance(shape, dict) and isinstance(value, dict):
        alike = dict.fromkeys(value, shape[str]) if str in shape else shape
        return value.keys() == alike.keys() and all(_fits(value[key], alike[key]) for key in value)
    return shape is object or type(value) is shape  # exactly: True is no number


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
        text = json.dumps(value)
        if name in ("measurements", "timelines", "hardware", "software") and value:
            inner = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
            text = "{\n" + ",\n".join(inner) + "\n}"
        lines.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _seal(fields: Mapping[str, Any]) -> str:
    """A SHA-256 over the contents, so that an edit by hand shows."""
    return _sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode())


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
