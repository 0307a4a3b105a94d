"""Storage: files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path | str, text: str) -> None:
    """Write a text file so that nobody ever sees half of it, also if this process dies.

    Raises:
        OSError: The folder is not there or can't be written to; the old file is as it was.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
