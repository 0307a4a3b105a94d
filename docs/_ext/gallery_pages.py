"""Gallery pages: where pictures, origins and folded parts stand on them, and what cards say."""

import re
from html import escape, unescape

from addresses import COLAB, PUBLISHED, SOURCES
from docutils import nodes
from gallery_hooks import IMAGE, PICTURE
from said_once import OF_OLD
from sphinx.addnodes import download_reference

_BADGE = re.compile(r'<span class="autopar-(?P<kind>live|recorded)">[^<]*</span>')
_HERE = "On this machine"  # the heading of what is measured wherever the page is built
_OF_HERE = (
    "These numbers are of small sizes, on the machine that built this page. With few cores, or "
    "other work beside, what runs at once may gain nothing, or lose."
)
_WAY = re.compile('<figure class="autopar-way" data-name="([^"]*)">')
_NOTE = 'class="autopar-note'
_FOLDED = re.compile(r"# Folded: (.*)\n")  # how a cell begins that is shown closed
_AFTER_THE_OPENING = (nodes.literal_block, nodes.section, nodes.raw, nodes.container)
_TIP = re.compile(r' tooltip="([^"]*)"')
_DO = re.compile(r"You&#x27;ll do:\s*(.*?)\s*(\| You&#x27;ll learn|$)", re.DOTALL)
_NEED = "You need:"  # how the line of the opening begins that goes to the row
_REPEATED = {f"sphx-glr-{name}" for name in ("download-link-note", "footer", "timing")}
_AND = re.compile(r"(?<=minutes), and\b")  # between the time that it takes and what it needs
_LEVELS = {"first_steps": "beginner", "graphs": "advanced", "distributed": "advanced"}
_CARD = '<div class="sphx-glr-thumbnail-title">'


class Way(nodes.emphasis):
    """What :timeline:`its name` makes of the name of a way, where its own timeline is to stand."""


def arrange(app, doctree):
    """Put everything in its place, one thing after another."""
    say_on_cards_what_one_does(doctree)
    if "auto_gallery/" in app.env.docname:
        show_ways_beside_code(doctree)
        show_picture_first(doctree, put_images_into_details(doctree))
        say_origins_once(doctree)
        fold(doctree)
        put_row_below_title(doctree, app.env.docname)


def raws(doctree):
    """Each piece of HTML, and what it says, in the order of the page."""
    return [(raw, raw.astext()) for raw in doctree.findall(nodes.raw)]


def raw(text):
    """A piece of HTML."""
    return nodes.raw("", text, format="html")


def say_on_cards_what_one_does(doctree):
    """Write into each card what its tip would say, and keep one list of tags of several."""
    lists_of_tags = [node for node, text in raws(doctree) if "'sg-tag-list'" in text]
    for node in lists_of_tags[1:]:  # an index has one for itself and one for each section
        node.parent.remove(node)
    line = ""
    for node, text in raws(doctree):
        if tip := _TIP.search(text):
            found = _DO.search(tip[1])
            line = re.sub(r"\s+", " ", found[1] if found else tip[1])
            text = _TIP.sub("", text)
        if _CARD in text:
            text = text.replace("</div>", f'</div><div class="autopar-line">{line}</div>', 1)
        if text != node.astext():
            node.replace_self(raw(text))


def put_images_into_details(doctree):
    """Move the image of a drawing behind the drawing's own summary; say which parts this has."""
    drawings = {}
    for box in list(doctree.findall(nodes.container)):
        output = box.next_node(descend=False, siblings=True)
        if IMAGE in box["classes"] and isinstance(output, nodes.raw):
            head, summary, tail = output.astext().partition("</summary>")
            box.parent.remove(box)
            drawings[box] = [raw(head + summary), box, raw(tail)]
            output.replace_self(drawings[box])
    return drawings


def show_ways_beside_code(doctree):
    """Move each timeline of a page behind the paragraph that names it, or leave it out.

    Where a name is none of them the build fails, unless the page shows a record of earlier code:
    that may not have seen the way.
    """
    found = [(node, _WAY.match(text)) for node, text in raws(doctree)]
    timelines = {unescape(way[1]): node for node, way in found if way}
    for node in timelines.values():
        node.parent.remove(node)
    is_old = any(OF_OLD in node["classes"] for node in doctree.findall(nodes.paragraph))
    for mark in reversed(list(doctree.findall(Way))):  # of two in a paragraph the first is first
        beside, name = mark.parent, mark.astext()
        if name in timelines or not is_old:
            beside.parent.insert(beside.parent.index(beside) + 1, timelines.pop(name))
        mark.replace_self(nodes.emphasis("", name, classes=["autopar-name"]))


