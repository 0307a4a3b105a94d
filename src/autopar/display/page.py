"""Page: an HTML document that asks for nothing else, in light and in dark."""

from __future__ import annotations

import html

from autopar.display.format import printable

# Every text on it has a contrast of 4.5:1 or more with what is behind it, in both schemes.
_STYLE = """
:root {
  color-scheme: light dark;
  --color-background-primary: Canvas;
  --autopar-compute: light-dark(#1f5fbf, #7fb2ff); --autopar-copy: light-dark(#b34700, #ffab66);
  --autopar-communication: light-dark(#00706b, #5fd3c8);
  --autopar-host: light-dark(#5c6670, #b0bac4); --autopar-limit: light-dark(#a3195b, #ff8fbe);
}
body { max-width: 62rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h1, h2, h3, h4, p { overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding: 0.25rem 0; font-weight: bold; text-align: start; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid GrayText; }
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
