"""A function on several ranks: what it returns, and how all end where one fails."""

import atexit
import contextlib
import io
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import autopar as ap
from autopar.distributed import member

_ROOT = Path(__file__).parents[2]
_HOWTO = _ROOT / "docs" / "howto" / "from_one_machine_to_many.md"
_PROGRAM = _ROOT / "tests" / "programs" / "on_ranks_sum.py"
_SMALL = {"width": 48, "layers": 3, "batch": 7, "sizes_mib": [0.005, 0.02], "repeats": 3}
_LATEST_S = 30  # after a rank has died


def fails(device, folder, how, who, alone=False):
    """One rank ends in some way, and the others wait for it, or do something long of their own."""
    pathlib.Path(folder, str(os.getpid())).touch()
    dist.barrier()
    if dist.get_rank() == who:
        pathlib.Path(folder, "died").write_text(str(time.time()))
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
        if how.startswith("exit "):
            os._exit(int(how.removeprefix("exit ")))
        if how == "raised":
            msg = "no such row"
            raise ValueError(msg)
        time.sleep(1000)  # too long
    if alone:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))


def died(gone, how, who, error=RuntimeError, alone=False, **options):
    """The error that a caller gets, once no rank runs any more."""
    with pytest.raises(error) as caught:
        ap.on_ranks(fails, gone.folder, how, who, alone, ranks=2, **options)
    late_s = time.time() - float(Path(gone.folder, "died").read_text())
    assert len(gone()) == 2
    assert late_s < _LATEST_S + options.get("timeout_s", 0)
    return str(caught.value)


def test_gradients_are_equal_though_the_ports_are_taken_and_rows_do_not_divide(gradients_page):
    with socket.create_server(("localhost", 0)) as taken:  # what a user's environment may name
        port = str(taken.getsockname()[1])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MASTER_PORT", port)
            found = gradients_page["gradients_of_ranks"](ranks=2, device="cpu", **_SMALL)
    ways = {one.label for one in found.measurements if not one.label.endswith(" alone")}
    assert len(ways) == 6
    checked = {check.partition(":")[0] for check in found.checks}
    assert ways <= checked
    assert all(found.checks.values()), found.checks
    assert len(found.checks) == 2 * len(ways) + 1


_ENDED, _STRESS = "its process ended itself", pytest.mark.stress


@pytest.mark.parametrize(
    ("how", "who", "alone", "words"),
    [
        ("raised", 1, True, "ValueError: no such row"),
        ("SIGKILL", 1, False, "its process was ended by SIGKILL"),
        ("exit 0", 0, False, rf"{_ENDED} \(exit 0\) before the function returned; expected"),
        pytest.param("exit 0", 1, True, rf"{_ENDED} \(exit 0\)", marks=_STRESS),
        pytest.param("exit 3", 0, False, rf"{_ENDED} \(exit 3\)", marks=_STRESS),
        # So the agent ends the others, but here somebody else did.
        pytest.param("SIGTERM", 1, False, "its process was ended by SIGTERM", marks=_STRESS),
        pytest.param("raised", 1, False, "ValueError: no such row", marks=_STRESS),
    ],
)
def test_a_rank_that_fails_ends_the_others_though_they_wait_for_it_or_for_none_and_is_named(
    gone, how, who, alone, words
):
    message = died(gone, how, who, alone=alone)
    assert re.search(f"rank {who} failed: {words}", message)
    assert ("in fails" in message) == (how == "raised")  # by the traceback


@pytest.mark.stress
def test_where_all_ranks_end_before_they_return_one_is_named():
    for end, words in ((os._exit, r"its process .*exit 0"), (sys.exit, "SystemExit: 0")):
        with pytest.raises(RuntimeError, match=rf"rank \d failed: {words}"):
            ap.on_ranks(lambda _, end=end: end(0), ranks=2)


@pytest.mark.stress
def test_ranks_that_take_too_long_are_ended(gone):
    message = died(gone, "sleeps", 1, TimeoutError, timeout_s=40.0)
    assert "not done in 40 s" in message


@pytest.mark.stress
@pytest.mark.parametrize(("end", "number"), [(os.kill, signal.SIGKILL), (os.killpg, signal.SIGINT)])
def test_ranks_end_with_the_process_that_has_started_them(gone, tmp_path, end, number):
    """Also where Ctrl-C in a terminal goes to all of its processes, and ranks can't hear it."""
    program = tmp_path / "caller.py"
    program.write_text(
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "import autopar as ap\nfrom test_launch import fails\n"
        "ap.on_ranks(fails, sys.argv[2], 'sleeps', 0, ranks=2)\n"
    )
    paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT / "tests")])
    command = [sys.executable, program, str(Path(__file__).parent), gone.folder]
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(command, env=environment, start_new_session=True) as caller:
        while not Path(gone.folder, "died").exists():  # it sleeps, and the other waits
            assert caller.poll() is None
            time.sleep(0.1)
        end(caller.pid, number)
    assert len(gone()) == 2


def prints_and_registers(device, path):
    atexit.register(pathlib.Path(path).touch)
    print("done \N{RIGHTWARDS ARROW}")


def test_what_ranks_print_and_register_for_their_end_comes_also_through_a_poor_terminal(
    monkeypatch, tmp_path
):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    ap.on_ranks(prints_and_registers, str(tmp_path / "ended"), ranks=1)
    sys.stdout.flush()
    assert printed.getvalue() == b"done \\u2192\n"
    assert (tmp_path / "ended").exists()


