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


def test_pages_are_made_anew_for_another_stamp_or_script_and_only_then(
    freshness, monkeypatch, tmp_path
):
    gallery, page = tmp_path / "gallery", tmp_path / "docs" / "auto_gallery" / "here" / "plot_1.rst"
    monkeypatch.setattr(freshness, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(freshness, "PAGES", page.parents[1])
    app = SimpleNamespace(outdir=str(tmp_path / "html"))
    (gallery / "here").mkdir(parents=True)
    page.parents[2].mkdir()

    def kept(stamp):
        freshness.forget_stale_pages(app, SimpleNamespace(autopar_stamp=stamp))
        was_there = page.exists()
        page.parent.mkdir(exist_ok=True)
        page.touch()
        return was_there

    assert [kept("now"), kept("now"), kept("later"), kept("later")] == [False, True, False, True]
    (gallery / "here" / "plot_2.py").touch()
    assert [kept("later"), kept("later")] == [False, True]


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
