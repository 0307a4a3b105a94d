"""Provenance: which autopar this is, down to its sources."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

VERSION = "0.1.0"


def provenance() -> dict[str, str]:
    """The version, the commit where git can tell, and a digest of the package's sources."""
    package = Path(__file__).parent
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    git = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "not read: no git here"
    return {
        "autopar": VERSION,
        "autopar_commit": commit,
        "autopar_sources": f"sha256:{sources.hexdigest()}",
    }
