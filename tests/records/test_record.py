"""Records: what was measured comes back exactly, measured here or loaded, and says so."""

import json
import re
import runpy
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from record_sample import NAME, PARAMETERS, experiment, load

import autopar as ap
from autopar.records.experiment import RECORD_TO, newest_record, observed, recorded
from autopar.records.record import Findings, RecordError
from autopar.records.store import Wanted, load_record, newest_of, write_record
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

_PLACES = re.compile(r'"(/|~|file:)| ~?/\w')  # paths of a machine, in JSON
_SHIPPED = sorted((Path(ap.__file__).parent / "recorded").glob("*/*.json"))


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
        assert repr(shown) == f"<Record of {NAME}: {shown.origin}>"
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
    assert (record.checks, record.values) == ({"same": True}, {"share": 0.5})
    assert (record.timelines["t"].start_s, record.timelines["t"].end_s) == (0, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"measurements": [3]}, r"measurements\[0\] is of type int; expected a Measurement"),
        ({"measurements": 3}, "measurements is 3; expected"),
        ({"timelines": {"a": 3}}, r"timelines\['a'\] is of type int; expected Timeline"),
        ({"timelines": [3]}, "timelines is of type list; expected Timeline by name"),
        ({"values": {"a": "x"}}, r"values\['a'\] is 'x'; expected a number"),
        ({"values": {"a": float("nan")}}, r"values\['a'\] is nan; expected a number, finite"),
        ({"values": {"a": True}}, r"values\['a'\] is True; expected a number"),
        ({"values": {1: 2}}, "a name in values is of type int; expected text"),
        ({"checks": {"a": 1}}, r"checks\['a'\] is of type int; expected bool"),
        ({"checks": {"a": torch.ones(2)}}, r"checks\['a'\] is of type Tensor; expected bool"),
        ({"files": {"a": "x"}}, r"files\['a'\] is of type str; expected bytes"),
    ],
)
def test_findings_are_refused_as_a_record_of_them_would_be(wrong, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Findings(**{"measurements": [], **wrong})

    def added_later():
        findings = Findings([], {}, {}, {})
        vars(findings).update(wrong)
        return findings

    with pytest.raises((TypeError, ValueError), match=said):
        observed(added_later, name="odd", parameters={})


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
        ({"parameters": {"x": torch.ones(1)}}, "can't be kept in a record .*Tensor"),
        ({"parameters": {"x": float("nan")}}, "can't be kept in a record .*Out of range"),
        ({"programs": "nvidia-smi"}, r"programs is 'nvidia-smi'; expected a list"),
        ({"modules": "torch"}, r"modules is 'torch'; expected a list"),
        ({"variables": "HOME"}, r"variables is 'HOME'; expected a list"),
        ({"threads": 0}, "threads is 0; expected a whole number of at least 1, as"),
    ],
)
def test_slips_are_told_by_name_before_anything_is_measured(wrong, said):
    given = {"experiment": lambda: Findings([]), "name": "slip", "parameters": {}, "gpus": 0}
    for run in (recorded, observed):
        if run is recorded or not wrong.keys() & {"programs", "modules", "variables", "threads"}:
            with pytest.raises((TypeError, ValueError), match=said):
                run(**(given | wrong))


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


def test_provenance_is_there_and_tells_no_names(path):
    text = path.read_text()
    fields = json.loads(text)
    assert fields["schema"] == 1
    assert fields["software"]["torch"] == torch.__version__
    assert {"autopar", "autopar_sources", "python"} <= set(fields["software"])
    assert {"processors", "cpu", "cpu_cores", "gpus"} <= set(fields["hardware"])
    assert fields["recorded_at"].endswith("+00:00")
    assert fields["command"] == "python -m autopar record"
    assert socket.gethostname() not in text
    assert not _PLACES.search(text)
    assert max(map(len, text.splitlines())) < 500  # can be read in a diff


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_records_that_come_with_autopar_are_whole_and_tell_no_paths(path):
    record = load_record(path)
    assert record.experiment == path.stem
    assert all(record.checks.values())
    assert not _PLACES.search(path.read_text())


# -- other code, other machines -------------------------------------------------------------------

