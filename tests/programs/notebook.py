"""Run a notebook's cells as IPython does, in the current folder; any error ends it.

Usage: python notebook.py NOTEBOOK
"""

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

notebook = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
shell = InteractiveShell.instance()
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]), store_history=True)
        if not done.success:
            sys.exit(f"{type(done.error_in_exec or done.error_before_exec).__name__} in this cell")