class OnlyThere:
    """Can't be read where it was not made."""

    def __reduce__(self):
        return only_in, (os.getpid(),)


def only_in(process):
    if process != os.getpid():
        raise LookupError(process)
    return OnlyThere()


def test_what_can_only_be_read_in_a_rank_is_refused_by_the_functions_name():
    with pytest.raises(RuntimeError, match=r"on 1 ranks: what it returned can't be read here"):
        ap.on_ranks(lambda _: OnlyThere(), ranks=1)


def torchrun(line, **places):
    """The words of a line of the how-to, with what it leaves open."""
    program, *words = shlex.split(line.replace("\\\n", " "))
    assert program == "torchrun"
    for place, value in places.items():
        words = [re.sub(rf"\b{place}\b", value, word) for word in words]
    return [sys.executable, "-m", "torch.distributed.run", *words]


def lines_of_the_howto():
    return re.findall(r"^torchrun (?:\\\n|.)*$", _HOWTO.read_text(encoding="utf-8"), re.M)


def run_both(commands):
    """Run programs at the same time; what each printed and its exit status."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    given = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [subprocess.Popen(command, text=True, **given) for command in commands]
    return [(one.communicate(timeout=100)[0], one.returncode) for one in running]


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.stress
def test_two_agents_meet_by_the_line_of_the_howto():
    (line,) = [line for line in lines_of_the_howto() if "--nnodes 2" in line]
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 1")
    places = {"HOST": "localhost", "29500": free_port(), "FILE": str(_PROGRAM)}
    told = run_both([torchrun(line, **places)] * 2)
    assert [status for _, status in told] == [0, 0], told
    said = "".join(words for words, _ in told)
    assert said.count("[[(0, 41), (1, 41)], [1]]") == 1  # the first rank tells it, and no other


@pytest.mark.stress
def test_a_page_runs_by_torchrun(tmp_path):
    page = _ROOT / "gallery" / "distributed" / "plot_1_add_gradients_up_during_backward.py"
    (line,) = [line for line in lines_of_the_howto() if "--nnodes" not in line]
    with contextlib.chdir(tmp_path):
        ((said, status),) = run_both([torchrun(line, FILE=str(page))])
    assert status == 0, said
    claims = page.read_text(encoding="utf-8").count("ap.claim(")
    assert said.count("Claim ") == claims  # the first rank prints, and no other


@pytest.mark.stress
def test_a_port_that_is_taken_is_an_error_of_torchrun():
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = f"torchrun --nproc-per-node 1 --master-addr localhost --master-port {port} FILE"
        ((said, status),) = run_both([torchrun(line, FILE=str(_PROGRAM))])
    assert status
    assert re.search("address already in use|EADDRINUSE", said)


@pytest.fixture
def by_torchrun(monkeypatch):
    """This process as the only one that torchrun has started."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    store = dist.HashStore()
    monkeypatch.setattr(member, "_meeting_place", lambda: (store, 0, 1))


def test_a_program_of_torchrun_is_a_rank_itself(by_torchrun):
    def own(device):
        return str(device), os.getpid(), dist.get_world_size()

    for _ in range(2):  # each call has a group of its own
        assert ap.on_ranks(own, ranks=1) == [("cpu", os.getpid(), 1)]
    assert not dist.is_initialized()


def test_too_few_ranks_of_torchrun_are_refused(by_torchrun):
    with pytest.raises(ValueError, match=r"needs 2 ranks, and torchrun has started 1.*-node 2"):
        ap.on_ranks(fails, ranks=2)


def test_a_function_takes_what_it_uses_with_it_and_leaves_nothing(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    _LATEST_S = "of the function around"  # not the module's

    class Parts(list):
        """What only this process knows."""

    def made(device, *_):
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
        return Parts([_LATEST_S, bytes(20 << 20)])

    for parts in ap.on_ranks(made, ranks=2):
        assert type(parts) is Parts
        assert parts == ["of the function around", bytes(20 << 20)]
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    with pytest.raises(TypeError, match=r"made, .* can't be given .* '_thread.lock'"):
        ap.on_ranks(made, threading.Lock(), ranks=2)
    assert not [*tmp_path.iterdir()]


@pytest.mark.stress
def test_modules_are_those_that_the_caller_finds_and_ranks_read_no_input(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text(f"def name(device):\n    return {name!r}\n")
    script = tmp_path / "here" / "script.py"
    script.write_text(
        "import os\nimport beside\nimport autopar as ap\n"
        "print(ap.on_ranks(beside.name, ranks=1), ap.on_ranks(lambda _: os.read(0, 1), ranks=1))\n"
    )
    with contextlib.chdir(tmp_path / "there"):
        ((said, status),) = run_both([[sys.executable, script]])
    assert (status, said.splitlines()[-1]) == (0, "['here'] [b'']"), said


def test_what_no_rank_could_run_is_refused():
    with pytest.raises(ValueError, match="'cuda' for 1000 ranks; expected a GPU for each, of"):
        ap.on_ranks(fails, ranks=1000, device="cuda")
    with pytest.raises(TypeError, match="fn is of type int; expected a function, which each rank"):
        ap.on_ranks(3, ranks=2)
    with pytest.raises(ValueError, match="device is 'tpu'"):
        ap.on_ranks(fails, ranks=2, device="tpu")