_PAGE = """
from autopar.records.record import Findings
from autopar.timing.measurement import Measurement

def experiment(size, counts, label):
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
    kept = load(tmp_path / "records", experiment=page(tmp_path, _PAGE.replace("fixed", "firm"))[0])
    assert kept.measurements["both"].median_s == 1
    assert not kept.code_changed
    other, _ = page(tmp_path, _PAGE.replace("(1, 1, 1)", "(1, 1, 2)"))
    earlier = load(tmp_path / "records", experiment=other)
    assert earlier.code_changed
    assert earlier.origin == f"{kept.origin}, with an earlier version of autopar"
    assert earlier.measurements["both"].origin == earlier.origin
    assert earlier.estimate(lambda s: s["both"]).origin == earlier.origin
    written = write_record(earlier, tmp_path / "again").read_text()
    assert not [words for words in ("earlier version", "code_changed") if words in written]
    others = {**PARAMETERS, "size": 65}
    why = rf"^{NAME}.json: was measured with parameters .*'size': 64.*'size': 65.*run: {command}$"
    with pytest.raises(RecordError, match=why):
        load(tmp_path / "records", experiment=measured, parameters=others)


def test_code_that_is_in_no_file_leaves_no_record_and_is_held_against_none(path, tmp_path):
    """As cells of a notebook, and what `exec` makes."""
    namespace = {}
    exec(_PAGE, namespace)
    cell = namespace["experiment"]
    live = load(tmp_path, experiment=cell, gpus=0)
    assert live.live
    with pytest.raises(RecordError, match="can't be written: it has no digest"):
        write_record(live, tmp_path)
    shown = load(tmp_path, experiment=cell)
    assert (shown.live, shown.code_changed) == (False, False)
    with pytest.raises(RecordError, match="was measured with parameters"):
        load(tmp_path, experiment=cell, parameters={"size": 3})


def test_of_several_records_the_newest_of_this_code_is_taken_noisy_or_not(record, tmp_path):
    other, now = (f"sha256:{digit * 64}" for digit in "01")
    for machine, at, digest, samples_s in (
        ("A", "2026-03-01T10:00:00+00:00", now, (1, 1, 1)),
        ("M", "2026-11-21T10:00:00+00:00", now, (1, 2, 3)),
        ("T", "2026-11-23T10:00:00+00:00", other, (1, 1, 1)),
        ("Z", "2026-11-21T11:00:00+02:00", now, (1, 1, 1)),  # before M
    ):
        hardware = {**record.hardware, "processors": f"2 × NVIDIA {machine}"}
        both = Measurement("both", samples_s)
        changes = {"measurements": {"both": both}, "recorded_at": at, "digest": digest}
        written = write_record(replace(record, hardware=hardware, **changes), tmp_path)
        assert written.parent.name == f"2-x-nvidia-{machine.lower()}"
    taken = newest_of(Wanted(NAME, lambda _: now, PARAMETERS), tmp_path)
    assert taken.origin.startswith("recorded on 2 × NVIDIA M, 2026-11-21, torch ")
    taken = newest_of(Wanted(NAME, lambda _: "sha256:2", PARAMETERS), tmp_path)
    assert (taken.processors, taken.code_changed) == ("2 × NVIDIA T", True)
    assert newest_record(NAME, tmp_path).processors == "2 × NVIDIA T"  # of whatever code


# -- measuring or loading -------------------------------------------------------------------------


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
    gpus(0)
    monkeypatch.delenv(RECORD_TO)
    assert load(tmp_path).processors == live.processors == named[needed == 2]


@pytest.mark.parametrize(
    ("needs", "lacking"),
    [
        ({}, "2 GPUs"),
        ({"gpus": 0, "programs": ["nobodys-python"]}, "nobodys-python"),
        ({"gpus": 0, "modules": ["nobodys"]}, "nobodys"),
        ({"gpus": 0, "variables": ["NO"]}, "NO"),
        ({"gpus": 0, "threads": 99999}, "99999 CPU threads"),
    ],
)
def test_without_what_it_needs_it_is_shown_from_its_record(
    path, tmp_path, monkeypatch, capsys, needs, lacking
):
    assert not load(tmp_path, **needs).live
    with pytest.raises(RecordError, match=f"no such record.*On a machine with {lacking} run: "):
        load(tmp_path, name="another", **needs)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv(RECORD_TO, str(tmp_path / "new"))
    assert not load(tmp_path, **needs).live
    assert capsys.readouterr().out == f"{NAME}: not measured, for want of {lacking}\n"
    assert not (tmp_path / "new").exists()


def product(size):
    x = ap.workload.matrix(size, ap.gpu(0))
    product = ap.measure(lambda: x.mm(x), label="product", repeats=5, devices=[ap.gpu(0)])
    equal = torch.equal(x.mm(x), x.mm(x))
    return Findings([product], {"product": ap.timeline_of(lambda: x.mm(x))}, {"equal": equal})


@pytest.mark.gpu
def test_a_record_of_what_this_gpu_did(tmp_path, monkeypatch):
    monkeypatch.setenv(RECORD_TO, str(tmp_path))
    live = recorded(product, name="product", parameters={"size": 1024}, gpus=1)
    (path,) = tmp_path.glob("*/product.json")
    loaded = load_record(path)
    assert (live.live, loaded.live) == (True, False)
    assert loaded.digest == live.digest
    assert loaded.measurements["product"].median_s == pytest.approx(
        live.measurements["product"].median_s, abs=1e-9
    )
    assert loaded.timelines["product"].select("compute")
    assert torch.cuda.get_device_name(0) in loaded.origin
    assert loaded.hardware["gpus"]
