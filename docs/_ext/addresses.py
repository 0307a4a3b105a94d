"""Addresses: where the project is published, which `pyproject.toml` says for the whole site."""

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
