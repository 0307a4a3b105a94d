"""Files that are there whole or not at all."""

import ast
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import autopar
from autopar import Timeline, read_trace, write_trace
from autopar.files import write_atomically, write_output

resource = pytest.importorskip("resource", reason="limits on file sizes are a Unix thing")

_NOBODY = 65534


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
    with pytest.raises(OSError, match=r"too large: .*note\.txt"):
        write_atomically(note, "x" * 100_000)
    assert note.read_text() == "old"


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o666), (0o777, 0o444)])
def test_where_writing_is_not_allowed_the_old_file_stays(folder_mode, file_mode):
    with tempfile.TemporaryDirectory() as name:  # that of pytest shuts others out
        folder = Path(name)
        (path := folder / "note.txt").write_text("old")
        path.chmod(file_mode)
        folder.chmod(folder_mode)
        user = os.geteuid()
        os.seteuid(user or _NOBODY)  # root may write anywhere
        try:
            with pytest.raises(PermissionError, match=r"note\.txt'$"):
                write_atomically(path, "new")
        finally:
            os.seteuid(user)
            folder.chmod(0o777)
        assert (path.read_text(), os.listdir(folder)) == ("old", ["note.txt"])


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


def test_symbolic_links_stay_and_lead_to_the_new_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (link := tmp_path / "link").symlink_to("sub/next")
    (following := tmp_path / "sub" / "next").symlink_to("../end")
    for text in ("made", "replaced"):
        write_atomically(link, text)
        assert (link.is_symlink(), following.is_symlink()) == (True, True)
        assert (tmp_path / "end").read_text() == text
    assert not (tmp_path / "end").is_symlink()
    link.unlink()
    link.symlink_to("sub/../link")
    with pytest.raises(OSError, match=f"symbolic links: '{link}'"):
        write_atomically(link, "text")
    link.unlink()
    link.symlink_to("missing/end")
    with pytest.raises(FileNotFoundError, match=r"link.*there is no folder .*missing"):
        write_atomically(link, "text")
    assert {path.name for path in tmp_path.iterdir()} == {"end", "link", "sub"}


def test_the_mode_and_the_owner_stay_and_other_hard_links_keep_the_old_content(tmp_path):
    (note := tmp_path / "note").write_text("old")
    (other := tmp_path / "other").hardlink_to(note)
    note.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(note, _NOBODY, _NOBODY)
    old = note.stat()
    write_atomically(note, "new")
    new = note.stat()
    assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)
    assert (note.read_text(), other.read_text()) == ("new", "old")


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    write_atomically(path := tmp_path / ("n" * 255), "text")
    assert path.read_text() == "text"


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_is_written_to_and_stays(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / name, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.parametrize("name", ["full", "link"])
def test_a_device_is_written_to_and_stays(tmp_path, name):
    device = tmp_path / "full"  # what is written to it finds no space
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        device.open("rb").close()
    except PermissionError:
        pytest.skip("only root may make a device, and not on every file system")
    (tmp_path / "link").symlink_to("full")
    with pytest.raises(OSError, match=f"No space left on device: .*{name}"):
        write_atomically(tmp_path / name, "text")
    assert device.is_char_device()
    assert sorted(os.listdir(tmp_path)) == ["full", "link"]


@pytest.mark.parametrize("name", ["/dev/fd/1", "link"])  # never /dev/stdout: it could be lost
def test_a_descriptor_is_written_to_where_it_stands(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/fd/1")
    (tmp_path / "log").write_text("old, ")
    program = (
        "import sys; from autopar.files import write_atomically as write\n"
        "print('before', end=', ', flush=True); write(sys.argv[1], 'text'); print(', after')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(autopar.__file__).parents[1])}
    with (tmp_path / "log").open("a") as log:
        command = [sys.executable, "-c", program, name]
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "old, before, text, after\n"


def test_a_dash_is_standard_output_and_a_path_is_a_file(tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    print("before")
    write_output("-", b"\0\xff")
    assert capsysbinary.readouterr().out == b"before\n\0\xff"
    assert os.listdir(tmp_path) == []
    for path in ("./-", Path("-")):
        write_output(path, str(type(path)))
        assert Path("-").read_text() == str(type(path))


_WRITES = {
    *("write_text", "write_bytes", "save", "savefig", "imsave", "touch"),
    *("copyfile", "copy2", "move", "mkstemp"),
}
_MAY_WRITE = {  # neither to a file that somebody named
    "figure.savefig(image, dpi=2 * figure.dpi, format='png')",
    "os.open(os.devnull, os.O_WRONLY)",
    # between ranks and who starts them, in a temporary folder
    "Path(failure).write_text(json.dumps(cause), encoding='utf-8')",
    "given.write_bytes(pickle.dumps((args, options)))",
    "printed.open('wb')",
    "plot.save(self._plotted(), path)",  # which ends in the savefig above
}


def written(code):
    """Calls in some code that write files, or may: each opening that doesn't say that it reads."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            reads = any(isinstance(a, ast.Constant) and a.value in ("r", "rb") for a in given)
            if name in _WRITES or (name in ("open", "fdopen") and not reads):
                yield ast.unparse(node)


def test_only_one_file_of_the_package_writes_files():
    root = Path(autopar.__file__).parent
    found = {
        path.relative_to(root).as_posix(): {*written(path.read_text(encoding="utf-8"))}
        for path in root.rglob("*.py")
    }
    assert found.pop("files.py")
    assert not {name: calls for name, calls in found.items() if calls - _MAY_WRITE}


def test_that_test_sees_every_form_of_writing():
    forms = [
        *("open(p, 'w')", "open(p, mode='ab')", "path.open('x')", "io.open(p, mode)"),
        *("path.open()", "os.open(p, f)", "path.write_text(t)", "path.write_bytes(b)"),
        *("ax.figure.savefig(p)", "torch.save(x, p)", "gzip.open(p)"),
    ]
    assert [*written("\n".join(forms))] == forms
    assert not [*written("open(p, 'rb')\npath.open('r')\ngzip.open(f, 'rb')\npath.read_text()")]


def test_a_path_that_no_file_can_have_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"path is 'a.*b'; expected one without a zero character"):
        write_atomically("a\0b", "text")
