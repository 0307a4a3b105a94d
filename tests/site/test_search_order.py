"""The order of what the search finds: the pages that it names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_that_are_found_first_are_there():
    text = (ROOT / "docs" / "_ext" / "search_order.js").read_text(encoding="utf-8")
    pages = re.findall(r'"auto_gallery/([\w/]+)"', text)
    assert pages
    assert all((ROOT / "gallery" / f"{page}.py").is_file() for page in pages)
