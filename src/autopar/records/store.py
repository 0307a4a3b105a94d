"""Store: records as JSON files, a folder for each machine, refused if not as they were written."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from autopar.files import write_atomically
from autopar.records.record import Record, RecordError
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

SCHEMA = 1
_MAX_BYTES = 100_000  # a record is read by people and travels with the package
_MAX_FILE_BYTES = 300_000  # so does a file beside it
_BY_LINES = ("measurements", "timelines", "hardware", "software")  # a line for each part of them
FOLDER = Path(__file__).parents[1] / "recorded"
_NAME = re.compile(r"\w([\w .,()+-]{0,98}[\w)])?")  # of one file, in the folder where it belongs


class Wanted(NamedTuple):
    """A record as it is asked for, and how to measure anew, which ends each error.

    Without a digest it is asked for by its name alone, whatever was measured.
    """

    name: str
    digest: str = ""
    parameters: Mapping[str, Any] = MappingProxyType({})
    again: str = "On a machine with GPUs run: python -m autopar record"


def newest_of(wanted: Wanted, folder: Path | str | None = None) -> Record:
    """Load the record that was measured last, on whichever machine; of the current code, if any is.

    Of a digest, one of earlier code says so, and one of other parameters is refused.
    """
    name, digest, parameters, again = wanted
    check_name(name, "experiment")
    folder = Path(folder or FOLDER)
    records = [load_record(path, again) for path in sorted(folder.glob(f"*/{name}.json"))]
    near = ""
    if not records and not digest:  # it may be misspelled
        names = {path.stem for path in folder.glob("*/*.json")}
        nearest = ", ".join(difflib.get_close_matches(name, sorted(names), cutoff=0.0))
        near = f"The nearest names are {nearest}. " if nearest else ""
    _require(records, f"{folder.name}/*/{name}.json: there is no such record. {near}{again}")
    if digest:
        now = json.loads(json.dumps(dict(parameters)))  # as a record has them
        found, records = records, [record for record in records if record.parameters == now]
        was = found[-1].parameters
        _require(records, f"{name}.json: was measured with parameters {was}, now {now}. {again}")
    marked = [replace(one, code_changed=digest not in ("", one.digest)) for one in records]
    return max(
        marked, key=lambda one: (not one.code_changed, datetime.fromisoformat(one.recorded_at))
    )


def write_record(record: Record, folder: Path | str = FOLDER) -> Path:
    """Write a record and its files to its machine's folder, if it can be read again from there."""
    named = record.processors.lower().replace("×", "x")
    machine = re.sub(r"[^a-z0-9]+", "-", named).strip("-")
    check_name(machine, "machine")
    check_name(record.experiment, "experiment")
    path = Path(folder) / machine / f"{record.experiment}.json"
    try:
        content = _content(record)
        _record_of(content, record.experiment, lambda name: record.files[name])
    except Exception as error:
        msg = f"{path.name}: can't be written: {error}"
        raise RecordError(msg) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, part in {**record.files, path.name: content}.items():
        write_atomically(path.parent / name, part)
    return path


def load_record(path: Path | str, again: str = Wanted("").again) -> Record:
    """Read a record, which must be whole and as it was written."""
    path = Path(path)
    try:
        return _record_of(_read(path), path.stem, lambda name: _read(path.parent / name))
    except Exception as error:  # whatever anyone may have written
        why = str(error) if isinstance(error, RecordError) else f"it can't be read ({error!r})"
        msg = f"{path.parent.name}/{path.name}: {why}. {again}"
        raise RecordError(msg) from None


def _require(held: object, otherwise: str) -> None:
    if not held:
        raise RecordError(otherwise)


def check_name(name: str, what: str) -> None:
    """Refuse a name that would lead out of the folder, or to a record where none is meant."""
    plain = isinstance(name, str) and _NAME.fullmatch(name) and not name.lower().endswith(".json")
    expected = "expected letters, digits, spaces, - and _. Leave out an ending .json"
    _require(plain, f"{what} name {name!r} is no file's name; {expected}")


