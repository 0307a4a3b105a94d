"""Provenance: a clean commit or the sources' digest, and nothing that only looks like either."""

import subprocess

import pytest

from autopar import __version__
from autopar.records.provenance import provenance as once

_SOURCES = ("src/autopar/inner/provenance.py", "src/autopar/inner/other.py")


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
    monkeypatch.setattr("autopar.records.provenance.__file__", str(root / _SOURCES[0]))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    yield root
    once.cache_clear()


def commit(folder):
    """Commit all of it, and tell which commit that is."""
    for command in ("init", "add .", "commit --message first", "rev-parse HEAD"):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        words = ["git", "-C", str(folder), *identity, *command.split()]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_without_git_it_names_the_version_and_every_source_with_its_place(checkout):
    before = provenance()
    assert before.keys() == {"autopar", "autopar_sources"}
    assert before["autopar"] == __version__
    digests = {before["autopar_sources"]}
    for name in _SOURCES:
        assert provenance()["autopar_sources"] in digests
        (checkout / name).write_text("x = 2\n")
        digests.add(provenance()["autopar_sources"])
    (checkout / name).rename(checkout / "src" / "autopar" / "renamed.py")
    assert len({*digests, provenance()["autopar_sources"]}) == 4


@pytest.mark.parametrize(
    ("name", "is_measured"),
    [
        ("README.md", False),
        ("src/autopar/recorded/gpu/new.json", False),  # written in the same run
        ("src/autopar/recorded/gpu/a.json", False),
        *[(name, True) for name in (*_SOURCES, "gallery/plot_1.py", "src/autopar/new.py")],
    ],
)
def test_a_checkout_names_its_commit_if_what_is_measured_is_clean(checkout, name, is_measured):
    head = commit(checkout)
    before = provenance()
    assert before["autopar_commit"] == head
    (checkout / name).write_text("x = 3\n")
    assert once() == before, "a process asks once"
    assert provenance().get("autopar_commit") == (None if is_measured else head)


def test_another_projects_repository_names_no_commit(checkout):
    """As where autopar is installed in an environment inside of someone's checkout."""
    (checkout / ".gitignore").write_text("src/\n")
    commit(checkout)
    assert "autopar_commit" not in provenance()
