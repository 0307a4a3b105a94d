"""Files: there whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from autopar.refusal import check_type


def path_of(path: Path | str | os.PathLike[str]) -> Path:
    """The path that was given, refused if it is none."""
    check_type("path", path, str | os.PathLike, "the path of a file, as in 'run.json'.")
    if "\0" in str(os.fspath(path)):
        msg = f"path is {path!r}; expected one without a zero character, which no file's has."
        raise ValueError(msg)
    return Path(path)


def write_atomically(path: Path | str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that nobody ever sees half of it, also if this process dies.

    A symbolic link stays, and the file that it leads to is replaced; its mode stays. A device, a
    pipe and what this process prints to (`/dev/stdout`) are written to and never replaced.

    Raises:
        OSError: The folder is not there, or it or the file can't be written to; the old file is as
            it was.
    """
    path, data = path_of(path), content.encode() if isinstance(content, str) else content
    end = Path(os.path.realpath(path))
    if end.is_dir():
        msg = f"path is {str(path)!r}, which is a folder; expected the path of a file in it."
        raise IsADirectoryError(msg)
    if not end.parent.is_dir():
        msg = f"path is {str(path)!r}, but there is no folder {str(end.parent)!r}; make it first."
        raise FileNotFoundError(msg)
    try:
        mode = None
        with suppress(FileNotFoundError), os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
            old = os.fstat(file.fileno())
            mode = stat.S_IMODE(old.st_mode)
            for printed_to in (1, 2):
                if _is_open_at(printed_to, old):  # which goes on where that stands
                    os.dup2(printed_to, file.fileno())
                    mode = None
            if mode is None or not stat.S_ISREG(old.st_mode):
                file.write(data)
                return
        _replace(end, data, mode)
    except OSError as error:  # a full disk names no file, and others name the draft
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_output(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write where a command line says: the word `-` is standard output, and `./-` is a file."""
    if path != "-":
        write_atomically(path, content)
        return
    if not sys.stdout:  # it is closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout.flush()
    sys.stdout.buffer.write(content.encode() if isinstance(content, str) else content)
    sys.stdout.buffer.flush()


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to a file, at once, so that those of several processes don't mix."""
    with Path(path).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def _is_open_at(descriptor: int, status: os.stat_result) -> bool:
    with suppress(OSError):  # it may be closed
        return os.path.samestat(os.fstat(descriptor), status)
    return False


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    draft = path.with_name(f".{secrets.token_hex(8)}.draft")  # short, and nobody else's
    try:
        with draft.open("xb") as file:
            file.write(data)
        if mode is not None:
            draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
