"""Print as JSON the digests of all functions of some scripts, on a Python without torch.

Usage: python digests.py FOLDER_OF_THE_PACKAGE SCRIPT...
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path


def digest_room(package):
    """The room that computes digests, without the rest of the package: it needs no other."""
    (path,) = Path(package).rglob("digest.py")
    spec = importlib.util.spec_from_file_location("autopar.records.digest", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    package, *scripts = sys.argv[1:]
    digest, found = digest_room(package), {}
    for script in scripts:
        text = Path(script).read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                name = f"{Path(script).name}: {node.name}"
                found[name] = digest.script_digest(text, node.name, {"size": 8})
    print(json.dumps({"version": sys.version_info[:2], "digests": found}))


if __name__ == "__main__":
    main()
