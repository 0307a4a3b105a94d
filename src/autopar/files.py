"""Files: there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from autopar.refusal import check_type


def path_of(path: Path | str | os.PathLike[str]) -> Path:
    """The path that was given, refused if it is none."""
    check_type("path", path, str | os.PathLike, "the path of a file, as in 'run.json'.")
    return Path(path)


def write_atomically(path: Path | str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that nobody ever sees half of it, also if this process dies.

    Raises:
        OSError: The folder is not there or can't be written to; the old file is as it was.
    """
    path = path_of(path)
    if path.is_dir():
        msg = f"path is {str(path)!r}, which is a folder; expected the path of a file in it."
        raise IsADirectoryError(msg)
    if not path.parent.is_dir():
        msg = f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}; make it first."
        raise FileNotFoundError(msg)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
