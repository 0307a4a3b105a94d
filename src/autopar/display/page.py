"""Page: an HTML document that asks for nothing else, in light and in dark."""

from __future__ import annotations

import html

from autopar.display.format import printable

# Every text on it has a contrast of 4.5:1 or more with what is behind it, in both schemes.
_STYLE = """
:root {
  color-scheme: light dark;
  --autopar-compute: #1f5fbf; --autopar-copy: #b34700; --autopar-communication: #00706b;
  --autopar-host: #5c6670; --autopar-limit: #a3195b;
  --color-background-primary: #ffffff; --words: #16181d; --rule: #c9ced6; --link: #1f5fbf;
}
@media (prefers-color-scheme: dark) {
  :root {
    --autopar-compute: #7fb2ff; --autopar-copy: #ffab66; --autopar-communication: #5fd3c8;
    --autopar-host: #b0bac4; --autopar-limit: #ff8fbe;
    --color-background-primary: #14161a; --words: #e6e8eb; --rule: #454b55; --link: #7fb2ff;
  }
}
body {
  max-width: 62rem; margin: 0 auto; padding: 1rem;
  background: var(--color-background-primary); color: var(--words);
  font: 1rem/1.5 system-ui, sans-serif;
}
h1, h2, h3, h4 { line-height: 1.25; }
h1, h2, h3, h4, p { overflow-wrap: anywhere; }
a { color: var(--link); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding: 0.25rem 0; font-weight: bold; text-align: start; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--rule); }
tbody th { font-weight: normal; }
.autopar-table-box { margin: 1rem 0; }
"""


def page(title: str, body: str) -> str:
    """A whole document round HTML, as tables and drawings give it."""
    return printable(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )
