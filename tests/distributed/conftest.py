"""What tests of several ranks share: the page's functions, and processes that must be gone."""

import ast
import contextlib
import os
import time
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "gallery"
GONE_S = 30


def definitions(page):
    """What a page imports and defines, before it measures anything."""
    namespace = {"__name__": page.stem}
    for node in ast.parse(page.read_text(encoding="utf-8")).body:
        calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
        defines = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
        if defines or (isinstance(node, ast.Assign) and not calls):
            with contextlib.suppress(NameError):  # of what is measured
                exec(compile(ast.Module([node], []), str(page), "exec"), namespace)
    return namespace


@pytest.fixture(scope="session")
def gradients_page():
    return definitions(GALLERY / "distributed" / "plot_1_add_gradients_up_during_backward.py")


def is_there(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def gone(tmp_path):
    """A folder where ranks leave their process numbers, and a wait until none of them runs."""

    def wait():
        files = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
        pids = [int(path.name) for path in files]
        until_s = time.monotonic() + GONE_S
        while (left := [pid for pid in pids if is_there(pid)]) and time.monotonic() < until_s:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, 9)
        for path in files:
            path.unlink()
        assert pids, "no rank has begun"
        assert not left, f"of {pids} these still run: {left}"
        return pids

    wait.folder = str(tmp_path)
    return wait
