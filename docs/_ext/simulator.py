"""Simulator: the directive `simulator`, a copy pipeline in the page that the reader can change.

It takes no arguments. It opens on a recorded run, with what is predicted for it above what was
measured; without JavaScript that is what the page shows. The schedule is computed in
`_static/simulator.js`, by the logic of `prediction`.
"""

import html
import json

import prediction
from docutils import nodes
from docutils.parsers.rst import Directive

import autopar as ap
from autopar.records.store import FOLDER

_EXPERIMENT, _PARTS = "e3_compute_and_copy", ["products", "copies"]
_RUNS = {"two streams": ("Two streams", 2), "one stream": ("One stream", 1)}
_STAGE = {"compute": "compute_s", "copy": "to_host_s"}  # of a recorded span, by its kind
_SLOTS = (1, 2, 3, 4, 8)
_MOST_CHUNKS, _MOST_TIMES = 64, 4  # as many times as long as what was recorded
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


def options(pairs):
    return "".join(f'<option value="{value}">{words}</option>' for value, words in pairs)


def choice(label, name, pairs):
    return f'<label>{label} <select name="{name}">{options(pairs)}</select></label>'


def slider(label, name, least, most, value, step):
    # The words beside it are for the eye: the slider says its value itself.
    return (
        f'<label><span>{label}</span> <input type="range" name="{name}" min="{least}" '
        f'max="{most:.6g}" value="{value:.6g}" step="{step}">'
        f'<span class="autopar-value" aria-hidden="true"></span></label>'
    )


def form(runs):
    chunk = runs[0]["setting"]
    most_ms = 1e3 * _MOST_TIMES * chunk["compute_s"]
    times = {
        "compute_s": ("Computing", chunk["compute_s"]),
        "from_host_s": ("Copy to GPU", chunk["to_host_s"]),
        "to_host_s": ("Copy to host", chunk["to_host_s"]),
    }
    labels = [(number, run["label"]) for number, run in enumerate(runs)]
    ways = [
        ("to_host_s", "to the host"),
        ("from_host_s", "to the GPU"),
        ("from_host_s to_host_s", "both ways"),
    ]
    streams = [
        (1, "1, for everything"),
        (2, "2, one to copy"),
        (3, "3, one each way"),
    ]
    return "\n".join(
        [
            '<form hidden data-live aria-label="A copy pipeline to change">',
            choice("Recorded run", "run", [*labels, ("", "none")]),
            choice("Streams", "streams", streams),
            choice("Copies", "ways", ways),
            choice(
                "Slots, or buffers",
                "slots",
                [*zip(_SLOTS, _SLOTS, strict=True), ("all", "one a chunk")],
            ),
            slider("Chunks", "chunks", 1, _MOST_CHUNKS, chunk["chunks"], 1),
            *(
                slider(label, name, 0.05, most_ms, 1e3 * seconds, "any")
                for name, (label, seconds) in times.items()
            ),
            "</form>",
        ]
    )


def tile(words, part):
    return f'<div><dt>{words}</dt><dd data-part="{part}"></dd></div>'


def markup(record):
    """The whole of it as HTML: form and picture, hidden until the script fills them; a figure."""
    runs = [run_of(record, way) for way in _RUNS]
    opens = prediction.Prediction(**runs[0]["setting"])
    figure = ap.draw(
        {"predicted": opens.timeline, "measured": record.timelines[next(iter(_RUNS))]},
        title=_TITLE,
        caption=_CAPTION,
        limit_s=record.limit_s(_PARTS, pieces=opens.chunks),
    )
    origin = html.escape(record.origin)
    picture = '<svg data-part="picture" width="100%" role="img" fill="currentColor" font-size="12"'
    named = 'aria-labelledby="autopar-simulator-title autopar-simulator-desc"'
    tiles = {
        "makespan": "predicted makespan",
        "limit": "limit",
        "ratio": "makespan over limit",
        "measured": "measured",
    }
    data = json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            '<div class="autopar-simulator">',
            f'<script type="application/json">{data}</script>',
            form(runs),
            '<dl hidden data-live class="autopar-times simple">',
            *(tile(words, part) for part, words in tiles.items()),
            "</dl>",
            '<figure hidden data-live class="autopar-figure">',
            f'{picture} xmlns="http://www.w3.org/2000/svg" {named}></svg>',
            '<figcaption><p role="status" data-part="words"></p>',
            f'<p data-part="legend">Wide bars: predicted. Narrow bars beneath: measured, as '
            f'<span class="autopar-recorded">{origin}</span>. The parts were timed '
            "by themselves, so that a run may end a hair before the limit.</p>",
            "<p>The times to choose are of one chunk. "
            '<a data-part="file" download="schedule.csv">schedule.csv</a> is the predicted '
            "schedule.</p></figcaption>",
            "</figure>",
            f"<div data-static>{figure._repr_html_()}</div>",
            "</div>",
        ]
    )


class Simulator(Directive):
    """The simulator; the page that has it is read again with a new record, or code."""

    def run(self):
        env = self.state.document.settings.env
        for path in (*FOLDER.glob(f"*/{_EXPERIMENT}.json"), prediction.__file__, __file__):
            env.note_dependency(str(path))
        return [nodes.raw("", markup(ap.newest_record(_EXPERIMENT)), format="html")]


def setup(app):
    app.add_directive("simulator", Simulator)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
