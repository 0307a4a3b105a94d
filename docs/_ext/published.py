"""Published: page 404 finds the site that it belongs to, and the sitemap lists all pages."""

from html import escape
from pathlib import Path
from urllib.parse import urlsplit

_NOT_FOUND = "404"
# A server shows page 404 at the address that was asked for, so its links need a base: where the
# site should lie, or, as a script finds out, the nearest folder above that is one of this site.
_BASE = """
<base href="{path}">
<script>
  const base = document.querySelector("base");
  const isSite = (folder) => {{
    const asked = new XMLHttpRequest();
    asked.open("HEAD", folder + "objects.inv", false);
    asked.send();
    return asked.status === 200;
  }};
  if (location.protocol === "file:") base.remove();
  else {{
    const names = location.pathname.split("/").slice(1, -1);
    const near = names.map((_, i) => `/${{names.slice(0, i + 1).join("/")}}/`).reverse();
    const likely = near.filter((folder) => folder === "{path}");
    base.href = [...likely, ...near, "/"].find(isSite) ?? "{path}";
    addEventListener("DOMContentLoaded", () => {{
      for (const link of document.querySelectorAll('a[href^="#"]'))
        link.href = location.pathname + link.hash;
    }});
  }}
</script>
"""


def give_a_base(app, page, template, context, doctree):
    if page == _NOT_FOUND:
        context["metatags"] += _BASE.format(path=urlsplit(app.config.html_baseurl).path or "/")


def write_sitemap(app, error):
    if error is not None or app.builder.name != "html":
        return
    pages = sorted(app.env.found_docs - {_NOT_FOUND})
    addresses = (f"{app.config.html_baseurl}{app.builder.get_target_uri(page)}" for page in pages)
    urls = "".join(f"<url><loc>{escape(address)}</loc></url>\n" for address in addresses)
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    head += '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    Path(app.outdir, "sitemap.xml").write_text(f"{head}{urls}</urlset>\n", encoding="utf-8")


def setup(app):
    app.connect("html-page-context", give_a_base)
    app.connect("build-finished", write_sitemap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
