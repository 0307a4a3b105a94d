"""Inventories: link to other projects' references without asking their servers during a build."""

import zlib
from pathlib import Path


def write_inventories(source: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Turn a text file into Sphinx inventories, and return an `intersphinx_mapping`.

    A line `[name] address` opens a project; each line below it is `role name page`, where a
    `$` at the end of the page stands for the name, as in Sphinx's own format.
    """
    addresses: dict[str, str] = {}
    entries: dict[str, list[str]] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            project, address = line[1:].split("] ")
            addresses[project], entries[project] = address, []
        elif line and not line.startswith("#"):
            role, name, page = line.split()
            entries[project].append(f"{name} {role} 1 {page} -\n")

    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, address in addresses.items():
        header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        path = folder / f"{project}.inv"
        body = zlib.compress("".join(entries[project]).encode())
        path.write_bytes(header.encode() + body)
        mapping[project] = (address, str(path))
    return mapping
