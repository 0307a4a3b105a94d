"""Gallery hooks: what sphinx-gallery does with figures, and the state each script starts from."""

import re
from pathlib import Path
from textwrap import indent

import matplotlib.pyplot as plt
import thumbnails
import torch
from addresses import INSTALL, PUBLISHED
from matplotlib.text import Annotation
from said_once import OLD
from sphinx_gallery.scrapers import matplotlib_scraper

from autopar.display.show import Note

_WHEN = "" if PUBLISHED else ", once it is published"
FIRST_CELL = f"""# Where autopar isn't installed yet, as on Colab{_WHEN}:
import importlib.util

if not importlib.util.find_spec("autopar"):
    %{INSTALL}"""  # of a notebook
IMAGE = "autopar-image"  # of what the cell draws as SVG, too
PICTURE = "autopar-picture"  # what a page shows first, and the gallery as its thumbnail
_OLD = re.compile(OLD.replace(" ", r"\s"))  # also where a line ends in it
_THREADS = torch.get_num_threads()
_STYLE = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "figure.figsize": (4.6, 3.4),  # inches: made smaller for a phone, letters can still be read
    "svg.hashsalt": "autopar",  # SVG files come out the same, byte for byte, in every build
}


def save_figures(block, block_vars, gallery_conf, **kwargs):
    """Save a cell's figures, and mark what they are to the page, for `gallery_pages` to place.

    A page's picture is its first figure, or that of its number: it is drawn as a thumbnail as well.
    Each of a page's timelines is drawn alone, too, to stand beside its code.
    """
    figures = [plt.figure(number) for number in plt.get_fignums()]
    for note in (note for figure in figures for note in figure.findobj(Annotation)):
        note.set_text(_OLD.sub("", note.get_text()))  # which the page's end says
    paths, conf = block_vars["image_path_iterator"], block_vars["file_conf"]
    number = conf.get("thumbnail_number", 1) - len(paths)  # among the figures of this cell
    marks, beneath = [IMAGE] * ("ap.show_timelines(" in block.content), []
    shown = block_vars["example_globals"].get("___") if marks else None
    if shown:
        beneath = [shown.panel(name).replace("\n", " ") for name, _ in shown.panels]
    if 0 < number <= len(figures):
        marks.append(PICTURE)
        folder = Path(paths.image_path).parent / "thumb"
        path = folder / f"{Path(block_vars['src_file']).stem}.png"
        thumbnails.save(figures[number - 1], shown, path)
        if not shown and "look=" not in block.content:
            beneath = [Note(look)._repr_html_() for look in map(to_look_at, figures) if look]
        conf.pop("thumbnail_number", None)
        conf["thumbnail_path"] = str(path)
    texts = iter(list(map(described, figures)))
    images = matplotlib_scraper(block, block_vars, gallery_conf, **kwargs)
    images = re.sub(r"(?<=:alt: ).*", lambda found: next(texts) or found[0], images)
    if not images or not marks:
        return images
    images += "".join(f"\n\n.. raw:: html\n\n    {each}" for each in beneath)
    return f".. container:: {' '.join(marks)}\n\n{indent(images, '    ')}"


def described(figure):
    """What a figure shows, in one line: of each part its title and figures, then the whole's title.

    A line is told by its first and its last value, a bar by the text beside it.
    """
    said, up = [], ""
    for ax in figure.axes:
        said += [ax.get_title(loc) for loc in ("left", "center")]
        lines = [f"{name(line)} {ends(line)}".strip() for line in told_by(ax)]
        if lines:
            across, up = ax.get_xlabel().split("\n")[0], ax.get_ylabel() or up  # or it is shared
            axes = " by ".join(filter(None, (up, across)))
            said.append(f"{axes}, from left to right: {', '.join(lines)}".lstrip(", "))
        if ax.containers:
            names = [tick.get_text() for tick in ax.get_yticklabels()]
            beside = [text.get_text() for text in ax.texts]
            said.append(", ".join(map(" ".join, zip(names, beside, strict=False))))
    said.append(figure.get_suptitle())
    return re.sub(r"\s+", " ", ". ".join(filter(None, said)))


def to_look_at(figure):
    """What a page does not say itself of a chart: its longest bar and its shortest, or its line."""
    bars = sorted(thumbnails.bars_of(figure), key=lambda row: row[0].get_width())
    if bars:
        (_, *short), (_, *long) = bars[0], bars[-1]
        return "Look at the longest bar, {!r}: {}; and the shortest, {!r}: {}.".format(
            *noise_told(long), *noise_told(short)
        )
    lines = [(ends(line), ax.get_ylabel()) for ax in figure.axes for line in told_by(ax)]
    return "Look at the line, from left to right: {} {}.".format(*lines[0]) if lines else ""


def noise_told(words):
    """Words of a bar, with a word for the star of what is noisy."""
    return [re.sub(r"\*$", " (noisy)", one) for one in words]


def name(line):
    """Its name in the legend; matplotlib gives those without one a name with an underscore."""
    return "" if line.get_label().startswith("_") else line.get_label()


def told_by(ax):
    """Lines that are data, or a level with a name; others only guide the eye, as all in a drawing.

    A drawing has no axis: its places are no values.
    """
    for line in ax.lines if ax.axison else ():
        if len(set(line.get_xdata())) > 1 and (name(line) or len(line.get_ydata()) > 2):
            yield line


def ends(line):
    """The values at its ends, as one if they are equal."""
    first, last = (f"{line.get_ydata()[i]:.3g}" for i in (0, -1))
    return first if first == last else f"{first} to {last}"


def reset_style(gallery_conf, script):
    """Give every script the same look; listed after sphinx-gallery's reset, which wipes it."""
    plt.rcParams.update(_STYLE)


def reset_torch(gallery_conf, script):
    """Give every script the same random numbers, all threads, and idle devices."""
    torch.manual_seed(0)
    torch.set_num_threads(_THREADS)
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
