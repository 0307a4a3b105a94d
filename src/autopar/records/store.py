"""Store: records as JSON files, a folder for each machine.

One that is not as it was written is refused; one of earlier code is read, and marked.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from autopar.files import write_atomically
from autopar.records.record import Record, RecordError
from autopar.refusal import check_type
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

SCHEMA = 1
FOLDER = Path(__file__).parents[1] / "recorded"
_MAX_BYTES = 100_000  # a record is read by people and travels with the package
_MAX_FILE_BYTES = 300_000  # so does a file beside it
_NAME = re.compile(r"\w([\w .,()+-]{0,98}[\w)])?")  # of one file, in the folder where it belongs


class Wanted(NamedTuple):
    """A record as it is asked for, and how to measure anew, which ends each error.

    Without a digest any code will do, and without parameters whatever was measured.
    """

    name: str
    digest: Callable[[Mapping[str, Any]], str] | None = None  # of the code, with these parameters
    parameters: Mapping[str, Any] | None = None
    again: str = "On a machine with GPUs run: python -m autopar record"


def newest_of(wanted: Wanted, folder: Path | str | None = None) -> Record:
    """Load a record, on whichever machine it was measured: of several, that of most `preference`.

    Of a digest, one of earlier code says so; one of other parameters is refused.
    """
    name, digest, parameters, again = wanted
    check_name(name, "experiment")
    folder = Path(folder or FOLDER)
    records = [load_record(path, again) for path in sorted(folder.glob(f"*/{name}.json"))]
    names = sorted({path.stem for path in folder.glob("*/*.json")})
    nearest = ", ".join(difflib.get_close_matches(name, names, cutoff=0.0))
    near = f"The nearest names are {nearest}. " if nearest else ""  # it may be misspelled
    _require(records, f"{folder.name}/*/{name}.json: there is no such record. {near}{again}")
    if parameters is not None:
        now = json.loads(json.dumps(dict(parameters)))  # as a record has them
        was = max(records, key=preference).parameters
        records = [record for record in records if record.parameters == now]
        other = f"{name}.json: was measured with parameters {was}, now {now}. {again}"
        _require(records, other)
    if digest:
        records = [
            replace(record, code_changed=digest(record.parameters) not in ("", record.digest))
            for record in records
        ]
    return max(records, key=preference)


def preference(record: Record) -> tuple[bool, datetime]:
    """What pages show: the newest record of the present code, else of any, and noisy or not."""
    return not record.code_changed, datetime.fromisoformat(record.recorded_at)


def write_record(record: Record, folder: Path | str = FOLDER) -> Path:
    """Write a record and its files to its machine's folder, if they are sound and small."""
    machine = re.sub(r"[^a-z0-9]+", "-", record.processors.lower().replace("×", "x")).strip("-")
    check_name(machine, "machine")
    check_name(record.experiment, "experiment")
    path = Path(folder) / machine / f"{record.experiment}.json"
    try:
        _require(record.digest, "it has no digest of what was measured")
        for name in record.files:
            check_name(name, "file")
        files = {**record.files, path.name: _content(record)}
        _read(files[path.name], path.stem, record.files.__getitem__)
        for name, content in files.items():
            most = _MAX_BYTES if name == path.name else _MAX_FILE_BYTES
            too_large = f"{name} takes {len(content)} bytes, over {most}; keep less"
            _require(len(content) <= most, too_large)
    except (RecordError, TypeError, ValueError) as error:
        msg = f"{path.name}: can't be written: {error}"
        raise RecordError(msg) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(path.parent / name, content)
    return path


def load_record(path: Path | str, again: str = Wanted("").again) -> Record:
    """Read a record, which must be whole and as it was written."""
    path = Path(path)
    try:
        return _read(path.read_bytes(), path.stem, lambda name: path.with_name(name).read_bytes())
    except Exception as error:  # whatever anyone may have written
        why = str(error).rstrip(".")
        if not isinstance(error, RecordError):
            why = f"it can't be read ({type(error).__name__}: {why})"
        msg = f"{path.parent.name}/{path.name}: {why}. {again}"
        raise RecordError(msg) from None


def check_name(name: str, what: str) -> None:
    """Refuse a name that would lead out of the folder, or to a record where none is meant."""
    is_plain = isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith(".json")
    expected = "expected letters, digits, spaces, - and _. Leave out an ending .json"
    _require(is_plain, f"{what} name {name!r} is no file's name; {expected}")


def _require(held: object, otherwise: str) -> None:
    if not held:
        raise RecordError(otherwise)


def _read(content: bytes, experiment: str, file: Callable[[str], bytes]) -> Record:
    fields = json.loads(content, object_pairs_hook=_by_name)
    check_type("all of it", fields, dict, "fields by name.")
    version = fields.pop("schema", None)
    is_known = type(version) is int and version == SCHEMA
    _require(is_known, f"has schema version {version!r}; this autopar reads {SCHEMA}")
    seal = fields.pop("seal", None)
    was_sealed = _seal({"schema": version, **fields})
    _require(seal == was_sealed, "was edited: its contents don't match its seal")
    name, files = fields["experiment"], {}
    _require(name == experiment, f"is a record of {name!r}, not {experiment!r}")
    for name, sha256 in fields.setdefault("files", {}).items():
        check_name(name, "file")
        files[name] = file(name)
        is_same = _sha256(files[name]) == sha256
        _require(is_same, f"its file {name} is not the one that was recorded")
    timed = fields["measurements"].items()
    fields["measurements"] = {label: Measurement(label, **of) for label, of in timed}
    fields["timelines"] = {label: _unpack(of) for label, of in fields["timelines"].items()}
    return Record(**{**fields, "files": files}, live=False)


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    _require(len(fields) == len(pairs), "was edited: it has a name twice")
    return fields


def _content(record: Record) -> bytes:
    """A record as the JSON that its file has, a line for each field."""
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
    fields = json.loads(json.dumps(fields, allow_nan=False))  # so that keys are what JSON has
    fields["seal"] = _seal(fields)
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _pack(timeline: Timeline) -> dict[str, Any]:
    """A timeline as columns of whole nanoseconds, with names and lanes numbered."""
    names, lanes = dict[str, int](), dict[tuple[str, str], int]()
    spans = []
    for span in timeline.spans:
        name = names.setdefault(span.name, len(names))
        lane = lanes.setdefault((span.lane, span.kind), len(lanes))
        spans.append((name, lane, round(1e9 * span.start_s), round(1e9 * span.end_s)))
    error_s = timeline.alignment_error_s
    return {"alignment_error_s": error_s, "names": [*names], "lanes": [*lanes], "spans": spans}


def _unpack(packed: Mapping[str, Any]) -> Timeline:
    spans = []
    for name, place, start_ns, end_ns in packed["spans"]:
        lane, kind = packed["lanes"][place]
        spans.append(Span(packed["names"][name], lane, start_ns / 1e9, end_ns / 1e9, kind))
    return Timeline(tuple(spans), packed["alignment_error_s"])


def _seal(fields: Mapping[str, Any]) -> str:
    """A SHA-256 over the contents, so that an edit by hand shows."""
    return _sha256(json.dumps(fields, sort_keys=True, allow_nan=False).encode())


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
