"""Records: what was measured comes back exactly, measured here or loaded, and says so."""

import json
import os
import re
import runpy
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from record_sample import NAME, PARAMETERS, experiment, load

import autopar
from autopar.records.experiment import RECORD_TO, newest_record, observed, recorded
from autopar.records.record import Findings, RecordError
from autopar.records.store import Wanted, load_record, newest_of, write_record
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

_PLACES = re.compile(r'"(/|~|file:)| ~?/\w')  # paths of a machine, in JSON
_SHIPPED = sorted((Path(autopar.__file__).parent / "recorded").glob("*/*.json"))


def test_what_was_measured_comes_back_exactly(record, path, tmp_path):
    loaded = load(tmp_path)
    assert (record.live, loaded.live) == (True, False)
    assert loaded == replace(record, live=False)
    again = write_record(loaded, tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()
    assert again.relative_to(tmp_path / "again") == path.relative_to(tmp_path)


def test_all_that_was_found_is_final_and_says_where_it_comes_from(record, path):
    rest = f"{record.processors}, {record.recorded_at[:10]}, torch {torch.__version__}"
    for shown, how in ((record, "measured live on"), (load_record(path), "recorded on")):
        assert shown.origin == f"{how} {rest}"
        assert str(shown) == f"{NAME}: {shown.origin}"
        assert repr(shown) == f"<Record of {shown}>"
        things = [*shown.measurements.values(), *shown.timelines.values()]
        assert {thing.origin for thing in things} == {shown.origin}
        for final in (shown.measurements, shown.timelines):
            with pytest.raises(TypeError):
                final["both"] = None


def test_findings_become_plain_and_timelines_start_at_zero(tmp_path):
    def odd():
        checks, values = {"same": torch.tensor(True)}, {"share": torch.tensor(0.5)}
        timelines = {"t": Timeline((Span("a", "x", 7, 9),))}
        return Findings([Measurement("a", (1, 1, 1))], timelines, checks, values)

    record = load_record(write_record(observed(odd, name="odd", parameters={}), tmp_path))
    assert record.checks == {"same": True}
    assert record.values == {"share": 0.5}
    assert (record.timelines["t"].start_s, record.timelines["t"].end_s) == (0, 2)


def test_findings_have_each_label_once_and_are_shown_in_one_short_line():
    one = Measurement("a", (1, 1, 1))
    with pytest.raises(ValueError, match="expected each label once"):
        Findings([one, Measurement("a", (2, 2, 2))])
    assert repr(Findings([])) == "<Findings: none>"
    some = Findings([one], checks={"same": True, "near": False})
    assert repr(some) == "<Findings: measurements 1, checks 2, failed 1: near>"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"experiment": Findings([])}, "of type Findings; expected a function"),
        ({"experiment": lambda: [1]}, "returned list; expected Findings"),
        ({"experiment": lambda: None}, "returned NoneType; expected Findings"),
        ({"parameters": {"n": {1}}}, "can't be kept in a record .*set"),
        ({"parameters": {"x": torch.ones(1)}}, "can't be kept in a record .*Tensor"),
        ({"programs": "nvidia-smi"}, r"programs is 'nvidia-smi'; expected a list"),
        ({"modules": "torch"}, r"modules is 'torch'; expected a list"),
        ({"variables": "HOME"}, r"variables is 'HOME'; expected a list"),
        ({"parameters": {"x": float("nan")}}, "can't be kept in a record .*Out of range"),
    ],
)
def test_slips_are_told_by_name_before_anything_is_measured(wrong, said):
    given = {"experiment": lambda: Findings([]), "name": "slip", "parameters": {}, "gpus": 0}
    with pytest.raises(TypeError, match=said):
        recorded(**(given | wrong))
    if not wrong.keys() & {"programs", "modules", "variables"}:
        with pytest.raises(TypeError, match=said):
            observed(**(given | wrong))
    for run in (recorded, observed):
        with pytest.raises(ValueError, match="gpus is -1; expected a whole number"):
            run(**(given | {"gpus": -1}))


def test_a_failed_check_means_no_record(path, tmp_path, gpus, monkeypatch):
    def wrong(size, counts, label):
        checks = {"same result": True, "same shape": torch.tensor(False)}
        return replace(experiment(size, counts, label), checks=checks)

    gpus(2)
    monkeypatch.setenv(RECORD_TO, str(tmp_path))
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match=f"'{NAME}' failed its check: same shape"):
        load(tmp_path, experiment=wrong)
    assert path.read_bytes() == before


# -- the file -------------------------------------------------------------------------------------


