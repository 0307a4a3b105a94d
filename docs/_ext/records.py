"""Records: every experiment with its page, and the file of each machine that has measured it."""

import os
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from machines import experiments, read, records_by_machine
from side_by_side import Row, link, small, table, unbroken
from sphinx.addnodes import download_reference

from autopar.records.gallery import GALLERY
from autopar.records.record import EARLIER

DOCS = Path(__file__).parents[1]


class RecordsByMachine(Directive):
    """A row for each experiment, a column for each machine, and a link to its file in each cell."""

    def run(self):
        for path in GALLERY.rglob("plot_*.py"):  # `freshness` sees to new records
            self.state.document.settings.env.note_dependency(str(path))
        rows = []
        for page, name, what in experiments():
            cells = {
                machine: cell(records[name])
                for machine, records in records_by_machine().items()
                if name in records
            }
            rows.append(Row(link(page), [nodes.Text(name), small(what.replace("`", ""))], cells))
        return [table("Experiment", [*records_by_machine()], rows)]


def cell(record):
    """A link to a record's file under its date, and what is in it."""
    (path,) = (path for one, path in read() if one is record)
    target = Path(os.path.relpath(path, DOCS)).as_posix()
    words = unbroken(f"JSON, {record.recorded_at[:10]}")
    samples = sum(len(one.values_s) for one in record.measurements.values())
    spans = sum(len(one.spans) for one in record.timelines.values())
    held = {"sample": samples, "span": spans, "value": len(record.values)}
    said = [f"{number:,} {of}{'s' * (number > 1)}" for of, number in held.items() if number]
    return [
        download_reference("", "", nodes.inline(text=words), reftarget=target),
        *([small(EARLIER)] if record.code_changed else []),
        small(", ".join(said)),
    ]


def setup(app):
    app.add_directive("records-by-machine", RecordsByMachine)
