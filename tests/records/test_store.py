"""Damaged, edited and misnamed records: each is refused by name, with a reason and the way out."""

import hashlib
import json
import os
import random
from dataclasses import replace

import pytest
import torch
from record_sample import NAME, load

from autopar.records.experiment import newest_record
from autopar.records.record import RecordError
from autopar.records.store import load_record, newest_of, write_record


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


def test_a_truncated_record_is_refused_wherever_it_was_cut(path, refused):
    whole = path.read_bytes()
    cuts = {0, 1, 2, len(whole) // 2, len(whole) - 2, *range(3, len(whole) - 2, 97)}
    for cut in cuts:
        path.write_bytes(whole[:cut])
        refused("is not whole JSON")


def test_a_record_of_which_a_line_is_gone_is_refused(path, refused):
    lines = path.read_text().splitlines(keepends=True)
    for i in range(1, len(lines) - 1):
        path.write_text("".join(lines[:i] + lines[i + 1 :]))
        refused("is not whole JSON|edited|missing|no schema")


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "3", '"schema"', "{", "{}", "\x00", "{'schema': 1}", "NaN"]
)
def test_something_else_is_refused(path, refused, text):
    path.write_text(text)
    refused("is not whole JSON|is not a record")


def test_bytes_that_are_no_text_are_refused(path, refused):
    path.write_bytes(b'{"schema": "\xff"}')
    refused("is not whole JSON")


def test_a_folder_in_its_place_is_refused(path, refused):
    path.unlink()
    path.mkdir()
    refused("it is no file")


def test_a_link_to_itself_and_a_pipe_are_refused(path, refused):
    path.unlink()
    path.symlink_to(path)
    refused("it is no file")
    path.unlink()
    os.mkfifo(path)  # to read it would wait for ever
    refused("it is no file")


def test_every_edit_by_hand_breaks_the_seal(path, refused):
    text = path.read_text()
    edits = {
        "0.123456789": "0.12345678",
        '"GPU1 alone"': '"GPU1 at last"',
        '"same result": true': '"same result": false',
        '"size": 64': '"size": 65',
        "12345678901": "12345678902",
        torch.__version__: "9.9.9",
        '"digest": "sha256:': '"digest": "sha256:0',
        '"seal": "sha256:': '"seal": "sha256:0',
        "{\n": '{\n"note": "mine",\n',
    }
    for old, new in edits.items():
        assert old in text, old
        path.write_text(text.replace(old, new, 1))
        refused("was edited")


def reseal(fields):
    """What someone who knows the format could do; mistakes must be seen even then."""
    fields.pop("seal", None)
    text = json.dumps(fields, sort_keys=True)
    return {**fields, "seal": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_another_schema_is_refused(path, refused, version):
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(reseal({**fields, "schema": version})))
    refused("has schema version .*reads 1")


_TYPES = {
    "experiment": 3,
    "parameters": [],
    "digest": None,
    "measurements": [],
    "timelines": "none",
    "checks": [],
    "values": None,
    "hardware": [],
    "software": "torch",
    "recorded_at": 2026,
    "command": ["python"],
}


@pytest.mark.parametrize("field", _TYPES)
@pytest.mark.parametrize("missing", [False, True])
def test_fields_that_are_missing_or_of_the_wrong_type_are_refused(path, refused, field, missing):
    fields = json.loads(path.read_text())
    fields[field] = _TYPES[field]
    if missing:
        del fields[field]
    path.write_text(json.dumps(reseal(fields)))
    refused(f"'{field}' is missing or not as autopar writes it")


@pytest.mark.parametrize("broken", [True, False])
def test_a_seal_of_the_wrong_type_is_refused(path, refused, broken):
    fields = json.loads(path.read_text())
    fields["seal"] = 3
    if broken:
        del fields["seal"]
    path.write_text(json.dumps(fields))
    refused("'seal' is missing")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("measurements", "both", "values_s"), [1.0]),
        (("measurements", "both", "values_s"), [1.0, -1.0, 1.0]),
        (("measurements", "both", "values_s"), ["a", "b", "c"]),
        (("measurements", "both", "values_s"), None),
        (("measurements", "both"), 3),
        (("measurements", "both"), {}),
        (("timelines", "both", "spans"), [[0, 0, 5, 1]]),
        (("timelines", "both", "spans"), [[99, 0, 1, 2]]),
        (("timelines", "both", "spans"), [[0, 0, 1]]),
        (("timelines", "both", "lanes"), []),
        (("timelines", "both"), []),
        (("hardware", "processors"), ...),
        (("software", "torch"), ...),
        (("timelines", "both", "spans"), [[-1, 0, 1, 2]]),
        (("timelines", "both", "spans"), [[0, 0, 10**400, 10**401]]),
        (("timelines", "both", "alignment_error_s"), "0"),
        (("timelines", "both", "names"), [None]),
        (("measurements", "both", "values_s"), [True, True, True]),
        (("measurements", "both", "flops"), [2.0]),
        (("checks", "same result"), "yes"),
        (("checks", "same result"), False),
        (("values", "capacity_cores"), "2"),
        (("values", "capacity_cores"), 10**18),
        (("values", "capacity_cores"), -(10**400)),
        (("hardware", "gpus"), [{"name": "H200"}, 3]),
        (("hardware", "gpus"), [{"name": {}}]),
        (("software", "torch"), 2.9),
        (("experiment",), "another"),
        (("digest",), "sha256:0"),
        (("recorded_at",), "yesterday"),
        (("recorded_at",), "2026-11-22T10:00:00"),
        (("files",), {"x.sqlite": 3}),
        (("files",), ["x.sqlite"]),
        (("files",), {"../x.sqlite": "sha256:0"}),
        (("command",), "half a character: \ud800"),
        (("surprise",), 3),
    ],
)
def test_contents_that_cannot_be_are_refused(path, refused, place, value):
    fields = json.loads(path.read_text())
    owner = fields
    for name in place[:-1]:
        owner = owner[name]
    if value is ...:
        del owner[place[-1]]
    else:
        owner[place[-1]] = value
    path.write_text(json.dumps(reseal(fields)))
    refused("read|not as autopar writes it|no file's name|is a record of|no digest|time|whole")