def test_provenance_is_there_and_tells_no_names(path):
    text = path.read_text()
    fields = json.loads(text)
    assert fields["schema"] == 1
    assert fields["software"]["torch"] == torch.__version__
    assert {"autopar", "autopar_sources", "python"} <= set(fields["software"])
    assert {"processors", "cpu", "cpu_cores", "gpus"} <= set(fields["hardware"])
    assert fields["recorded_at"].endswith("+00:00")
    assert fields["command"] == "python -m autopar record"
    assert path.name == f"{NAME}.json"
    assert socket.gethostname() not in text
    assert not _PLACES.search(text)
    assert max(map(len, text.splitlines())) < 500  # can be read in a diff
    assert '\n  "both": {"values_s"' in text


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_records_that_come_with_autopar_are_whole_and_tell_no_paths(path):
    record = load_record(path)
    assert record.experiment == path.stem
    assert all(record.checks.values())
    assert not _PLACES.search(path.read_text())


def test_files_lie_beside_the_record_and_are_those_that_were_recorded(record, tmp_path):
    live = replace(record, files={"report.sqlite": bytes(300_000)})
    path = write_record(live, tmp_path)
    beside = path.with_name("report.sqlite")
    assert load_record(path).files == live.files == {"report.sqlite": beside.read_bytes()}
    beside.write_bytes(b"another")
    with pytest.raises(RecordError, match=r"report\.sqlite is not the one that was recorded"):
        load_record(path)
    beside.unlink()
    with pytest.raises(RecordError, match=r"report\.sqlite is missing"):
        load_record(path)


def test_what_is_too_large_is_not_written(record, path):
    """A thousand spans are not."""
    before = path.read_bytes()
    spans = [Span("mm", f"lane {i % 3}", i * 1e-3, i * 1e-3 + 7e-4) for i in range(5_000)]
    some, all_of_them = (
        replace(record, timelines={"all": Timeline(tuple(part))}) for part in (spans[:1000], spans)
    )
    with pytest.raises(RecordError, match="bytes, over 100000; keep fewer spans"):
        write_record(all_of_them, path.parents[1])
    with pytest.raises(RecordError, match="a.sqlite takes 300001 bytes, over 300000"):
        write_record(replace(record, files={"a.sqlite": bytes(300_001)}), path.parents[1])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    written = load_record(write_record(some, path.parents[1]))
    assert written.timelines["all"].lanes == ("lane 0", "lane 1", "lane 2")


# -- other code, other machines -------------------------------------------------------------------

_PAGE = """
from autopar.records.record import Findings
from autopar.timing.measurement import Measurement

def experiment(size, counts, label):
    '''Measures.'''
    return Findings([Measurement("both", (1, 1, 1))])  # fixed
"""


def page(folder, text):
    """An experiment of a page's own file; only the last part of its path must be told."""
    path = folder / "gallery" / "experiments" / f"plot_{hash(text)}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    command = f"python -m autopar record gallery/experiments/{path.name}"
    return runpy.run_path(str(path))["experiment"], command


def test_a_record_of_other_code_says_so_and_one_of_other_parameters_is_refused(tmp_path, gpus):
    gpus(0)
    measured, command = page(tmp_path, _PAGE)
    write_record(observed(measured, name=NAME, parameters=PARAMETERS), tmp_path / "records")
    reworded, _ = page(tmp_path, _PAGE.replace("Measures", "Weighs").replace("# fixed", "# firm"))
    kept = load(tmp_path / "records", experiment=reworded)
    assert kept.measurements["both"].median_s == 1
    assert not kept.code_changed
    other, _ = page(tmp_path, _PAGE.replace("(1, 1, 1)", "(1, 1, 2)"))
    earlier = load(tmp_path / "records", experiment=other)
    assert earlier.code_changed
    assert earlier.origin == f"{kept.origin}, with an earlier version of autopar"
    assert {it.origin for it in earlier.measurements.values()} == {earlier.origin}
    assert earlier.estimate(lambda s: s["both"]).origin == earlier.origin
    written = write_record(earlier, tmp_path / "again").read_text()
    assert not [words for words in ("earlier version", "code_changed") if words in written]
    others = {**PARAMETERS, "size": 65}
    why = rf"^{NAME}.json: was measured with parameters .*'size': 64.*'size': 65.*run: {command}$"
    with pytest.raises(RecordError, match=why) as caught:
        load(tmp_path / "records", experiment=measured, parameters=others)
    assert str(tmp_path) not in str(caught.value)


