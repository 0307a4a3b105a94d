"""The code that pages of text show: it runs, and does what the page says of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autopar import read_trace

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, name=None):
    """The code of a page, or what of it has a name."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    opening = rf"```{{code-block}} python\n:name: {name}" if name else "```python"
    return re.findall(rf"(?ms)^{opening}\n(.*?)^```$", text)


AUDIT = blocks("book_against_hardware")
((PROGRAM,), (MENDED,)) = (
    blocks("five_minutes", f"five-minutes-{it}") for it in ("program", "mended")
)

# What a page runs and shows; :tags: hide some cells, or only what a cell puts out.
SHOWN = re.compile(
    r"(?ms)^```\{code-cell\} python3\n(?!:tags: \[remove-(?:cell|input)\])(?::.*?\n)*(.*?)^```$"
)
CELLS = {
    str(path.relative_to(DOCS)): cells
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("[!_]*/*.md")])
    if (cells := SHOWN.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", CELLS)
def test_the_cells_that_a_page_shows_run_by_themselves(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(CELLS[page]), page, "exec"), {})


def test_cells_that_are_hidden_are_not_among_them():
    hidden = [
        f"```{{code-cell}} python3\n:tags: [remove-{it}]\n\nx\n```" for it in ("cell", "input")
    ]
    shown = "```{code-cell} python3\n:tags: [remove-output]\n\ny\n```"
    assert SHOWN.findall("\n".join([*hidden, shown])) == ["\ny\n"]
    assert {"five_minutes.md", "chapter/4_graphs.md"} <= CELLS.keys()


def with_step(program, mended):
    before, step, after = re.split(r"(def step\(\):\n(?:    .*\n)+)", program)
    assert step.count("\n") == 3
    return f"{before}{mended}\n\n{after}"


def hidden_by(program, folder):
    (folder / "program.py").write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, "program.py"], cwd=folder, check=True, timeout=50)
    return read_trace(folder / "trace.json").hidden()


def test_the_program_of_five_minutes_and_its_mended_step_fit_together():
    compile(with_step(PROGRAM, MENDED), "program.py", "exec")


@pytest.mark.gpu
def test_the_program_of_five_minutes_hides_nothing_until_it_is_mended(tmp_path):
    assert hidden_by(PROGRAM, tmp_path) < 0.1
    assert hidden_by(with_step(PROGRAM, MENDED), tmp_path) > 0.5


def ran(code, capsys):
    """The names that some code has bound, and what it has printed."""
    names = {}
    exec(compile(code, "the audit", "exec"), names)
    return names, capsys.readouterr().out


def test_each_mistake_of_the_audit_takes_a_few_lines_that_compile():
    assert len(AUDIT) == 3
    for code in AUDIT:
        compile(code, "the audit", "exec")
        assert len(code.strip().splitlines()) <= 7, code  # with imports


@pytest.mark.gpu
def test_the_two_copies_go_into_two_kinds_of_memory(capsys):
    names, said = ran(AUDIT[0], capsys)
    assert f"# {said.strip()}" in AUDIT[0]
    assert torch.equal(names["alone"], names["beside"])


@pytest.mark.gpu
def test_copies_on_the_stream_of_the_products_are_right(capsys):
    names, _ = ran(AUDIT[1], capsys)
    assert torch.equal(names["copies"][-1], names["results"][-1].cpu())


@pytest.mark.gpu(2)
def test_a_bare_wait_ends_before_the_work_of_the_other_gpu(capsys):
    torch.cuda.synchronize(1)
    names, said = ran(AUDIT[2], capsys)
    assert not torch.cuda.current_stream(names["x"].device).query()
    assert re.fullmatch(r"\d\.\d{4} s\n", said)
    torch.cuda.synchronize(1)
