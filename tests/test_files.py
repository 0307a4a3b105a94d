"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from autopar import Timeline, read_trace, write_trace
from autopar.files import write_atomically

resource = pytest.importorskip("resource", reason="limits on file sizes are a Unix thing")


@pytest.fixture
def note(tmp_path):
    """A file that is there; after the test it is alone in its folder: no draft was left."""
    path = tmp_path / "note.txt"
    path.write_text("old")
    yield path
    assert os.listdir(tmp_path) == ["note.txt"]


@pytest.fixture
def little_space():
    """Files can't grow beyond 50 kB, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_writes_what_others_may_read(note):
    before = os.umask(0o022)
    write_atomically(note, "naïve\n")
    os.umask(before)
    assert note.read_bytes() == "naïve\n".encode()
    assert note.stat().st_mode & 0o777 == 0o644
    write_atomically(str(note), "new")
    assert note.read_text() == "new"


def test_a_disk_that_is_full_halfway_leaves_the_old_file(note, little_space):
    with pytest.raises(OSError, match="too large"):
        write_atomically(note, "x" * 100_000)
    assert note.read_text() == "old"


def test_dying_before_the_last_step_leaves_the_old_file(note, monkeypatch):
    drafts = []

    def die(draft, _):
        drafts.append(Path(draft).read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(note, "new")
    assert drafts == ["new"], "the last step is to replace the old file by a whole new one"
    assert note.read_text() == "old"


def test_text_that_cannot_be_encoded_leaves_the_old_file(note):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(note, "half\udc80")
    assert note.read_text() == "old"


@pytest.mark.parametrize(
    "write", [write_atomically, lambda path, _: write_trace(Timeline(()), path)]
)
def test_a_path_is_that_of_a_file_in_a_folder_that_is_there(tmp_path, write):
    for path in (tmp_path, ""):
        with pytest.raises(IsADirectoryError, match="which is a folder; expected the path of a fi"):
            write(path, "text")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing"):
        write(tmp_path / "missing" / "note.txt", "text")
    for path in (None, 3, [tmp_path]):
        for use in (lambda path: write(path, "text"), read_trace):
            with pytest.raises(TypeError, match=r"path is of type .*; expected the path of a file"):
                use(path)