def _read(path: Path) -> bytes:
    _require(path.is_file(), f"{path.name} is missing: there is no such file")
    return path.read_bytes()


def _content(record: Record) -> bytes:
    """A record as the JSON that its file has."""
    fields: dict[str, Any] = {"schema": SCHEMA, **vars(record)}
    del fields["live"], fields["code_changed"], fields["files"]
    fields["measurements"] = {
        label: {
            "values_s": [round(value_s, 9) for value_s in measurement.values_s],
            "flops": measurement.flops,
            "size_bytes": measurement.size_bytes,
        }
        for label, measurement in record.measurements.items()
    }
    fields["timelines"] = {label: _pack(timeline) for label, timeline in record.timelines.items()}
    if record.files:
        fields["files"] = {name: _sha256(content) for name, content in record.files.items()}
    return _sealed(fields)


def _sealed(fields: Mapping[str, Any]) -> bytes:
    """JSON with a line for every field, measurement and timeline, as diffs want, and its seal."""
    lines = []
    for name, value in {**fields, "seal": _seal(fields)}.items():
        text = json.dumps(value)
        if name in _BY_LINES and value and isinstance(value, Mapping):
            inner = [f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in value.items()]
            text = "{\n" + ",\n".join(inner) + "\n}"
        lines.append(f"{json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _record_of(content: bytes, name: str, beside: Callable[[str], bytes]) -> Record:
    """The record of a name that some content is, if it would be written in just this way."""
    too_large = f"it takes {len(content)} bytes, over {_MAX_BYTES}; keep fewer spans or samples"
    _require(len(content) <= _MAX_BYTES, too_large)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"is not whole JSON ({error})"
        raise RecordError(msg) from None
    is_record = isinstance(fields, dict) and "schema" in fields
    _require(is_record, "is not a record: it has no schema version")
    version = fields["schema"]
    _require(version == SCHEMA, f"has schema version {version!r}; this autopar reads {SCHEMA}")
    seal = fields.pop("seal", None)
    _require(seal == _seal(fields), "was edited: its contents don't match its seal")
    _require(fields["experiment"] == name, f"is a record of {fields['experiment']!r}, not {name!r}")
    sound = fields["digest"] and all(fields["checks"].values())
    _require(sound, "has no digest of what was measured, or a check that failed")
    _require(datetime.fromisoformat(fields["recorded_at"]).tzinfo, "was recorded in no time zone")
    files = {}
    for file, sha256 in fields.get("files", {}).items():
        check_name(file, "file")
        files[file] = part = beside(file)
        too_large = f"{file} takes {len(part)} bytes, over {_MAX_FILE_BYTES}"
        _require(len(part) <= _MAX_FILE_BYTES, too_large)
        _require(_sha256(part) == sha256, f"its file {file} is not the one that was recorded")
    del fields["schema"]
    decoded = {
        "parameters": dict(fields["parameters"]),
        "measurements": {
            label: Measurement(label, **packed) for label, packed in fields["measurements"].items()
        },
        "timelines": {label: _unpack(packed) for label, packed in fields["timelines"].items()},
        "checks": {check: bool(held) for check, held in fields["checks"].items()},
        "values": {value: float(number) for value, number in fields["values"].items()},
        "software": {package: str(version) for package, version in fields["software"].items()},
        "digest": str(fields["digest"]),
        "command": str(fields["command"]),
        "files": files,
    }
    record = Record(**{**fields, **decoded}, live=False)
    _require(_content(record) == content, "was edited: it is not as autopar writes it")
    return record


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
        name = str(packed["names"][name])
        spans.append(Span(name, str(lane), start_ns / 1e9, end_ns / 1e9, kind))
    timeline = Timeline(tuple(spans), float(packed["alignment_error_s"]))
    lowest_s = min([timeline.alignment_error_s, *(span.start_s for span in spans)])
    _require(lowest_s >= 0, f"a timeline has a time below zero: {lowest_s} s")
    return timeline


def _seal(fields: Mapping[str, Any]) -> str:
    """A SHA-256 over the contents, so that an edit by hand shows."""
    return _sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode())


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
