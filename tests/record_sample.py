"""A record to try records with, and the experiment that it is of."""

from autopar.records.experiment import recorded
from autopar.records.record import Findings
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

NAME = "two_gpus"
PARAMETERS = {"size": 64, "counts": [1, 2], "label": "é"}
_SCALE = 1.0


def experiment(size, counts, label):
    """Stands for one that measures; its samples are whole nanoseconds, as the clock's are."""
    both = Measurement("both", [0.123456789, 1e-9, 0.3 * _SCALE], flops=2.0 * size**3)
    alone = Measurement("GPU1 alone", (1, 2, 3), size_bytes=1 / 7)
    spans = (
        Span("mm", "GPU 0 stream 7", 0.0, 1e-9),
        Span("d2h", "GPU 0 copies to host", 0.000000123, 12.345678901, "copy"),
        Span("mm", "GPU 1 stream 7", 3.0, 3.0),
    )
    return Findings(
        measurements=(both, alone),
        timelines={"both": Timeline(spans, 1.25e-5), "none": Timeline(())},
        checks={"same result": True},
        values={"capacity_cores": 1.0834, "count": len(counts)},
    )


def load(folder, **changes):
    options = {"name": NAME, "parameters": PARAMETERS, "gpus": 2, "folder": folder}
    return recorded(changes.pop("experiment", experiment), **{**options, **changes})
