"""Said once: what is true of every drawing of a run, and that records are of an earlier version.

No page can forget the one. The other is told at the end of a page; where it is true of all its
records, it is taken out of each figure.
"""

import re

from docutils import nodes

from autopar.records.record import EARLIER

OLD = f", {EARLIER}"  # how the origin of such a record ends
OF_OLD = "autopar-earlier"  # the note that says so
_RECORDS = "records"  # a page that says of each which it is
_STILL_SHOWN = (
    "{} on this page are of an earlier version of autopar. Any change to code that runs in a "
    "measurement makes them so, even one that can't change a time. They are shown until a "
    "machine with the same GPUs has measured again."
)
_RECORD = re.compile(rf"recorded on [^;:]*?torch [\w.+]*\w(, {EARLIER})?")
_ONE_RUN = "The figure shows one run, whose times can differ from the medians of several."
_CAPTION = re.compile(r"<figcaption>.*?(?=</figcaption>)", re.DOTALL)
_MEASURED = re.compile(r"autopar-(live|recorded)")


def say_once(app, doctree):
    """Take out of each origin what the end of the page says; say of drawings what they are."""
    texts = list(doctree.findall(nodes.Text))
    earlier = {bool(record[1]) for text in texts for record in _RECORD.finditer(text.astext())}
    says_each = app.env.docname == _RECORDS or earlier != {True}
    for text in texts:
        said = text.astext() if says_each else text.astext().replace(OLD, "")
        if isinstance(text.parent, nodes.raw):
            said = _CAPTION.sub(of_one_run, said)
        if said != text.astext():
            text.parent.replace(text, nodes.Text(said))
    if True in earlier and app.env.docname != _RECORDS:
        words = _STILL_SHOWN.format("Some records" if False in earlier else "Records")
        note = nodes.paragraph(text=words, classes=["autopar-small", OF_OLD])
        next(doctree.findall(nodes.section)).append(note)


def of_one_run(caption):
    """A drawing's caption; if it was measured, with what its times are."""
    words = caption[0]
    other = re.search("one run|predicted", words, re.IGNORECASE)  # it says so, or is no such figure
    if other or not _MEASURED.search(words):
        return words
    return f'{words}<p class="autopar-small">{_ONE_RUN}</p>\n'


def setup(app):
    app.connect("doctree-read", say_once, priority=400)  # before the gallery's pages are arranged
