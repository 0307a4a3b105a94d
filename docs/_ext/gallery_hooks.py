"""Gallery hooks: what sphinx-gallery does with figures, and the state each script starts from."""

import re
from html import escape
from textwrap import indent

import matplotlib.pyplot as plt
import torch
from docutils import nodes
from sphinx_gallery.scrapers import matplotlib_scraper

INSTALL = 'pip install "autopar @ git+https://github.com/autopar/autopar"'  # scripts' first line
FIRST_CELL = f"""# Where autopar isn't installed yet, as on Colab:
import importlib.util

if not importlib.util.find_spec("autopar"):
    %{INSTALL}"""  # of a notebook
_THREADS = torch.get_num_threads()
_IMAGE = "autopar-image"
_BADGE = re.compile(r'<span class="autopar-(?P<kind>live|recorded)">[^<]*</span>')
_HERE = "On this machine"  # the heading of what is measured wherever the page is built
_FOLDED = re.compile(r"# Folded: (.*)\n")  # how a cell begins that is shown closed
_AFTER_THE_OPENING = (nodes.literal_block, nodes.section, nodes.raw)
_STYLE = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "svg.hashsalt": "autopar",  # SVG files come out the same, byte for byte, in every build
}


def figures_behind_summary(block, block_vars, gallery_conf, **kwargs):
    """Save a cell's figures, and show them closed where the cell draws the same as SVG, too.

    Images still serve the thumbnails, printing, and readers who want to copy a picture.
    """
    texts = [described(plt.figure(number)) for number in plt.get_fignums()]
    images = matplotlib_scraper(block, block_vars, gallery_conf, **kwargs)
    rest = iter(texts)
    images = re.sub(r"(?<=:alt: ).*", lambda found: next(rest) or found[0], images)
    _, code, _ = block
    if not images or "ap.show_timelines(" not in code:
        return images
    header = f".. dropdown:: The same figure as an image\n    :class-container: {_IMAGE}\n\n"
    return header + indent(images, "    ")


def described(figure):
    """What a figure shows, in one line: of each part its title and figures, then the whole's title.

    A line is told by its first and its last value, a bar by the text beside it.
    """
    said, up = [], ""
    for ax in figure.axes:
        said += [ax.get_title(loc) for loc in ("left", "center")]
        lines = [f"{name(line)} {ends(line)}".strip() for line in ax.lines if tells(line)]
        if lines:
            across, up = ax.get_xlabel().split("\n")[0], ax.get_ylabel() or up  # or it is shared
            said.append(f"{up} by {across}, from left to right: {', '.join(lines)}")
        if ax.containers:
            names = [tick.get_text() for tick in ax.get_yticklabels()]
            beside = [text.get_text() for text in ax.texts]
            said.append(", ".join(map(" ".join, zip(names, beside, strict=False))))
    said.append(figure.get_suptitle())
    return re.sub(r"\s+", " ", ". ".join(filter(None, said)))


def name(line):
    """Its name in the legend; matplotlib gives those without one a name with an underscore."""
    return "" if line.get_label().startswith("_") else line.get_label()


def tells(line):
    """Whether a line is data, or a level with a name; others only guide the eye."""
    return len(set(line.get_xdata())) > 1 and (name(line) or len(line.get_ydata()) > 2)


def ends(line):
    """The values at its ends, as one if they are equal."""
    first, last = (f"{line.get_ydata()[i]:.3g}" for i in (0, -1))
    return first if first == last else f"{first} to {last}"


def tidy(app, doctree):
    """Mend two habits of sphinx-gallery: images before the output, and an id used twice."""
    for box in list(doctree.findall(nodes.container)):
        output = box.next_node(descend=False, siblings=True)
        if _IMAGE in box.get("container_classes", ()) and isinstance(output, nodes.raw):
            box.parent.remove(box)
            output.parent.insert(output.parent.index(output) + 1, box)
    lists_of_tags = [raw for raw in doctree.findall(nodes.raw) if "'sg-tag-list'" in raw.astext()]
    for list_of_tags in lists_of_tags[1:]:  # an index has one for itself and one for each section
        list_of_tags.parent.remove(list_of_tags)


def show_picture_first(app, doctree):
    """Move a page's picture, which only its measurement can draw, up to where the page begins."""
    pictures = [box for box in doctree.findall(nodes.container) if is_picture(box)]
    page = next(doctree.findall(nodes.section), None)
    if not pictures or page is None:
        return
    box = pictures[0]
    drawing = box.previous_sibling()
    at = next(i for i, node in enumerate(page) if isinstance(node, _AFTER_THE_OPENING))
    for node in (box, drawing):
        node.parent.remove(node)
        page.insert(at, node)


def is_picture(box):
    """Whether a box holds the image of the drawing that stands before it."""
    return _IMAGE in box.get("container_classes", ()) and isinstance(
        box.previous_sibling(), nodes.raw
    )


def say_origins_once(app, doctree):
    """Put where figures were measured under the title, and leave a short mark on each of them."""
    if "auto_gallery/" not in app.env.docname:
        return
    outputs = [raw for raw in doctree.findall(nodes.raw) if _BADGE.search(raw.astext())]
    badges = {found[0]: found for raw in outputs for found in _BADGE.finditer(raw.astext())}
    kinds = [found["kind"] for found in badges.values()]
    marks = {}
    for number, (badge, found) in enumerate(badges.items()):
        several = f" {1 + kinds[:number].count(found['kind'])}" * (kinds.count(found["kind"]) > 1)
        mark = f'<span class="autopar-{found["kind"]}">{found["kind"]}{several}</span>'
        marks[badge] = mark, f"{several.strip()} {badge}".strip()
    for raw in outputs:
        text = _BADGE.sub(lambda found: marks[found[0]][0], raw.astext())
        raw.replace_self(nodes.raw("", text, format="html"))
    if marks:
        line = f'<p class="autopar-origins">{" ".join(full for _, full in marks.values())}</p>'
        next(doctree.findall(nodes.section)).insert(1, nodes.raw("", line, format="html"))


def fold(app, doctree):
    """Close what only the curious look for: cells that say so, and what this machine measures."""
    for code in list(doctree.findall(nodes.literal_block)):
        if found := _FOLDED.match(code.rawsource):
            enclose(code.parent, code.parent.index(code), f"{found[1]}: {lines_of(code)} lines")
    for section in list(doctree.findall(nodes.section)):
        if section[0].astext() == _HERE:
            enclose(section, 1, "Measured where this page was built", stop=len(section))


def enclose(parent, start, summary, stop=None):
    """Put some of a node's children into a box that opens."""
    stop = start + 1 if stop is None else stop
    opening = f'<details class="autopar-fold"><summary>{escape(summary)}</summary>'
    parent.insert(stop, nodes.raw("", "</details>", format="html"))
    parent.insert(start, nodes.raw("", opening, format="html"))


def lines_of(code):
    """How many lines a cell has."""
    return len(code.rawsource.strip().splitlines()) - 1


def reset_style(gallery_conf, script):
    """Give every script the same look; listed after sphinx-gallery's reset, which wipes it."""
    plt.rcParams.update(_STYLE)


def reset_torch(gallery_conf, script):
    """Give every script the same random numbers, all threads, and idle devices."""
    torch.manual_seed(0)
    torch.set_num_threads(_THREADS)
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def setup(app):
    for mend in (tidy, show_picture_first, say_origins_once, fold):
        app.connect("doctree-read", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
