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
from autopar import read_trace
from autopar.files import write_atomically, write_output

resource = pytest.importorskip("resource", reason="limits on file sizes are a Unix thing")

_NOBODY = 65534


@pytest.fixture
def note(tmp_path):
    """A file that is there; after the test it is alone in its folder: no draft was left."""
    path = tmp_path / f"{'n' * 247}note.txt"  # as long as systems allow
    path.write_text("old")
    path.chmod(0o640)
    yield path
    assert os.listdir(tmp_path) == [path.name]


def test_writes_what_others_may_read_and_the_mode_stays(note):
    write_atomically(note, "naïve\n")
    assert note.read_bytes() == "naïve\n".encode()
    assert note.stat().st_mode & 0o777 == 0o640
    note.unlink()
    before = os.umask(0o022)
    write_atomically(str(note), "new")
    os.umask(before)
    assert (note.read_text(), note.stat().st_mode & 0o777) == ("new", 0o644)


def test_a_disk_that_is_full_halfway_leaves_the_old_file(note):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match=r"too large: .*note\.txt"):
            write_atomically(note, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
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


def test_a_path_is_that_of_a_file_in_a_folder_that_is_there(tmp_path):
    for path in (tmp_path, ""):
        with pytest.raises(IsADirectoryError, match="which is a folder; expected the path of a fi"):
            write_atomically(path, "text")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing"):
        write_atomically(tmp_path / "missing" / "note.txt", "text")
    with pytest.raises(ValueError, match=r"path is 'a.*b'; expected one without a zero character"):
        write_atomically("a\0b", "text")
    for use in (lambda path: write_atomically(path, "text"), read_trace):
        with pytest.raises(TypeError, match=r"path is of type int; expected the path of a file"):
            use(3)


def test_symbolic_links_stay_and_lead_to_the_new_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (link := tmp_path / "link").symlink_to("sub/next")
    (following := tmp_path / "sub" / "next").symlink_to("../end")
    for text in ("made", "replaced"):
        write_atomically(link, text)
        assert (link.is_symlink(), following.is_symlink()) == (True, True)
        assert (tmp_path / "end").read_text() == text
    assert not (tmp_path / "end").is_symlink()
    for target, said in (("link", "symbolic links: .*link"), ("missing/end", "no folder .*missi")):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(OSError, match=said):
            write_atomically(link, "text")
    assert {path.name for path in tmp_path.iterdir()} == {"end", "link", "sub"}


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


def test_what_was_printed_before_stands_before_what_is_written_to_a_pipe():
    program = "from autopar.files import write_output\nprint('a')\nwrite_output('-', 'b')"
    environment = {"PYTHONPATH": str(Path(autopar.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True)
    assert (done.stdout, done.stderr) == (b"a\nb", b"")


_WRITES = {
    *("write_text", "write_bytes", "save", "savefig", "imsave", "touch"),
    *("copyfile", "copy2", "move", "mkstemp"),
}
_MAY_WRITE = {  # neither to a file that somebody named
    "figure.savefig(image, dpi=2 * figure.dpi, format='png')",
    "os.open(os.devnull, os.O_WRONLY)",
    # between ranks and who starts them, in a temporary folder
    "(folder / 'given').write_bytes(cloudpickle.dumps((fn, args, options)))",
    "returned_by(folder, rank).write_bytes(content)",
    "outputs[0].open('wb')",
    "outputs[1].open('wb')",
    "os.open(os.devnull, os.O_RDONLY)",
    "printed.open('wb')",  # of a fresh process, likewise
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
    calls = {
        path.relative_to(root).as_posix(): {*written(path.read_text(encoding="utf-8"))}
        for path in root.rglob("*.py")
    }
    assert calls.pop("files.py")
    assert not {name: some for name, some in calls.items() if some - _MAY_WRITE}
