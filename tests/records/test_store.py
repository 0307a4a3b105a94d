"""Damaged, edited and misnamed records: each is refused by name, with a reason and the way out."""

import hashlib
import json
import os
import random
import re
from dataclasses import replace

import pytest
from record_sample import NAME, load

from autopar.records.experiment import newest_record
from autopar.records.record import RecordError
from autopar.records.store import load_record, newest_of, write_record
from autopar.timeline.span import Span, Timeline


@pytest.fixture
def refused(path, tmp_path):
    """Expect that the file, as it is now, is refused: named, with a reason and the way out."""

    def refused(why):
        with pytest.raises(RecordError, match=why) as caught:
            load(tmp_path)
        text = str(caught.value)
        assert text.startswith(f"{path.parent.name}/{path.name}: ")
        assert text.endswith("On a machine with 2 GPUs run: python -m autopar record")

    return refused


def forged(path, text):
    """What someone could write who knows how records are sealed."""
    fields = json.loads(text)
    old = fields.pop("seal")
    seal = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    path.write_text(text.replace(old, f"sha256:{seal}"))


def test_a_truncated_record_is_refused_wherever_it_was_cut(path, refused):
    whole = path.read_bytes()
    for cut in {0, 1, len(whole) - 2, *range(2, len(whole) - 2, 97)}:
        path.write_bytes(whole[:cut])
        refused("is not whole JSON")


def test_a_record_of_which_a_line_is_gone_is_refused(path, refused):
    lines = path.read_text().splitlines(keepends=True)
    for i in range(1, len(lines) - 1):
        path.write_text("".join(lines[:i] + lines[i + 1 :]))
        refused("is not whole JSON|was edited|no schema")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is not whole JSON"),
        (b'{"schema": "\xff"}', "is not whole JSON"),
        (b"[" * 50_000, "is not whole JSON"),
        (b'{"schema": ' + b"9" * 5000, "is not whole JSON"),
        (b"null", "is not a record: it has no schema version"),
        (b'["schema"]', "is not a record"),
        (b'{"schema": 1}', "was edited: its contents don't match its seal"),
        (b'{"schema": 1, "values": {"a": NaN}}', "can't be read"),
        (b" " * 100_001, "it takes 100001 bytes, over 100000"),
    ],
    ids=range(9),
)
def test_something_else_is_refused(path, refused, text, why):
    path.write_bytes(text)
    refused(why)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_refused(path, tmp_path, make):
    path.unlink()
    make(path)
    with pytest.raises(RecordError, match="there is no such .*On a machine with 2 GPUs run: "):
        load(tmp_path)


def test_every_edit_by_hand_breaks_the_seal(path, refused):
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    edits = {f"{digit}": f"{9 - int(digit)}" for line in lines for digit in re.findall(r"\d", line)}
    edits |= {'"GPU1 alone"': '"GPU1 at last"', "true": "false", "{\n": '{\n"note": "mine",\n'}
    for old, new in edits.items():
        for found in [*re.finditer(re.escape(old), text)][1::7]:
            path.write_text(text[: found.start()] + new + text[found.end() :])
            refused("was edited|has schema version|is not whole JSON")


