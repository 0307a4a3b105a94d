"""Nsight: commands, reports and counters, with stand-ins for both tools on the path."""

import os

import pytest
from trace_files import write_nsys

import autopar as ap
from autopar.records import nsight
from autopar.records.experiment import recorded

_NSYS = """#!/bin/sh
case $1 in
profile) for word; do case $word in --output=*) touch "${word#--output=}.nsys-rep";; esac; done
    while [ "${1#--}" != "$1" ] || [ "$1" = profile ]; do shift; done
    exec "$@" ;;
export) for word; do case $word in --output=*) cp "$EXPORT" "${word#--output=}";; esac; done ;;
esac
"""
_NCU = """#!/bin/sh
for word; do [ "$last" = --log-file ] && log=$word; last=$word; done
cat > "$log" <<'END'
==PROF== a message
%s
END
while [ "$1" != --log-file ]; do shift; done; shift 2
exec "$@"
"""
_TABLE = """"ID","Stream","Metric Name","Metric Unit","Metric Value"
"0","7","Duration","us","2.5"
"1","7","Duration","usecond","1,000"
"1","7","Memory Throughput","%","59.5"
"1","7","Function Cache","","CachePreferNone"
"2","8","Duration","ms","3"
"""


def doubled(x):
    return 2 * x


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a program on the path."""

    def put(name, text):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def test_a_report_is_exported_and_cut_to_its_ranges(tool, tmp_path, monkeypatch):
    write_nsys(tmp_path / "whole.sqlite")
    monkeypatch.setenv("EXPORT", str(tmp_path / "whole.sqlite"))
    tool("nsys", _NSYS)
    export = tmp_path / "x.trace"
    assert nsight.systems(doubled, 21, export=export) == 42
    whole = ap.read_trace(export)
    small = ap.read_trace(nsight.cut(export, ["forward"], tmp_path / "small.sqlite"))
    assert small.within("forward")[0].spans == whole.within("forward")[0].spans != ()
    assert 0 < len(small.spans) <= len(whole.spans)
    with pytest.raises(KeyError, match="x.trace has no range backward"):
        nsight.cut(export, ["backward"], tmp_path / "other.sqlite")


def test_counters_are_of_the_longest_kernel_of_each_stream(tool):
    tool("ncu", _NCU % _TABLE)
    first, second = nsight.compute(doubled, 1)
    assert first == pytest.approx({"Duration": 1e-3, "Memory Throughput": 0.595})
    assert second == pytest.approx({"Duration": 3e-3})


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", _NCU % "ERR_NVGPUCTRPERM"])
def test_a_tool_that_does_not_work_is_told_from_results_that_are_wrong(tool, text, capsys):
    tool("ncu", text)
    with pytest.raises(nsight.ToolError, match="ncu does not work on this machine"):
        nsight.compute(doubled, 1)

    def experiment(sizes):
        return ap.Findings([], values={"a": len(nsight.compute(doubled, sizes))})

    name = "e3_compute_and_copy"  # any record, of whatever code
    with pytest.raises(ap.RecordError, match="parameters"):
        recorded(experiment, name=name, parameters={"sizes": [1]}, gpus=0, programs=["ncu"])
    assert "ncu does not work on this machine" in capsys.readouterr().out