def test_code_whose_source_cannot_be_read_runs_and_leaves_no_record(tmp_path, gpus):
    """As what `exec` makes: its record could never be held against it."""
    namespace = {}
    exec(_PAGE, namespace)
    live = load(tmp_path, experiment=namespace["experiment"], gpus=0)
    assert live.live
    with pytest.raises(RecordError, match="can't be written: has no digest"):
        write_record(live, tmp_path)


def test_code_that_is_in_no_file_is_shown_from_any_record_of_its_parameters(path, tmp_path, gpus):
    gpus(0)
    namespace = {}
    exec(_PAGE, namespace)
    shown = load(tmp_path, experiment=namespace["experiment"])
    assert not shown.live
    assert not shown.code_changed
    with pytest.raises(RecordError, match="was measured with parameters"):
        load(tmp_path, experiment=namespace["experiment"], parameters={"size": 3})


def test_of_several_machines_records_the_newest_that_fits_is_taken(record, tmp_path, gpus):
    gpus(0)
    other = f"sha256:{'0' * 64}"
    for machine, when, digest in (
        ("A", "2026-03-01", record.digest),
        ("M", "2026-11-21", record.digest),
        ("T", "2026-12-01", other),
        ("Z", "2026-01-01", record.digest),
    ):
        hardware = {**record.hardware, "processors": f"2 × NVIDIA {machine}"}
        at = f"{when}T10:00:00+00:00"
        changed = replace(record, hardware=hardware, recorded_at=at, digest=digest)
        written = write_record(changed, tmp_path)
        assert written.parent.name == f"2-x-nvidia-{machine.lower()}"
    assert load(tmp_path).origin.startswith("recorded on 2 × NVIDIA M, 2026-11-21, torch ")
    for newest in (newest_of(Wanted(NAME), tmp_path), newest_record(NAME, tmp_path)):
        assert newest.processors == "2 × NVIDIA T"
        assert not newest.code_changed
    newest = newest_of(Wanted(NAME, lambda _: f"sha256:{'1' * 64}", PARAMETERS), tmp_path)
    assert newest.processors == "2 × NVIDIA T"
    assert newest.code_changed


# -- measuring or loading -------------------------------------------------------------------------

_LACKING = {"programs": "nobodys-python", "modules": "nobodys", "variables": "NO", "gpus": "2 GPUs"}
_LACKING["threads"] = "99999 CPU threads"


def test_it_is_measured_if_all_that_it_needs_is_here(path, gpus, tmp_path, monkeypatch):
    for here in range(4):
        gpus(here)
        assert load(tmp_path).live == (here >= 2)
        assert load(tmp_path, gpus=0).live
    needs = {"programs": ["git"], "modules": ["torch.nn"], "variables": ["SOMEBODY_SET"]}
    for value, is_live in (("this", True), ("", False)):
        monkeypatch.setenv("SOMEBODY_SET", value)
        assert load(tmp_path, **needs).live == is_live
    assert [*tmp_path.rglob("*.json")] == [path]


@pytest.mark.parametrize("needed", [0, 2])
def test_while_recording_it_is_written_and_names_the_processors_that_it_needs(
    tmp_path, gpus, monkeypatch, needed
):
    named = {True: "2 × NVIDIA H200", False: "a CPU"}
    monkeypatch.setattr(
        "autopar.records.experiment.processor_names", lambda of=None: named[of is None]
    )
    gpus(2)
    monkeypatch.setenv(RECORD_TO, str(tmp_path))
    live = load("elsewhere", gpus=needed)
    assert live.origin.startswith(f"measured live on {named[needed == 2]}, ")
    gpus(0)
    monkeypatch.delenv(RECORD_TO)
    assert load(tmp_path).processors == live.processors == named[needed == 2]


@pytest.mark.parametrize("kind", _LACKING)
def test_without_what_it_needs_it_is_shown_from_its_record(
    path, gpus, tmp_path, monkeypatch, capsys, kind
):
    lacking = _LACKING[kind]
    gpus(1 if kind == "gpus" else 2)
    missing = {} if kind == "gpus" else {kind: 99999 if kind == "threads" else [lacking]}
    assert not load(tmp_path, **missing).live
    needs = f"2 GPUs and {lacking}" if missing else lacking
    with pytest.raises(RecordError, match=f"no such record. On a machine with {needs} run: "):
        load(tmp_path, name="another", **missing)
    monkeypatch.setenv(RECORD_TO, str(tmp_path / "new"))
    assert not load(tmp_path, **missing).live
    assert capsys.readouterr().out == f"{NAME}: not measured, for want of {lacking}\n"
    assert not (tmp_path / "new").exists()
    with pytest.raises(RecordError, match="there is no such record"):
        load(tmp_path, name="another", **missing)
