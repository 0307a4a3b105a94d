"""Every Python that is installed here reads the same digests off the same code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autopar as ap

_PACKAGE = Path(ap.__file__).parent
_GALLERY = sorted((Path(__file__).parents[2] / "gallery").rglob("plot_*.py"))


def other_pythons():
    """Pythons from 3.11 on that are installed here, but for this one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for minor in {*range(11, 20)} - {sys.version_info.minor}:
        installed = [*pyenv.glob(f"3.{minor}.*/bin/python"), shutil.which(f"python3.{minor}")]
        path = next(filter(None, installed), None)
        if path and not subprocess.run([path, "--version"], capture_output=True).returncode:
            yield path


@pytest.mark.stress
def test_every_python_here_gives_the_same_digests(run_program, tmp_path):
    """Of pages, of a script with odd f-strings, and without torch at hand."""
    odd = tmp_path / "odd.py"
    odd.write_text(
        '''def odd(x, w=3, p=2, é=1):
    y = f"{x!r:>{w}.{p}} {{}} é{é}é" f'{x=}' "a" "b"
    y += rf"""a\\n {x}
        b""" + f"{x:}{f'{x}'}"
    match x:
        case {"a": [1, *rest]} | [_, 2, *rest] if rest:
            y = [*(y for z in rest if z), -1, 1j, b"\\x00", "\\ud800", ..., None, 1_000]
    try:
        return lambda *a, k=w, **kw: (yield)
    except* ValueError as error:
        raise TypeError from error
''',
        encoding="utf-8",
    )

    def digests(python):
        done = run_program("digests.py", _PACKAGE, *_GALLERY[::3], odd, python=python)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    others = [*other_pythons()]
    if not others:
        pytest.skip("no other Python from 3.11 on is installed here")
    expected = digests(sys.executable)
    assert len(expected) > 30
    for python in others:
        assert digests(python) == expected, python
