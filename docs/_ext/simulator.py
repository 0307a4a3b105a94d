"""Simulator: the directive `simulator`, a copy pipeline in the page that the reader can change.

It takes no arguments. It opens on a recorded run, with what is predicted for it above what was
measured; without JavaScript that is what the page shows. The schedule is computed in
`_static/simulator.js`, by the logic of `prediction`.
"""

from pathlib import Path

import jinja2
import prediction
from docutils import nodes
from docutils.parsers.rst import Directive

import autopar as ap

_EXPERIMENT, _PARTS = "e3_compute_and_copy", ["products", "copies"]
_RUNS = {"two streams": ("Two streams", 2), "one stream": ("One stream", 1)}
_STAGE = {"compute": "compute_s", "copy": "to_host_s"}  # of a recorded span, by its kind
_TEMPLATE = Path(__file__).parents[1] / "_templates" / "simulator.html"
_TITLE = "Copies behind products: predicted, and measured"
_CAPTION = (
    "Predicted from the products alone and the copies alone, each at its fastest. Measured: one "
    "run, from its first product to its last copy."
)


def setting_of(record, streams):
    """What a recorded way is, for a prediction: its parts at their fastest, by chunk."""
    count = record.parameters["count"]
    compute_s, copy_s = (record.measurements[part].min_s / count for part in _PARTS)
    return {
        "chunks": count,
        "compute_s": compute_s,
        "from_host_s": 0.0,
        "to_host_s": copy_s,
        "slots": count,
        "streams": streams,
    }


def run_of(record, way):
    """A recorded way, as the page's script takes it: times from the first start, in seconds."""
    label, streams = _RUNS[way]
    spans = [
        [_STAGE[span.kind], round(span.start_s, 7), round(span.end_s, 7)]
        for span in record.timelines[way].rebased().spans
    ]
    return {"label": label, "setting": setting_of(record, streams), "spans": spans}


def markup(record):
    """The whole of it as HTML: what its script changes, and a figure for where none runs."""
    runs = [run_of(record, way) for way in _RUNS]
    opens = prediction.Prediction(**runs[0]["setting"])
    figure = ap.draw(
        {"predicted": opens.timeline, "measured": record.timelines[next(iter(_RUNS))]},
        title=_TITLE,
        caption=_CAPTION,
        limit_s=record.limit_s(_PARTS, pieces=opens.chunks),
    )
    page = jinja2.Environment(autoescape=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    said = {"chunk": runs[0]["setting"], "origin": record.origin}
    return page.render(runs=runs, figure=figure._repr_html_(), **said)


class Simulator(Directive):
    """The simulator; `freshness` sees to a new record, or code."""

    def run(self):
        self.state.document.settings.env.note_dependency(str(_TEMPLATE))
        return [nodes.raw("", markup(ap.newest_record(_EXPERIMENT)), format="html")]


def setup(app):
    app.add_directive("simulator", Simulator)
