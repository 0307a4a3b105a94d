"""The code on the page that holds the book against the hardware: each mistake in a few lines."""

import re
from pathlib import Path

import pytest
import torch

_PAGE = Path(__file__).parents[2] / "docs" / "book_against_hardware.md"
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
_MOST = 7  # lines, with imports


def ran(code, capsys):
    """The names that some code has bound, and what it has printed."""
    names = {}
    exec(compile(code, _PAGE.name, "exec"), names)
    return names, capsys.readouterr().out


def test_each_mistake_takes_a_few_lines_that_compile():
    assert len(_BLOCKS) == 3
    for code in _BLOCKS:
        compile(code, _PAGE.name, "exec")
        assert len(code.strip().splitlines()) <= _MOST, code


@pytest.mark.gpu
def test_the_two_copies_go_into_two_kinds_of_memory(capsys):
    names, said = ran(_BLOCKS[0], capsys)
    assert f"# {said.strip()}" in _BLOCKS[0]
    assert torch.equal(names["alone"], names["beside"])


@pytest.mark.gpu
def test_copies_on_the_stream_of_the_products_are_right(capsys):
    names, _ = ran(_BLOCKS[1], capsys)
    assert torch.equal(names["copies"][-1], names["results"][-1].cpu())


@pytest.mark.gpu(2)
def test_a_bare_wait_ends_before_the_work_of_the_other_gpu(capsys):
    torch.cuda.synchronize(1)
    names, said = ran(_BLOCKS[2], capsys)
    assert not torch.cuda.current_stream(names["x"].device).query()
    assert re.fullmatch(r"\d\.\d{4} s\n", said)
    torch.cuda.synchronize(1)
