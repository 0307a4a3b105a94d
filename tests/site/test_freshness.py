"""What makes the site's pages run again, and what keeps a build from beginning."""

import subprocess
import sys
from types import SimpleNamespace

import pytest


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


def test_only_a_build_whose_records_cannot_be_shown_ends_before_it_begins(freshness, monkeypatch):
    bad = {True: [], False: ["e1.json: is old. Run: record"]}  # by whether earlier code will do
    monkeypatch.setattr(
        freshness, "stale_records", lambda *_, may_be_earlier=False: bad[may_be_earlier]
    )
    monkeypatch.setattr(freshness, "unshown_records", lambda *_: [])
    freshness.look_at_records(None, None)
    bad[True] = bad[False]
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


def test_a_checkout_of_no_published_repository_is_told_from_others(
    extension, monkeypatch, tmp_path
):
    addresses = extension("addresses")
    monkeypatch.delenv("READTHEDOCS", raising=False)
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    git = "git", "-C", str(tmp_path), "remote"
    assert not addresses.is_published(tmp_path)
    subprocess.run([*git, "add", "origin", f"{addresses.REPOSITORY}.git"], check=True)
    assert addresses.is_published(tmp_path)
    for other in ("/some/folder", f"{addresses.REPOSITORY}-of-mine", "https://gitlab.com/a/b.git"):
        subprocess.run([*git, "set-url", "origin", other], check=True)
        assert not addresses.is_published(tmp_path)
    by_ssh = addresses.REPOSITORY.replace("https://github.com/", "git@github.com:")
    subprocess.run([*git, "set-url", "origin", by_ssh], check=True)
    assert addresses.is_published(tmp_path)
    subprocess.run([*git, "remove", "origin"], check=True)
    monkeypatch.setenv("READTHEDOCS", "True")
    assert addresses.is_published(tmp_path)
