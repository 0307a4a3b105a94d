"""Search words: the search finds what pages say, and not what their cells put out."""

from docutils import nodes

_OUTPUTS = {"cell_output", "sphx-glr-script-out", "sphx-glr-timing", "sphx-glr-footer"}


def leave_outputs_out(app, doctree):
    for node in doctree.findall(nodes.Element):
        if isinstance(node, nodes.raw) or _OUTPUTS & set(node["classes"]):
            node["classes"].append("no-search")


def setup(app):
    app.connect("doctree-read", leave_outputs_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
