"""A function called in a new process: its result, its surroundings, its errors."""

import asyncio
import functools
import importlib
import os
import sys
from math import floor
from pathlib import Path
from urllib.parse import quote

import pytest

from autopar import csan_reports, in_fresh_process

ONE = 1


add_one = lambda x: x + ONE  # noqa: E731


def plus_one(x):
    return add_one(x)


async def doubled(x):
    return 2 * x


def counted(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)

    return call


@counted
def summed(numbers, name):
    total = sum(plus_one(number) for number in numbers)
    return [asyncio.run(doubled(total)), os.environ.get(name), quote("a b")]


NONE, MOST = None, float("inf")


def random(path: Path):
    """Called like a module of the standard library, which others import."""
    import tempfile

    path = Path(path)
    path.write_text(f"{path.exists()}")
    return [tempfile.gettempdir() != "", path.read_text(), floor(2.5), NONE, MOST > 1e300]


def process():
    import os
    import sys

    imported = "autopar" in sys.modules
    import autopar

    return [os.getpid(), sys.executable, imported, autopar.__file__]


def noisy():
    print("something else first")
    return 1


def broken():
    msg = "no such luck"
    raise ValueError(msg)


def aborts_as_it_ends():
    import atexit
    import os

    atexit.register(os.abort)
    return "there"


def again_and_again(number):
    return number if number > 2 else once_more(number)


def once_more(number):
    return again_and_again(number + 1)


def test_it_runs_elsewhere_with_what_it_uses_and_the_environment_that_it_is_given(tmp_path):
    given = {"environment": {"AUTOPAR_TEST": "on"}}
    assert in_fresh_process(summed, [1, 2], "AUTOPAR_TEST", **given) == [10, "on", "a%20b"]
    assert "AUTOPAR_TEST" not in os.environ
    assert in_fresh_process(again_and_again, 0) == 3, "functions may call each other"
    assert in_fresh_process(random, str(tmp_path / "a")) == [True, "False", 2, None, True]


_ANNOTATED = """
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

def annotated(x: Path | None = None):
    @dataclass
    class Size:
        number: int
        unit: ClassVar[str] = "MB"
    return [len(fields(Size)), [str(one) for one in annotated.__annotations__.values()]]
"""


@pytest.mark.parametrize(("future", "x"), [("", "pathlib.Path"), ("annotations", "Path")])
def test_annotations_are_what_they_are_in_the_module(future, x, tmp_path, monkeypatch):
    """Evaluated or texts; nothing else in the function uses their names."""
    source = f"from __future__ import {future}\n" * bool(future) + _ANNOTATED
    (tmp_path / f"with_{future}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    annotated = importlib.import_module(f"with_{future}").annotated
    assert annotated() == in_fresh_process(annotated) == [1, [f"{x} | None"]]


def test_it_is_another_process_of_this_python_that_finds_this_autopar():
    number, python, imported, package = in_fresh_process(process)
    assert number != os.getpid()
    assert (python, package) == (sys.executable, sys.modules["autopar"].__file__)
    assert not imported


_ROUND = """import subprocess, sys
done = subprocess.run(sys.argv[1:])
print("after it")
sys.exit(done.returncode)
"""


@pytest.mark.parametrize("under", [[], [sys.executable, "-c", _ROUND]])
def test_what_it_prints_is_not_its_result_but_tells_an_error(under):
    assert in_fresh_process(noisy, under=under) == 1
    with pytest.raises(RuntimeError, match=r"(?s)broken failed .*exit 1.*no such luck"):
        in_fresh_process(broken, under=under)


def test_how_a_process_ends_matters_only_under_a_command_which_has_to_run_it():
    assert in_fresh_process(aborts_as_it_ends) == "there"
    with pytest.raises(RuntimeError, match="aborts_as_it_ends failed"):
        in_fresh_process(aborts_as_it_ends, under=[sys.executable, "-c", _ROUND])
    under = [sys.executable, "-c", "print('no device')"]  # which does not run it
    with pytest.raises(RuntimeError, match=r"(?s)noisy failed .*exit 0.*no device"):
        in_fresh_process(noisy, under=under)


@pytest.mark.parametrize("fn", [lambda: 1, len, 3])
def test_what_has_no_source_of_its_own_is_refused(fn):
    ONE = 2  # beside the module's

    def within():
        return ONE

    with pytest.raises(TypeError, match=r"within uses ONE of the function around it, .* Pass what"):
        in_fresh_process(within)
    with pytest.raises(TypeError, match=r"plus_one was wrapped by a call, .* decorate it by @"):
        in_fresh_process(counted(plus_one), 1)
    with pytest.raises(TypeError, match="fn is .*; expected a function that is written with def"):
        in_fresh_process(fn)
    with pytest.raises(TypeError, match=r"under is .*; expected words"):
        in_fresh_process(noisy, under="nice")


def reported():
    from torch.cuda._sanitizer import CUDASanitizerErrors

    raise CUDASanitizerErrors([])


def reported_at_last():
    """As what waits for a task that was ended, and says much."""
    try:
        reported()
    except Exception as error:
        late = RuntimeError("not run\n" * 20)
        raise late from error


def pretended():
    raise RuntimeError("\ntorch.cuda._sanitizer.CUDASanitizerErrors: detected 1 errors")


def sanitized():
    assert os.environ["TORCH_CUDA_SANITIZER"] == "1"


def test_what_csan_reports_is_told_from_what_runs_and_from_what_fails():
    assert csan_reports(reported)
    assert csan_reports(reported_at_last)
    assert not csan_reports(sanitized)
    for other, words in ((broken, "no such luck"), (pretended, "RuntimeError: \ntorch.cuda")):
        with pytest.raises(RuntimeError, match=words):
            csan_reports(other)
