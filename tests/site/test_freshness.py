"""What makes the site's pages run again, and what keeps a build from beginning."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx", reason="Sphinx comes with the group docs")


@pytest.fixture
def freshness(extension):
    yield extension("freshness")
    del sys.modules["freshness"]


@pytest.mark.parametrize(("field", "value"), [("cpu", "another"), ("cpu_cores", 3)])
def test_another_cpu_makes_pages_run_again(freshness, monkeypatch, field, value):
    before, machine = freshness.stamp(), freshness.describe()
    assert freshness.stamp() == before
    machine["hardware"][field] = value
    monkeypatch.setattr(freshness, "describe", lambda: machine)
    assert freshness.stamp() != before


@pytest.mark.parametrize("is_whole", [True, False])
def test_only_a_build_whose_records_cannot_be_shown_ends_before_it_begins(
    freshness, monkeypatch, is_whole
):
    def stale(*_, may_be_earlier=False):
        return [] if may_be_earlier and is_whole else ["e1.json: is old. Run: record"]

    monkeypatch.setattr(freshness, "stale_records", stale)
    monkeypatch.setattr(freshness, "unshown_records", lambda *_: [])
    if is_whole:  # but of earlier code
        freshness.look_at_records(None, None)
        return
    with pytest.raises(SystemExit) as caught:
        freshness.look_at_records(None, None)
    assert caught.value.code == "1 records can't be shown:\ne1.json: is old. Run: record"
    monkeypatch.setenv("AUTOPAR_RECORD_TO", "anywhere")  # what the build measures may be outdated
    freshness.look_at_records(None, None)


def test_a_section_whose_folder_is_gone_is_dropped_and_others_stay(
    freshness, monkeypatch, tmp_path
):
    pages = tmp_path / "docs" / "auto_gallery"
    monkeypatch.setattr(freshness, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(freshness, "PAGES", pages)
    (tmp_path / "gallery" / "here").mkdir(parents=True)
    for section in ("here", "gone"):
        (pages / section).mkdir(parents=True)
        (pages / section / "index.rst").touch()
    app = SimpleNamespace(outdir=str(tmp_path / "html"))
    freshness.forget_stale_pages(app, SimpleNamespace(autopar_stamp="now"))
    assert [path.name for path in sorted(pages.iterdir()) if path.is_dir()] == ["here"]


def test_the_notebooks_cache_is_there_before_pages_are_read_in_parallel(freshness, tmp_path):
    freshness.make_cache(None, SimpleNamespace(nb_execution_cache_path=str(tmp_path / "cache")))
    assert list((tmp_path / "cache").glob("*.db"))


def test_each_script_begins_with_the_install_line(freshness):
    line = importlib.import_module("addresses").INSTALL
    scripts = sorted((Path(__file__).parents[2] / "gallery").rglob("plot_*.py"))
    assert len(scripts) > 15
    for script in scripts:
        assert script.read_text(encoding="utf-8").startswith(f'# {line}\n"""\n'), script.name


def test_a_checkout_of_no_published_repository_is_told_from_others(
    extension, monkeypatch, tmp_path
):
    addresses = extension("addresses")
    monkeypatch.delenv("READTHEDOCS", raising=False)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert not addresses.is_published(tmp_path)
    subprocess.run([*git, "remote", "add", "origin", f"{addresses.REPOSITORY}.git"], check=True)
    assert addresses.is_published(tmp_path)
    subprocess.run([*git, "remote", "set-url", "origin", "/some/folder"], check=True)
    assert not addresses.is_published(tmp_path)
    monkeypatch.setenv("READTHEDOCS", "True")
    assert addresses.is_published(tmp_path)
