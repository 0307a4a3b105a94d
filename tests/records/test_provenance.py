"""Provenance: a clean commit or the sources' digest, and nothing that only looks like either."""

import subprocess

import pytest

from autopar import __version__
from autopar.records.provenance import provenance as once

_SOURCES = ("src/autopar/inner/provenance.py", "src/autopar/inner/other.py")


@pytest.fixture(autouse=True)
def _forget():
    yield
    once.cache_clear()


def provenance():
    """As in a new process."""
    once.cache_clear()
    return once()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A project of a package, a page, a record and a text, in no git repository yet."""
    root = tmp_path / "checkout"
    for name in (*_SOURCES, "gallery/plot_1.py", "src/autopar/recorded/gpu/a.json", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    (root / ".gitignore").write_text("__pycache__/\n")
    monkeypatch.setattr("autopar.records.provenance.__file__", str(root / _SOURCES[0]))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return root


@pytest.fixture
def commit(checkout):
    """Commit all of it, and tell which commit that is."""
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    return git(checkout, "rev-parse", "HEAD")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_without_git_it_names_the_version_and_the_sources(checkout):
    found = provenance()
    assert found.keys() == {"autopar", "autopar_sources"}
    assert found["autopar"] == __version__


@pytest.mark.parametrize("name", _SOURCES)
def test_every_source_counts(checkout, name):
    before = provenance()["autopar_sources"]
    assert provenance()["autopar_sources"] == before
    (checkout / name).write_text("x = 2\n")
    changed = provenance()["autopar_sources"]
    assert changed != before
    (checkout / name).rename(checkout / "src" / "autopar" / "renamed.py")
    assert provenance()["autopar_sources"] not in (before, changed)


def test_a_clean_checkout_names_its_commit(checkout, commit):
    assert provenance()["autopar_commit"] == commit


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "src/autopar/recorded/gpu/a.json",  # written by the page before, in the same run
        "src/autopar/recorded/gpu/new.json",
        "notes.txt",
        "copied/anything.py",
        "src/autopar/__pycache__/other.pyc",
    ],
)
def test_what_is_not_measured_leaves_it_clean(checkout, commit, name):
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("x = 3\n")
    assert provenance()["autopar_commit"] == commit


@pytest.mark.parametrize("name", [*_SOURCES, "gallery/plot_1.py", "src/autopar/new.py"])
@pytest.mark.parametrize("staged", [False, True])
def test_what_is_measured_and_changed_names_no_commit(checkout, commit, name, staged):
    (checkout / name).write_text("x = 3\n")
    if staged:
        git(checkout, "add", name)
    assert "autopar_commit" not in provenance()


def test_another_projects_repository_names_no_commit(checkout):
    """As where autopar is installed in an environment inside of someone's checkout."""
    (checkout / ".gitignore").write_text("src/\n")
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "theirs")
    assert "autopar_commit" not in provenance()


def test_a_process_asks_once(checkout, commit):
    before = provenance()
    (checkout / _SOURCES[0]).write_text("x = 3\n")
    assert once() == before
