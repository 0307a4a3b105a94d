"""The notebooks and scripts of the built site, run as a reader runs them who has downloaded them.

From an empty folder, with autopar installed but no checkout, and without a GPU.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autopar

pytest.importorskip("IPython", reason="IPython comes with the group docs")

_ROOT = Path(__file__).parents[2]
_DOWNLOADS = _ROOT / "docs" / "_build" / "html" / "_downloads"
_PAGES = sorted(_DOWNLOADS.glob("*/plot_*.ipynb"), key=lambda path: path.name)
_LONGEST_S = 110  # ten times what a page takes

pytestmark = pytest.mark.skipif(not _PAGES, reason="no site in docs/_build: run `nox -s docs`")
each_page = pytest.mark.parametrize("notebook", _PAGES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with autopar and its records, as an installation has: no gallery is near."""
    folder = tmp_path_factory.mktemp("site-packages")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(autopar.__file__).parent, folder / "autopar", ignore=skipped)
    return folder


def script_of(notebook):
    (script,) = _DOWNLOADS.glob(f"*/{notebook.stem}.py")
    return script


def test_all_pages_can_be_downloaded():
    scripts = {path.stem for path in (_ROOT / "gallery").rglob("plot_*.py")}
    assert {path.stem for path in _PAGES} == scripts


@each_page
def test_it_begins_with_the_install_line(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    first, *_ = script_of(notebook).read_text(encoding="utf-8").splitlines()
    line = first.removeprefix("# ")
    assert line.startswith("pip install ")
    assert cells[0]["cell_type"] == "code"
    assert "".join(cells[0]["source"]).endswith(f"    %{line}")


@each_page
def test_the_notebook_has_the_code_of_the_script(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"][1:]  # but the install line
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script = ast.parse(script_of(notebook).read_text(encoding="utf-8"))
    without_prose = [each for each in script.body if not _is_text(each)]
    assert list(map(ast.dump, ast.parse(code).body)) == list(map(ast.dump, without_prose))


def _is_text(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def by_ipython(notebook):
    return [Path(__file__).parents[1] / "programs" / "notebook.py", notebook]


def by_python(notebook):
    return [script_of(notebook)]


@pytest.mark.stress  # one way for each page otherwise: both have the same code
@pytest.mark.parametrize("page", [path.stem for path in _PAGES])
@pytest.mark.parametrize("way", [by_ipython, by_python])
def test_it_runs(page, way, installed, tmp_path):
    (notebook,) = _DOWNLOADS.glob(f"*/{page}.ipynb")
    settings = {"PYTHONPATH": str(installed), "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    settings |= {"PYTHONWARNINGS": "default", "IPYTHONDIR": str(tmp_path / ".ipython")}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOPAR_")} | settings
    folder = tmp_path / "empty"
    folder.mkdir()
    command = [sys.executable, *map(str, way(notebook))]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LONGEST_S
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
