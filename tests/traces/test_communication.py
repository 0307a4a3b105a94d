"""What communicates, by the names that libraries give their kernels; and what only sounds so."""

from pathlib import Path

import pytest
from trace_builder import work_of
from trace_files import kernel

from autopar.traces.chrome import Events
from autopar.traces.communication import COMMUNICATION, ends_together

_TABLE = Path(__file__).parents[1] / "trace_data" / "kernels.txt"
_KERNELS = [
    line.split(": ", 1) for line in _TABLE.read_text(encoding="utf-8").splitlines()[3:] if line
]


@pytest.mark.parametrize(("sort", "name"), _KERNELS, ids=[name for _, name in _KERNELS])
def test_libraries_are_known_by_the_names_of_their_kernels(sort, name):
    assert bool(COMMUNICATION.search(name)) is (sort != "sounds")
    assert ends_together(name) is (sort == "together")


def test_the_collective_says_more_than_the_kernel():
    message = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    for name in ("all_to_allv", "barrier", "reduce_scatter_tensor_coalesced", "all_gather"):
        assert ends_together(message, name)
    for name in ("send", "recv", "broadcast", "reduce", "gather"):
        assert not ends_together("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", name)


def test_a_name_of_any_length_is_looked_at_in_no_time():
    for part in ("one_shot", "a", "allreduce_", "a::", "(anonymous namespace)::", "void "):
        assert not COMMUNICATION.search("x" + part * 20_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "allreduce of group 0, ranks [0, 1]"),
        ({"Process Group Ranks": None}, "allreduce of group 0, ranks unknown"),
        ({"Process Group Name": None}, ""),
        ({"Process Group Name": 0}, ""),
        ({"Collective name": ["allreduce"]}, ""),
        ({"Collective name": ""}, ""),
        ({"Process Group Name": "\ud83d"}, "allreduce of group \ufffd, ranks [0, 1]"),
    ],
)
def test_the_collective_is_read_as_far_as_the_trace_tells(arguments, said):
    told = {"Collective name": "allreduce", "Process Group Name": "0"}
    told |= {"Process Group Ranks": "[0, 1]", "Group size": 2} | arguments
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 10.0, 5.0),
        kernel("checkForNaN", 20.0, 5.0),
    ]
    for event in events:
        event["args"] |= told
    work = Events(events).trace({})
    assert [activity.collective for activity in work_of(work)] == [said, ""]
