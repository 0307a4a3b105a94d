"""Print as JSON the digests of all functions of some scripts, on a Python without torch.

Usage: python digests.py FOLDER_OF_THE_PACKAGE SCRIPT...
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path

package, *scripts = sys.argv[1:]
path = Path(package, "records", "digest.py")  # the rest of the package isn't needed
spec = importlib.util.spec_from_file_location("autopar.records.digest", path)
digest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(digest)
digests = {}
for script in scripts:
    text = Path(script).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            name = f"{Path(script).name}: {node.name}"
            digests[name] = digest.script_digest(text, node.name, {"size": 8})
print(json.dumps(digests))
