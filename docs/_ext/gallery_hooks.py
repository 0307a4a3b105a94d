"""Gallery hooks: what sphinx-gallery does with figures, and the state each script starts from."""

import re
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
    for each in lists_of_tags[1:]:  # an index has one for itself and one for each section
        each.parent.remove(each)


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
    app.connect("doctree-read", tidy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
