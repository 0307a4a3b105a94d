"""The gallery read without running it: which records it shows, and whether they still hold."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.__main__ import main
from autopar.records import gallery
from autopar.records.experiment import newest_record
from autopar.records.gallery import scripts_of, shown_by, stale_records, unshown_records
from autopar.records.store import FOLDER, write_record

_PAGE = '''
"""A page."""
import autopar as ap

WORK = {"sizes": [2**n for n in range(3)]}

def experiment(sizes, most):
    return ap.Findings([ap.Measurement("a", (1, 1, 1))])

record = ap.recorded(experiment, name="shown", parameters=WORK, gpus=99)
if record:
    again = ap.recorded(experiment, name="shown_too", parameters={**WORK, "most": 3}, gpus=2)
raise SystemExit("a page that runs")
'''


@pytest.fixture
def scripts(tmp_path):
    """A gallery of one page."""
    script = tmp_path / "gallery" / "experiments" / "plot_1_page.py"
    script.parent.mkdir(parents=True)
    script.write_text(_PAGE, encoding="utf-8")
    return scripts_of(tmp_path / "gallery")


def change(scripts, old, new):
    assert old in _PAGE
    scripts[0].write_text(_PAGE.replace(old, new), encoding="utf-8")


@pytest.fixture
def records(scripts, record, tmp_path):
    """Good records of it."""
    for shown in shown_by(scripts):
        digest = shown.digest(record.parameters)
        write_record(replace(record, experiment=shown.name, digest=digest), tmp_path / "records")
    return tmp_path / "records"


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ('"""A page."""', '"""Another page."""', []),
        ("raise SystemExit", "raise ValueError", []),
        ("(1, 1, 1)", "(1, 1, 2)", ["shown", "shown_too"]),
        ('"most": 3', '"most": 4', ["shown_too"]),
        ('name="shown"', 'name="renamed"', ["renamed", "shown_too", "shown"]),
    ],
)
def test_each_record_that_no_longer_holds_gets_a_line(records, scripts, old, new, stale):
    change(scripts, old, new)
    lines = [*stale_records(scripts, records), *unshown_records(scripts, records)]
    shown = stale_records(scripts, records, may_be_earlier=True)
    assert shown == [one for one in lines if "earlier code" not in one and "Delete" not in one]
    assert [line.split(".json")[0].split("/")[-1] for line in lines] == stale
    again = "python -m autopar record gallery/experiments/plot_1_page.py"
    assert all(line.endswith((again, "no script shows this record. Delete it.")) for line in lines)


def test_a_damaged_record_gets_a_line_and_a_good_one_in_any_folder_will_do(
    record, records, scripts, tmp_path
):
    assert len(stale_records(scripts, tmp_path / "none")) == 2
    assert stale_records(scripts, tmp_path / "none", records) == []
    (path,) = records.glob("*/shown.json")
    path.write_bytes(b"\0")
    for may_be_earlier in (True, False):
        (line,) = stale_records(scripts, records, may_be_earlier=may_be_earlier)
        assert "shown.json: it can't be read" in line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name="shown"', "name=experiment.__name__"),
        ('recorded(experiment, name="shown"', 'recorded(lambda: 1, name="shown"'),
    ],
)
def test_what_only_running_tells_is_refused(scripts, old, new):
    change(scripts, old, new)
    with pytest.raises(ValueError, match=r"plot_1_page\.py:\d+: recorded.* can't be read without"):
        shown_by(scripts)


@pytest.mark.parametrize("text", [b"def (", b"\0", b"\xff"], ids=["syntax", "null", "bytes"])
def test_a_script_that_is_no_python_is_refused_by_name(scripts, capsys, text):
    scripts[0].write_bytes(text)
    assert main(["record", "--check", str(scripts[0])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf".*{scripts[0]} can't be read: .* Mend it, and try again\.\n", err)


def test_the_command_lists_what_is_outdated_and_runs_nothing(
    scripts, records, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    scripts[0].with_name("plot_2_other.py").touch()
    assert main(["record", "--check", "--to", "records"]) == 0
    assert capsys.readouterr().out == "None of the records of 2 scripts are outdated.\n"
    for named, status, told in ((), 1, "2"), (["1_page"], 1, "2"), (["other"], 0, "None"):
        assert main(["record", "--check", "--to", "none", *named]) == status
        *lines, end = capsys.readouterr().out.splitlines()
        assert lines == (stale_records(scripts, "none") if status else [])
        assert end == f"{told} of the records of {2 - len(named)} scripts are outdated."
    assert "there is no such record." in stale_records(scripts, "none")[0]


def test_what_stays_outdated_is_said_at_the_end(scripts, records, tmp_path, monkeypatch, capfd):
    """Here is no machine of 99 GPUs, so the page fails, and the old record stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autopar.device.num_gpus", lambda: 1)
    change(scripts, "(1, 1, 1)", "(1, 1, 2)")
    assert main(["record", "1_page", "--to", "records"]) == 1
    said = capfd.readouterr()
    assert "plot_1_page.py: " in said.out
    assert "shown.json" in said.err


def test_the_newest_record_is_checked_against_the_gallery(records, scripts, monkeypatch):
    monkeypatch.setattr(gallery, "scripts_of", lambda: scripts)
    monkeypatch.setattr("autopar.records.store.FOLDER", records)
    assert newest_record("shown").experiment == "shown"
    assert not newest_record("shown").code_changed
    change(scripts, "(1, 1, 1)", "(1, 1, 2)")
    assert newest_record("shown").code_changed
    monkeypatch.setattr(gallery, "scripts_of", list)  # as where it is installed
    assert not newest_record("shown").code_changed


def test_scripts_come_in_reading_order(tmp_path):
    for name in ("graphs/plot_1", "first_steps/plot_3", "copies/plot_4", "first_steps/plot_2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").touch()
    assert [path.stem for path in scripts_of(tmp_path)] == ["plot_2", "plot_3", "plot_4", "plot_1"]
    assert scripts_of(tmp_path / "nowhere") == []


def test_every_record_of_the_gallery_is_read_and_none_is_shown_twice():
    names = [shown.name for shown in shown_by(scripts_of())]
    assert len(names) == len(set(names)) > 30
    assert {path.stem for path in FOLDER.glob("*/*.json")} <= {*names}


def test_a_file_that_a_page_gives_is_of_the_record_that_it_shows():
    given = 0
    for script in scripts_of():
        for path in re.findall(r"/recorded/(\S+)>`", script.read_text(encoding="utf-8")):
            given += 1
            shown = [newest_record(one.name).files for one in shown_by([script])]
            content = (FOLDER / path).read_bytes()
            assert content in [files.get(Path(path).name) for files in shown], path
    assert given


def test_pages_assert_nothing():
    """Results are checked by `Findings.checks`; what is true of a machine is a claim."""
    for script in scripts_of():
        nodes = ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        assert not [node.lineno for node in nodes if isinstance(node, ast.Assert)], script.name
