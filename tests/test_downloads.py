"""The notebooks and scripts of the built site, run as a reader runs them who has downloaded them.

From an empty folder, with autopar installed but no checkout, and without a GPU.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autopar

pytest.importorskip("IPython", reason="IPython comes with the group docs")

_ROOT = Path(__file__).parents[1]
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
def test_it_runs(notebook, installed, tmp_path):
    """Both at once: they time their work, but here only whether they run is of interest."""
    by_ipython = Path(__file__).parent / "programs" / "notebook.py"
    commands = [[by_ipython, notebook], [script_of(notebook)]]
    settings = {"PYTHONPATH": str(installed), "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    settings |= {"PYTHONWARNINGS": "default", "IPYTHONDIR": str(tmp_path / ".ipython")}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOPAR_")} | settings
    started = []
    try:
        for number, command in enumerate(commands):
            folder = tmp_path / f"empty_{number}"
            folder.mkdir()
            with (tmp_path / f"said_{number}").open("wb") as said:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, command)],
                        cwd=folder,
                        env=environment,
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                )
        statuses = [each.wait(_LONGEST_S) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    ends = [(tmp_path / f"said_{n}").read_text(encoding="utf-8")[-2000:] for n in range(2)]
    assert statuses == [0, 0], "\n".join(ends)
