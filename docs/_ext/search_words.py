"""Search words: the search finds what pages say, and not what their cells put out."""

from docutils import nodes

_OUTPUTS = {"cell_output", "sphx-glr-script-out"}
_SKIPPED = "no-search"  # the class of what Sphinx's index leaves out


def leave_outputs_out(app):
    """Mark outputs while a page is indexed, and only then: marked HTML would get a box."""
    index_page = getattr(app.builder, "index_page", None)
    if index_page is None:  # a builder without a search
        return

    def index_without_outputs(page, doctree, title):
        outputs = [node for node in doctree.findall(nodes.Element) if is_output(node)]
        for node in outputs:
            node["classes"].append(_SKIPPED)
        index_page(page, doctree, title)
        for node in outputs:
            node["classes"].remove(_SKIPPED)

    app.builder.index_page = index_without_outputs


def index_main_entries_in_each_build(app, env, added, changed, removed):
    """Read pages with main entries again: Sphinx keeps none of those that a build leaves."""
    entries = env.get_domain("index").entries
    return [page for page, of in entries.items() if any(main for *_, main, _ in of)]


def is_output(node):
    return isinstance(node, nodes.raw) or bool(_OUTPUTS & set(node["classes"]))


def setup(app):
    app.connect("builder-inited", leave_outputs_out)
    app.connect("env-get-outdated", index_main_entries_in_each_build)
