"""Said once: what is true of every drawing of a run, and that records are of an earlier version.

No page can forget the one, and the other is told at the end of a page in place of at each figure.
"""

import re

from docutils import nodes

from autopar.records.record import EARLIER

OLD = f", {EARLIER}"  # how the origin of such a record ends
_RECORDS = "records"  # a page that says of each which it is
_STILL_SHOWN = (
    "Records on this page are of an earlier version of autopar. Any change to code that runs in a "
    "measurement makes them so, even one that can't change a time. They are shown until a machine "
    "with the same GPUs has measured again."
)
_ONE_RUN = "The figure shows one run, whose times can differ from the medians of several."
_CAPTION = re.compile(r"<figcaption>.*?(?=</figcaption>)", re.DOTALL)
_MEASURED = re.compile(r"autopar-(live|recorded)")


def say_once(app, doctree):
    """Take out of each origin what the end of the page says; say of drawings what they are."""
    old = False
    for text in list(doctree.findall(nodes.Text)):
        said = text.astext()
        if OLD in said and app.env.docname != _RECORDS:
            said, old = said.replace(OLD, ""), True
        if isinstance(text.parent, nodes.raw):
            said = _CAPTION.sub(of_one_run, said)
        if said != text.astext():
            text.parent.replace(text, nodes.Text(said))
    if old:
        note = nodes.paragraph(text=_STILL_SHOWN, classes=["autopar-small"])
        next(doctree.findall(nodes.section)).append(note)


def of_one_run(caption):
    """A drawing's caption; if it was measured, with what its times are."""
    words = caption[0]
    other = re.search("one run|predicted", words, re.IGNORECASE)  # it says so, or is no such figure
    return (
        words
        if other or not _MEASURED.search(words)
        else f'{words}<p class="autopar-small">{_ONE_RUN}</p>\n'
    )


def setup(app):
    app.connect("doctree-read", say_once, priority=400)  # before the gallery's pages are arranged
    return {"parallel_read_safe": True, "parallel_write_safe": True}
