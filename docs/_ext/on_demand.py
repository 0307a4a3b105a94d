"""On demand: scripts and styles that a page loads only if it has what they are for."""

_FILES = {  # by a class that the page has
    "autopar-simulator": ("simulator.css", "simulator.js"),
    "autopar-figure": ("timeline.css", "timeline.js"),
}


def add_files(app, page, template, context, doctree):
    """Add to a page the files that it needs, in order, to run when all of it is there."""
    for name, files in _FILES.items():
        if f'class="{name}' in context.get("body", ""):
            for file in files:
                if file.endswith(".js"):
                    app.add_js_file(file, defer="defer")
                else:
                    app.add_css_file(file)


def setup(app):
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
