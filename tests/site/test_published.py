"""What a published site says of itself: addresses, descriptions, the sitemap, its notebooks."""

import os
import re
import subprocess
import sys
from html import unescape

import pytest
from reader import ROOT

DOCS = ROOT / "docs"
_HOME = """
Home
====

.. container:: buttons

   Start

- an item

======  ======
a cell  a cell
======  ======

A <site> says "what" it is. It has `code` 2.0
in it. %s

Another paragraph.

.. toctree::

   deep/page
"""
_PAGE = "Page\n====\n\n.. code-block:: python\n\n   code\n\nOnly one long sentence%s.\n"
_FITS = "Its third sentence fits."


@pytest.fixture
def build(tmp_path):
    """Builds a site of two pages for an address, and gives the text of its files."""

    def built(address, third):
        source, out = tmp_path / "source", tmp_path / "html"
        (source / "deep").mkdir(parents=True)
        (source / "index.rst").write_text(_HOME % third, encoding="utf-8")
        (source / "deep" / "page.rst").write_text(_PAGE % (200 * ", long"), encoding="utf-8")
        settings = {
            "extensions": "sphinxext.opengraph,published",
            "html_baseurl": address,
            "ogp_site_url": address,
            "smartquotes": "0",
            "templates_path": DOCS / "_templates",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "sphinx", "-qWC", *options, source, out]
        environment = os.environ | {"PYTHONPATH": str(DOCS / "_ext")}
        subprocess.run(command, env=environment, check=True)
        return lambda name: (out / name).read_text(encoding="utf-8")

    return built


def tags(page):
    """What the head of a page says of it, by name."""
    found = re.findall(r'<meta (?:property|name)="([^"]*)" content="([^"]*)"', page)
    said = {name: unescape(words) for name, words in found}
    return said | {"canonical": re.search(r'rel="canonical" href="([^"]*)"', page)[1]}


@pytest.mark.parametrize(
    ("address", "third", "shown"),
    [
        ("https://a.org/en/latest/", _FITS, f" {_FITS}"),
        ("https://a.org/", f"Its third is long{150 * '.'}", ""),
    ],
)
def test_a_page_has_its_address_and_is_told_by_its_first_sentences(build, address, third, shown):
    read = build(address, third)
    home, page = tags(read("index.html")), tags(read("deep/page.html"))
    assert home["canonical"] == home["og:url"] == f"{address}index.html"
    assert page["canonical"] == page["og:url"] == f"{address}deep/page.html"
    said = f'A <site> says "what" it is. It has code 2.0 in it.{shown}'
    assert home["description"] == home["og:description"] == said
    assert page["og:description"] == f"Only one long sentence{200 * ', long'}."
    assert home["og:image"].startswith(f"{address}_images/")
    places = re.findall(r"<loc>(.*)</loc>", read("sitemap.xml"))
    assert places == [page["canonical"], home["canonical"]]
    assert f'<base href="{address.removeprefix("https://a.org")}">' in read("404.html")


@pytest.mark.parametrize("published", [True, False])
def test_text_of_notebooks_is_markdown(extension, monkeypatch, published):
    notebooks = extension("notebooks")
    monkeypatch.setattr(notebooks, "PUBLISHED", published)
    text = """
| **Do:** this
  and that.
| **Read** :doc:`plot_2_two_devices_at_once`, and :doc:`/recipes`.

.. index:: ! it
.. dropdown:: A hint

    Look at :timeline:`a, b`. In the picture at
    the top, call :func:`~autopar.race`, see :download:`a file <../a.txt>`, `a b <https://c.org>`__.

    .. code-block:: python

        code()
"""
    folder = DOCS / "auto_gallery" / "first_steps"
    pages = "Keep two devices busy at once", "Recipes"
    files = "auto_gallery/first_steps/plot_2_two_devices_at_once", "recipes"
    links = [f"*{page}*" for page in pages]
    if published:
        links = [
            f"[{one}]({notebooks.SITE}{file}.html)" for one, file in zip(pages, files, strict=True)
        ]
    given = notebooks.as_markdown(text, {}, folder, {}, convert=notebooks.notebook.rst2md)
    assert given.split("\n\n", 1)[0].split("  \n")[1:] == [
        "**Do:** this\n  and that.",
        f"**Read** {links[0]}, and {links[1]}.",
    ]
    said = "In the picture, call `autopar.race`, see `a file`, [a b](https://c.org)."
    said = f"Look at the timeline `a, b` below. {said}"
    assert f"<details><summary>A hint</summary>\n\n{said}" in given
    assert "```python\ncode()\n```\n</details>" in given
    assert ".." not in given
