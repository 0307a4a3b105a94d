"""Provenance: the digest of the sources changes with every source, and git is asked politely."""

import subprocess

import pytest

from autopar import __version__
from autopar.provenance import provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules, one in a folder, in no git checkout."""
    (tmp_path / "inner").mkdir()
    for name in ("provenance.py", "inner/other.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr("autopar.provenance.__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def test_it_names_the_version_and_says_that_there_is_no_git(package):
    found = provenance()
    assert found["autopar"] == __version__
    assert found["autopar_commit"] == "not read: no git here"


@pytest.mark.parametrize("name", ["provenance.py", "inner/other.py"])
def test_every_source_counts(package, name):
    before = provenance()["autopar_sources"]
    assert provenance()["autopar_sources"] == before
    (package / name).write_text("x = 2\n")
    changed = provenance()["autopar_sources"]
    assert changed != before
    (package / name).rename(package / "renamed.py")
    assert provenance()["autopar_sources"] not in (before, changed)


def test_a_checkout_names_its_commit_and_whether_it_was_changed(package):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(package), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "HEAD")
    assert provenance()["autopar_commit"] == commit
    (package / "provenance.py").write_text("x = 3\n")
    assert provenance()["autopar_commit"] == f"{commit}-dirty"
