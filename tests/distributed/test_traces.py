"""The ranks' traces, told by `python -m autopar timeline` and by the page on gradients alike."""

import json

import pytest

import autopar as ap
from autopar.distributed.steps import SEEN, communication
from autopar.records.store import FOLDER, load_record
from autopar.traces.command import DONE, Options, inspect

_RECORDS = sorted(FOLDER.glob("*/d1_gradients.json"))


def by_command(files, range_name, tmp_path):
    """For each rank's trace, how much communication is exposed in a range, by the command."""
    output = tmp_path / "figures.json"
    _, status = inspect(files, Options(range_name=range_name, outputs={"json": output}))
    assert status == DONE
    told = []
    for trace in json.loads(output.read_text(encoding="utf-8"))["traces"]:
        (gpu,) = trace["gpus"].values()
        exposed_s, hidden_s = (gpu[name]["communication"] for name in ("exposed_s", "hidden_s"))
        told.append((exposed_s, exposed_s / (exposed_s + hidden_s)))
    return told


def test_figures_of_the_page_are_those_of_the_command(request, tmp_path):
    files = sorted((request.config.rootpath / "tests" / "trace_data").glob("allreduce_rank*"))
    told = by_command(files, "step", tmp_path)
    for file, (exposed_s, share) in zip(files, told, strict=True):
        steps = ap.read_trace(file).within("step")
        spans = tuple(span for step in steps for span in step.spans)
        figures = communication(ap.Timeline(spans))
        assert figures["exposed, s"] == pytest.approx(exposed_s, rel=1e-6)
        assert figures["exposed, share"] == pytest.approx(share, rel=1e-6)


def same_as_the_page(found, tmp_path):
    """Hold what a run has kept of each step against what the command says of its traces."""
    files = []
    for name, content in sorted(found.files.items()):
        files.append(tmp_path / name)
        files[-1].write_bytes(content)
    assert len(files) == 2
    last = ": exposed, share"
    steps = [name.removesuffix(last) for name in found.values if name.endswith(last)]
    assert len(steps) == 4 * SEEN
    for step in steps:
        told = by_command(files, step, tmp_path)
        # A range ends where its host has waited, which is up to some microseconds after the work.
        exposed_s, share = map(max, zip(*told, strict=True))
        assert found.values[f"{step}: exposed, s"] == pytest.approx(exposed_s, rel=0.01), step
        assert found.values[f"{step}{last}"] == pytest.approx(share, abs=0.01), step


def test_each_record_is_told_by_the_command_alike(tmp_path):
    assert _RECORDS
    for number, path in enumerate(_RECORDS):
        (tmp_path / str(number)).mkdir()
        same_as_the_page(load_record(path), tmp_path / str(number))


@pytest.mark.gpu(2)
def test_gradients_and_traces_of_two_gpus(gradients_page, tmp_path):
    small = {"width": 1024, "layers": 6, "batch": 515, "sizes_mib": [4, 24], "repeats": 3}
    found = gradients_page["gradients_of_ranks"](ranks=2, device="cuda", **small)
    assert all(found.checks.values()), found.checks
    assert len(found.checks) == 13
    same_as_the_page(found, tmp_path)
    timeline = found.timelines["buckets of 4 MiB"]
    for rank in range(2):  # each on a GPU of its own, with lanes by stream, or by kind of copy
        spans = [span for span in timeline.spans if span.lane.startswith(f"rank {rank} ")]
        assert {span.lane[: len("rank 0 GPU 0")] for span in spans} == {f"rank {rank} GPU {rank}"}
        sent = [span for span in spans if span.kind == "communication"]
        computed = [span for span in spans if span.kind == "compute"]
        assert not {span.lane for span in sent} & {span.lane for span in computed}  # side streams
        assert len(sent) == 6  # a bucket for each layer
        assert sent[0].start_s < computed[-1].start_s  # it goes while others are computed
    assert {lane[: len("rank 0")] for lane in timeline.lanes} == {"rank 0", "rank 1"}
    after = f"{gradients_page['AFTER']}, step "
    shares = [found.values[f"{after}{i}: exposed, share"] for i in range(SEEN)]
    assert min(shares) > 0.99  # when it begins, nothing is left to compute
