"""Published: what other sites say of a page, the sitemap of all pages, and one for all others."""

import re
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinxext import opengraph

_SMALL = "autopar-small"  # a note, of which no page is about


def describe(doctree, most, _):
    """As many of the first sentences of a page's first paragraph as fit, and one at least.

    A description of opengraph's own begins with whatever comes first, as buttons and tables do.
    """
    page = next(doctree.findall(nodes.section), ())
    texts = (one for one in page if isinstance(one, nodes.paragraph))
    first = next((one.astext() for one in texts if _SMALL not in one["classes"]), "")
    words = " ".join(first.split())
    sentences = re.match(rf".{{,{most - 1}}}[.?!](?= |$)|.*?[.?!](?= |$)", words)
    return sentences[0] if sentences else words


def write_sitemap(app, error):
    if error is not None or app.builder.name != "html":
        return
    pages = map(app.builder.get_target_uri, sorted(app.env.found_docs))
    urls = (f"<url><loc>{escape(f'{app.config.html_baseurl}{page}')}</loc></url>" for page in pages)
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    head += '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    lines = "\n".join((head, *urls, "</urlset>\n"))
    Path(app.outdir, "sitemap.xml").write_text(lines, encoding="utf-8")


def add_not_found(app, config):
    config.html_additional_pages["404"] = "404.html"
    config.html_context["site_path"] = urlsplit(config.html_baseurl).path or "/"


def setup(app):
    opengraph.get_description = describe
    app.connect("config-inited", add_not_found)
    app.connect("build-finished", write_sitemap)
