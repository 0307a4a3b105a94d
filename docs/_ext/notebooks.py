"""Notebooks: their text in the Markdown that notebooks show, where sphinx-gallery leaves reST."""

import re
from functools import partial
from pathlib import Path
from textwrap import dedent

from addresses import PUBLISHED, SITE
from sphinx_gallery import notebook

DOCS = Path(__file__).parents[1]
_INDEX = re.compile(r"(?m)^\.\. index::.*\n")
_FOLD = re.compile(r"(?m)^\.\. dropdown:: (.*)\n((?:\n| {4}.*\n?)+)")
# Where a site's page has it.
_TOP = re.compile(r"(pictures?|figures?|timelines?)\s+at\s+the\s+top(?:\s+of\s+this\s+page)?")
_NEXT_LINE = re.compile(r"\n\| ")
_PAGE = re.compile(r":doc:`([^`]+)`")
_WAY = re.compile(r":timeline:(`[^`]+`)")  # which a site's page has there, too
_ROLE = re.compile(r":\w+:`~?([^`<]+?)(?: <[^>]+>)?`")  # with an address behind it, or without
_TITLES = {".md": re.compile("(?m)^# (.+)"), ".py": re.compile('"""\n(.+)')}


def as_markdown(text, gallery_conf, folder, levels, *, convert):
    """A text of a script: lines that stay lines, folds that open, and links to the site's pages."""
    text = _NEXT_LINE.sub("  \n", _INDEX.sub("", text)).replace(">`__", ">`_")
    text = _WAY.sub(r"the timeline \1 below", _TOP.sub(r"\1", text))
    text = _FOLD.sub(lambda fold: _details(fold[1], dedent(fold[2]).strip()), text)
    text = _PAGE.sub(lambda page: _link(Path(folder), page[1]), text)
    return convert(_ROLE.sub(r"`\1`", text), gallery_conf, folder, levels)


def _details(summary, body):
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>\n\n"


def _link(folder, name):
    """A page's title, which leads there once the site is published."""
    page = (DOCS / name[1:] if name.startswith("/") else folder / name).relative_to(DOCS).as_posix()
    script = page.removeprefix("auto_")
    source = DOCS / f"{page}.md" if page == script else DOCS.parent / f"{script}.py"
    title = _TITLES[source.suffix].search(source.read_text(encoding="utf-8"))[1]
    return f"[{title}]({SITE}{page}.html)" if PUBLISHED else f"*{title}*"


def setup(app):
    notebook.rst2md = partial(as_markdown, convert=notebook.rst2md)