def test_a_missing_record_is_refused(path, tmp_path):
    path.unlink()
    with pytest.raises(RecordError, match=f"{NAME}.json: there is no such record.*2 GPUs run"):
        load(tmp_path)
    with pytest.raises(RecordError, match="there is no such file.*python -m autopar record"):
        load_record(path)
    for load_newest in (newest_of, newest_record):
        with pytest.raises(RecordError, match="there is no such record.*python -m autopar record"):
            load_newest(NAME, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": NaN}',
        '{"schema": 1, "values": {"a": Infinity}}',
        '{"schema": 1, "values": {"a": 1e999}}',
        '{"schema": 1, "schema": 1}',
        '{"schema": 1, "values": {"a": 1, "a": 2}}',
        f'{{"schema": 1, "values": {{"a": {"9" * 5000}}}}}',
        '{"schema": 1, "command": "\\u0000\\ud800"}',
        '{"schema": 1, "command": "\x00"}',
        "[" * 50_000,
        '{"a": ' * 10_000,
    ],
    ids=lambda text: text[:40],
)
def test_json_that_can_be_read_in_two_ways_or_in_none_is_refused(path, refused, text):
    path.write_text(text)
    refused("is not whole JSON")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(path, refused):
    path.write_bytes(b" " * 100_001)
    refused("it takes over 100000 bytes")


def test_random_damage_is_refused_by_name_or_changes_nothing(path, tmp_path):
    """Bytes lost, changed, doubled and moved; and values replaced by those who know the seal."""
    whole, chance, refusals = path.read_bytes(), random.Random(0), []
    odd = [None, True, -1, 10**400, 1e308, "", "\0", "../x", [], [[]], {}, {"": {}}, [None] * 4]
    for _ in range(1000):
        damaged, i, j = bytearray(whole), *sorted(chance.choices(range(len(whole)), k=2))
        kind = chance.randrange(6)
        if kind == 0:
            del damaged[i:j]
        elif kind == 1:
            damaged[i] = chance.randrange(256)
        elif kind == 2:
            damaged[i:i] = damaged[j : j + chance.randrange(100)]
        elif kind == 3:
            damaged[i] ^= 1 << chance.randrange(8)
        else:
            fields = json.loads(whole)
            owner, key = chance.choice(places(fields))
            owner[key] = chance.choice(odd)
            damaged = json.dumps(reseal(fields)).encode()
        path.write_bytes(damaged)
        try:
            load_record(path)
        except RecordError as error:
            refusals.append(str(error))
    assert len(refusals) > 700
    assert all(each.startswith(f"{path.parent.name}/{path.name}: ") for each in refusals)


def places(value):
    """Every place in some JSON: (container, key)."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


_OUTSIDE = ["../x", "/x", "a/b", "a\\b", "..", ".", ".x", "", "a\0", "a\n", "C:x", " x", "x" * 200]


@pytest.mark.parametrize("name", _OUTSIDE)
def test_names_stay_inside_the_folder(record, tmp_path, gpus, name):
    gpus(0)
    folder = tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    for odd in (replace(record, experiment=name), replace(record, files={name: b"x"})):
        with pytest.raises(RecordError, match="no file's name"):
            write_record(odd, folder)
    for load_it in (newest_of, newest_record):
        with pytest.raises(RecordError, match="no file's name"):
            load_it(name, folder)
    with pytest.raises(RecordError, match="no file's name"):
        load(folder, name=name)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_machine_without_a_name_and_a_file_named_as_a_record_are_refused(record, tmp_path):
    nameless = replace(record, hardware={**record.hardware, "processors": "..//.."})
    with pytest.raises(RecordError, match="machine name '' is no file's name"):
        write_record(nameless, tmp_path)
    with pytest.raises(RecordError, match="is a record's; expected another ending"):
        write_record(replace(record, files={"e1_another.json": b"{}"}), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"values": {"a": float("nan")}},
        {"values": {"a": float("inf")}},
        {"values": {"a": "1"}},
        {"checks": {"same": False}},
        {"digest": ""},
        {"recorded_at": "today"},
        {"parameters": {"a": object()}},
        {"software": {"torch": 2}},
    ],
)
def test_what_could_not_be_read_again_is_not_written(record, tmp_path, change):
    with pytest.raises(RecordError, match=f"{NAME}.json: can't be written: "):
        write_record(replace(record, **change), tmp_path)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]
