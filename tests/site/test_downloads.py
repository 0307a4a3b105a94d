"""The notebooks and scripts of the built site, run as a reader runs them who has downloaded them.

From an empty folder, with autopar installed but no checkout, and without a GPU.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reader import ROOT, SITE, needs_site

import autopar

_FILES = {path.name: path for path in SITE.glob("_downloads/*/plot_*.*")}
_PAGES = sorted(path.stem for path in _FILES.values() if path.suffix == ".ipynb")

pytestmark = needs_site


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a file in an empty folder, with autopar and its records as an installation has them."""
    installed, folder = (tmp_path_factory.mktemp(name) for name in ("site-packages", "empty"))
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(autopar.__file__).parent, installed / "autopar", ignore=skipped)
    settings = {"PYTHONPATH": str(installed), "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    settings |= {"PYTHONWARNINGS": "default", "IPYTHONDIR": str(folder / ".ipython")}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOPAR_")} | settings
    command = [sys.executable, str(ROOT / "tests" / "programs" / "downloads.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:

        def run(path):
            print(path, file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


def test_all_pages_have_a_notebook_with_the_install_line_and_the_code_of_its_script():
    scripts = {path.stem for path in (ROOT / "gallery").rglob("plot_*.py")}
    assert {*_PAGES} == scripts
    for page in _PAGES:
        first, *others = json.loads(_FILES[f"{page}.ipynb"].read_text("utf-8"))["cells"]
        script = _FILES[f"{page}.py"].read_text("utf-8")
        line = script.partition("\n")[0].removeprefix("# ")
        assert line.startswith("pip install ")
        assert "".join(first["source"]).endswith(f"    %{line}")
        cells = ["".join(cell["source"]) for cell in others if cell["cell_type"] == "code"]
        code = [one for one in ast.parse(script).body if not _is_text(one)]
        assert ast.dump(ast.parse("\n".join(cells))) == ast.dump(ast.Module(code, []))
        texts = ["".join(cell["source"]) for cell in others if cell["cell_type"] == "markdown"]
        assert re.findall(r"(?m):\w+:`.*|^\.\. .*|^\| .*", "\n".join(texts)) == []  # of reST


def _is_text(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.stress  # one way for each page otherwise: both have the same code
@pytest.mark.parametrize("page", _PAGES)
@pytest.mark.parametrize("ending", [".ipynb", ".py"])
def test_it_runs(page, ending, run):
    status, said = run(_FILES[f"{page}{ending}"])
    assert status == 0, said