def test_another_format_is_refused(path, refused):
    text = path.read_text()
    for version in ("0", "2", '"1"', "null"):
        forged(path, text.replace('"schema": 1', f'"schema": {version}'))
        refused(f"has schema version {version.strip('n')[:1]}?.*reads 1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("experiment", '"another"'),
        ("parameters", "[]"),
        ("digest", '""'),
        ("digest", "null"),
        ("measurements", "[]"),
        ("timelines", '"none"'),
        ("checks", '{"same result": false}'),
        ("checks", '{"same result": "yes"}'),
        ("values", '{"count": "2"}'),
        ("values", '{"count": 1000000000000000000}'),
        ("values", '{"count": true}'),
        ("values", '{"count": 1, "count": 2.0}'),
        ("hardware", "{}"),
        ("software", "{}"),
        ("software", '{"torch": 2.9}'),
        ("recorded_at", "2026"),
        ("recorded_at", '"yesterday"'),
        ("recorded_at", '"2026-11-22T10:00:00"'),
        ("command", '["python"]'),
        ("command", '"python", "surprise": 3'),
        ("command", '"python", "files": {}'),
        ("command", '"python", "files": {"../x": "sha256:0"}'),
    ],
)
def test_fields_that_are_not_as_they_are_written_are_refused_even_if_sealed(
    path, refused, field, value
):
    text = path.read_text()
    forged(path, text)
    assert path.read_text() == text, "a forger writes as autopar does"
    entry = re.compile(rf'^"{field}": (\{{\n(  .*\n)*\}}|.*),\n', re.MULTILINE)
    forged(path, entry.sub(lambda _: f'"{field}": {value},\n', text))
    refused("can't be read|as autopar writes it|no file's name|is a record of|no digest|time zone")
    forged(path, entry.sub("", text))
    refused(f"KeyError..({field}|processors|torch)|missing 1 .* argument: '{field}'")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[0.123456789, 1e-09, 0.3]", "[1.0]"),
        ("[0.123456789, 1e-09, 0.3]", "[1.0, -1.0, 1.0]"),
        ("[0.123456789, 1e-09, 0.3]", '["a", "b", "c"]'),
        ("[0.123456789, 1e-09, 0.3]", "[true, true, true]"),
        ("[0.123456789, 1e-09, 0.3]", "null"),
        ('"flops": 524288.0', '"flops": -524288.0'),
        ('"flops": 524288.0', '"flops": [2.0]'),
        ('"size_bytes": 0.14', '"size_bytes": -0.14'),
        ('"alignment_error_s": 1.25e-05', '"alignment_error_s": -1.25e-05'),
        ('"alignment_error_s": 1.25e-05', '"alignment_error_s": "0"'),
        ('"names": ["mm", "d2h"]', '"names": ["mm", null]'),
        ('"lanes": [["GPU 0 stream 7", "compute"], ', '"lanes": ['),
        ("[0, 0, 0, 1]", "[0, 0, -1, 1]"),
        ("[0, 0, 0, 1]", "[0, 0, 5, 1]"),
        ("[0, 0, 0, 1]", "[99, 0, 0, 1]"),
        ("[0, 0, 0, 1]", "[-2, 0, 0, 1]"),
        ("[0, 0, 0, 1]", "[0, 0, 0]"),
        ("[0, 0, 0, 1]", f"[0, 0, 0, {10**400}]"),
    ],
    ids=range(18),
)
def test_measurements_and_spans_that_cannot_be_are_refused_even_if_sealed(path, refused, old, new):
    text = path.read_text()
    assert old in text
    forged(path, text.replace(old, new))
    refused("can't be read|as autopar writes it|below zero")


def test_random_damage_is_refused_by_name_or_changes_nothing(path):
    """Bytes lost, changed, doubled and moved."""
    whole, chance, expected = path.read_bytes(), random.Random(0), load_record(path)
    refusals = []
    for _ in range(1000):
        damaged, i, j = bytearray(whole), *sorted(chance.choices(range(len(whole)), k=2))
        kind = chance.randrange(4)
        if kind == 0:
            del damaged[i:j]
        elif kind == 1:
            damaged[i] = chance.randrange(256)
        elif kind == 2:
            damaged[i:i] = damaged[j : j + chance.randrange(100)]
        else:
            damaged[i] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            assert load_record(path) == expected
        except RecordError as error:
            refusals.append(str(error))
    assert len(refusals) > 900
    assert all(text.startswith(f"{path.parent.name}/{path.name}: ") for text in refusals)


def test_a_missing_record_is_refused(path, tmp_path):
    path.unlink()
    with pytest.raises(RecordError, match=f"{NAME}.json: there is no such record.*2 GPUs run"):
        load(tmp_path)
    with pytest.raises(RecordError, match="there is no such file.*python -m autopar record"):
        load_record(path)
    for load_newest in (newest_of, newest_record):
        with pytest.raises(RecordError, match="there is no such record.*python -m autopar record"):
            load_newest(NAME, tmp_path)


_OUTSIDE = ["../x", "/x", "a\\b", "..", ".x", "", "a\0", "a\n", "C:x", " x", "x" * 200, "a.json"]


@pytest.mark.parametrize("name", _OUTSIDE)
def test_names_stay_inside_the_folder_and_files_are_no_records(record, tmp_path, gpus, name):
    gpus(0)
    folder = tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    nameless = replace(record, hardware={**record.hardware, "processors": "..//.."})
    for odd in (replace(record, experiment=name), replace(record, files={name: b"x"}), nameless):
        with pytest.raises(RecordError, match="no file's name"):
            write_record(odd, folder)
    for load_it in (newest_of, newest_record, lambda *_: load(folder, name=name)):
        with pytest.raises(RecordError, match="no file's name"):
            load_it(name, folder)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "change",
    [
        {"values": {"a": float("nan")}},
        {"values": {"a": "1"}},
        {"checks": {"same": False}},
        {"digest": ""},
        {"recorded_at": "today"},
        {"parameters": {"a": object()}},
        {"software": {"torch": 2}},
        {"timelines": {"t": Timeline((Span("mm", "lane", -1.0, 1.0),))}},
    ],
)
def test_what_could_not_be_read_again_is_not_written(record, path, change):
    before = path.read_bytes()
    with pytest.raises(RecordError, match=f"{NAME}.json: can't be written: "):
        write_record(replace(record, **change), path.parents[1])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
