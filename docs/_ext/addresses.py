"""Addresses: where the project is published, which `pyproject.toml` says for the whole site.

Links there lead nowhere until it is. A build that knows of no published repository leaves them out.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_URLS = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["urls"]
REPOSITORY = _URLS["Source"]
SITE = f"{_URLS['Documentation']}en/latest/"
SOURCES = f"{REPOSITORY}/blob/main"
INSTALL = f'pip install "autopar @ git+{REPOSITORY}"'
# Colab opens notebooks from a repository: the workflow `cpu` keeps them on a branch of this name.
COLAB = f"https://colab.research.google.com/github{urlsplit(REPOSITORY).path}/blob/notebooks"


def is_published(folder=_PROJECT.parent):
    """Whether the checkout's origin is the project's repository, or READTHEDOCS builds."""
    if os.environ.get("READTHEDOCS"):
        return True
    if not (git := shutil.which("git")):
        return False
    asked = [git, "-C", str(folder), "remote", "get-url", "origin"]
    origin = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    where = urlsplit(REPOSITORY)
    return bool(re.search(rf"\b{where.hostname}[:/]+{where.path[1:]}(\.git)?/?\s*$", origin))


PUBLISHED = is_published()
_FROM_HERE = f"""
```sh
pip install .
```
Run this in the folder from which this site was built, the one with `pyproject.toml`. Once the
project is published, `{INSTALL}` does the same without that folder."""
INSTALL_LINES = f"```sh\n{INSTALL}\n```" if PUBLISHED else _FROM_HERE
_CLONE = f"```sh\ngit clone {REPOSITORY}\ncd autopar\npip install .\n```"
CHECKOUT_LINES = _CLONE if PUBLISHED else _FROM_HERE
