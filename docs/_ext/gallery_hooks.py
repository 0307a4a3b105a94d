"""Gallery hooks: what sphinx-gallery does with figures, and the state each script starts from."""

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
    images = matplotlib_scraper(block, block_vars, gallery_conf, **kwargs)
    _, code, _ = block
    if not images or "ap.show_timelines(" not in code:
        return images
    header = f".. dropdown:: The same figure as an image\n    :class-container: {_IMAGE}\n\n"
    return header + indent(images, "    ")


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
