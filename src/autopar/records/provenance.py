"""Provenance: which autopar this is, down to its sources."""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path

__version__ = "0.1.0"
# What is measured: changes elsewhere, and records written in the same run, make no other code.
_MEASURED = (":(top)src", ":(top)gallery", ":(top,exclude)src/autopar/recorded")


@functools.cache  # of what this process has loaded: later changes are none of its
def provenance() -> dict[str, str]:
    """The version, a digest of the package's sources, and the commit if they are just as there."""
    package = Path(__file__).parents[1]
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    commit = _commit(Path(__file__))
    named = {"autopar_commit": commit} if commit else {}
    return {"autopar": __version__, **named, "autopar_sources": f"sha256:{sources.hexdigest()}"}


def _commit(file: Path) -> str | None:
    """The commit, if git has this file and what is measured is unchanged since."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # or it is another project's repository
        changed = git("status", "--porcelain", "--untracked-files=all", "--", *_MEASURED)
        return None if changed else git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