def show_picture_first(doctree, drawings):
    """Move a page's picture, which only its measurement can draw, up to where the page begins.

    With it goes the sentence that says what to look at.
    """
    pictures = (box for box in doctree.findall(nodes.container) if PICTURE in box["classes"])
    box, page = next(pictures, None), next(doctree.findall(nodes.section), None)
    if box is None or page is None:
        return
    moved, note = drawings.get(box, [box]), box.next_node(descend=False, siblings=True)
    if isinstance(note, nodes.raw) and _NOTE in note.astext() and "<table" not in note.astext():
        moved.append(note)
    place = next((node for node in page if isinstance(node, _AFTER_THE_OPENING)), moved[0])
    if place is not moved[0]:
        for node in moved:
            node.parent.remove(node)
            page.insert(page.index(place), node)


def say_origins_once(doctree):
    """Put where figures were measured under the title, and leave a short mark on each of them."""
    badges = {badge[0]: badge for _, text in raws(doctree) for badge in _BADGE.finditer(text)}
    kinds = [badge["kind"] for badge in badges.values()]
    marks, full = {}, []
    for number, (words, badge) in enumerate(badges.items()):
        kind = badge["kind"]
        count = f"{1 + kinds[:number].count(kind)}" if kinds.count(kind) > 1 else ""
        marks[words] = f'<span class="autopar-{kind}">{kind} {count}</span>'.replace(" </", "</")
        full.append(words.replace(">", f">{count} " if count else ">", 1))
    for node, text in raws(doctree):
        if _BADGE.search(text):
            node.replace_self(raw(_BADGE.sub(lambda badge: marks[badge[0]], text)))
    if full:
        line = f'<p class="autopar-origins">{" ".join(full)}</p>'
        next(doctree.findall(nodes.section)).insert(1, raw(line))


def fold(doctree):
    """Close what only the curious look for: cells that say so, and what this machine measures."""
    for code in list(doctree.findall(nodes.literal_block)):
        if found := _FOLDED.match(code.rawsource):
            lines = len(code.rawsource.strip().splitlines()) - 1
            summary = f"{found[1][:1].upper()}{found[1][1:]}: {lines} lines"
            enclose(code.parent, code.parent.index(code), summary)
    for section in list(doctree.findall(nodes.section)):
        if section[0].astext() == _HERE:
            section.insert(1, nodes.paragraph(text=_OF_HERE))
            enclose(section, 1, "Measured where this page was built", stop=len(section))


def put_row_below_title(doctree, page):
    """Say in one row where a page runs, which files it has, and what it needs, and only there."""
    needs = next((line for line in doctree.findall(nodes.line) if line.astext()[:9] == _NEED), None)
    if needs is None:
        return  # an index
    label, text = needs[:2]
    words = _AND.sub("; needs", text).replace("\n", " ")
    need, _, rest = words.partition(". ")
    needs.remove(label)
    needs.replace(text, nodes.Text(rest))
    script = page.removeprefix("auto_gallery/")
    colab = f"{COLAB}/{script.rpartition('/')[2]}.ipynb"
    links = [nodes.reference("", "Colab", refuri=colab)] * PUBLISHED
    files = list(doctree.findall(download_reference))
    for words, ending in (("Notebook", ".ipynb"), ("Script", ".py")):
        link = next(file for file in files if file["reftarget"].endswith(ending)).deepcopy()
        link.children = [nodes.inline(text=words)]
        links.append(link)
    source = f"{SOURCES}/gallery/{script}.py"
    links += [nodes.reference("", "Source", refuri=source)] * PUBLISHED
    row = nodes.bullet_list()
    level = f"level: {_LEVELS.get(script.partition('/')[0], 'intermediate')}"
    for item in (*links, *(nodes.inline(text=words) for words in (level, need.strip()))):
        row += nodes.list_item("", nodes.paragraph("", "", item))
    # As an admonition, which no summary of the page begins with.
    box = nodes.admonition("", row, classes=["autopar-row"])
    next(doctree.findall(nodes.section)).insert(1, box)
    for node in list(doctree.findall(nodes.Element)):
        if _REPEATED & set(node["classes"]):
            node.parent.remove(node)


def enclose(parent, start, summary, stop=None):
    """Put some of a node's children into a box that opens."""
    opening = f'<details class="autopar-fold"><summary>{escape(summary)}</summary>'
    parent.insert(start + 1 if stop is None else stop, raw("</details>"))
    parent.insert(start, raw(opening))


def setup(app):
    app.add_generic_role("timeline", Way)
    app.connect("doctree-read", arrange)
