"""Damaged, edited and misnamed records: each is refused by name, with a reason and the way out."""

import contextlib
import hashlib
import json
import os
import re
from dataclasses import replace

import pytest
from record_sample import NAME, PARAMETERS, experiment, load

from autopar.records.experiment import newest_record, observed
from autopar.records.record import RecordError
from autopar.records.store import load_record, write_record
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement


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
    for end in {0, 1, len(whole) - 2, *range(2, len(whole) - 2, 97)}:
        path.write_bytes(whole[:end])
        refused("it can't be read")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"schema": "\xff"}', "it can't be read"),
        (b"[" * 50_000, "it can't be read"),
        (b"null", "it can't be read .*all of it is of type NoneType; expected fields by name"),
        (b"[]", "it can't be read .*all of it is of type list; expected fields by name"),
        (b'{"schema": 1}', "was edited: its contents don't match its seal"),
    ],
    ids=range(5),
)
def test_something_else_is_refused(path, refused, text, why):
    path.write_bytes(text)
    refused(why)


def test_every_edit_by_hand_breaks_the_seal(path, refused):
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    edits = {f"{digit}": f"{9 - int(digit)}" for line in lines for digit in re.findall(r"\d", line)}
    edits |= {'"GPU1 alone"': '"GPU1 at last"', "true": "false", "{\n": '{\n"note": "mine",\n'}
    for old, new in edits.items():
        for match in [*re.finditer(re.escape(old), text)][1::7]:
            edited = text[: match.start()] + new + text[match.end() :]
            with contextlib.suppress(ValueError):
                if json.loads(edited) == json.loads(text):  # as a digit that no float holds
                    continue
            path.write_text(edited)
            refused("was edited|has schema version|can't be read")
    path.write_text(text.replace("{", '{"checks": {"all wrong": false},', 1))
    refused("was edited: it has a name twice")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": True}, "has schema version True; this autopar reads 1"),
        ({"schema": 2}, "has schema version 2; this autopar reads 1"),
        ({"experiment": "another"}, "is a record of 'another', not 'two_gpus'"),
        ({"files": {"../x": "sha256:0"}}, "file name '../x' is no file's name"),
        ({"surprise": 3}, "unexpected keyword argument 'surprise'"),
        ({"measurements": {"a": {"values_s": [1, 2, -3]}}}, r"values_s of 'a'\[2\] is -3"),
        ({"measurements": {"a": {}}}, "values_s"),
        ({"measurements": None}, "it can't be read"),
        ({"timelines": {"t": [1]}}, "it can't be read"),
        ({"parameters": {"a": float("inf")}}, "it can't be read"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_even_if_sealed(path, refused, changes, why):
    fields = {**json.loads(path.read_text()), **changes}
    del fields["seal"]
    seal = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**fields, "seal": f"sha256:{seal}"}))
    refused(why)


def test_a_missing_record_is_refused_and_the_nearest_name_told(path, tmp_path):
    with pytest.raises(RecordError, match=f"no such record. The nearest names are {NAME}. On"):
        newest_record(NAME[:-1], tmp_path)
    path.unlink()
    with pytest.raises(RecordError, match=f"{NAME}.json: there is no such record. On a .*2 GPUs"):
        load(tmp_path)
    with pytest.raises(RecordError, match="can't be read .*No such file.*python -m autopar record"):
        load_record(path)


def test_files_lie_beside_the_record_and_are_those_that_were_recorded(record, tmp_path):
    live = replace(record, files={"report.sqlite": bytes(300_000)})
    path = write_record(live, tmp_path)
    beside = path.with_name("report.sqlite")
    assert load_record(path).files == live.files == {"report.sqlite": beside.read_bytes()}
    beside.unlink()
    with pytest.raises(RecordError, match=r"can't be read .*No such file.*report\.sqlite"):
        load_record(path)
    beside.write_bytes(b"another")
    with pytest.raises(RecordError, match=r"report\.sqlite is not the one that was recorded"):
        load_record(path)


_OUTSIDE = ["../x", "/x", "a\\b", "..", ".x", "", "a\0", "a\n", "C:x", " x", "x" * 200, "a.json"]


@pytest.mark.parametrize("name", _OUTSIDE)
def test_names_stay_inside_the_folder_and_files_are_no_records(record, tmp_path, gpus, name):
    gpus(0)
    folder = tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    nameless = replace(record, hardware={**record.hardware, "processors": "..//.."})
    for given_a_name in (
        lambda: write_record(replace(record, experiment=name), folder),
        lambda: write_record(replace(record, files={name: b"x"}), folder),
        lambda: write_record(nameless, folder),
        lambda: newest_record(name, folder),
        lambda: load(folder, name=name),
        lambda: observed(experiment, name=name, parameters=PARAMETERS),
    ):
        with pytest.raises(RecordError, match="no file's name; expected letters"):
            given_a_name()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


_SPANS = tuple(Span("mm", f"lane {i % 3}", i * 1e-3, i * 1e-3 + 7e-4) for i in range(20_000))


@pytest.mark.parametrize(
    "change",
    [
        {"digest": ""},
        {"parameters": {"a": object()}},
        {"hardware": {"processors": "one GPU", "clock": float("nan")}},
        {"files": {"a.sqlite": bytes(300_001)}},
        {"timelines": {"all": Timeline(_SPANS)}},  # too large
        {"measurements": {"a": Measurement("a", (1e-12, 2e-12, 3e-12))}},  # zero ns
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_could_not_be_read_again_or_is_too_large_is_not_written(record, path, change):
    before = path.read_bytes()
    with pytest.raises(RecordError, match=f"{NAME}.json: can't be written: "):
        write_record(replace(record, **change), path.parents[1])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_keys_that_are_numbers_come_back_as_the_texts_that_json_has(record, tmp_path):
    path = write_record(replace(record, parameters={"sizes": {2: 1, 10: 2}}), tmp_path)
    assert load_record(path).parameters == {"sizes": {"2": 1, "10": 2}}
