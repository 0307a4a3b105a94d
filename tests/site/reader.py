"""The built site, and a reader of it: a window of Chromium on its pages, below some address."""

import mimetypes
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HOST, UNDER = "http://localhost", "/en/latest/"  # a host that browsers trust, as they do https
WIDE, NARROW, HIGH = 1280, 360, 800

needs_site = pytest.mark.skipif(not PAGES, reason="no site in docs/_build: run `nox -s docs`")


class Reader:
    """A window on the site, which stands alone on its host; what goes wrong is written down."""

    def __init__(self, browser, width, under=UNDER, **options):
        self.faults, self.size, self.under = [], 0, under
        options |= {"viewport": {"width": width, "height": HIGH}}
        self.context = browser.new_context(**options)
        self.context.route("**/*", self._serve)
        self.tab = self.context.new_page()
        self.tab.on("console", self._hear)
        self.tab.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _serve(self, route):
        asked, address = route.request, urlsplit(route.request.url)
        file = SITE / unquote(address.path).removeprefix(self.under)
        if f"{address.scheme}://{address.netloc}" != HOST:
            self.faults.append(f"asks another host: {asked.url}")
            route.abort()
        elif asked.is_navigation_request() or file.is_file():
            content = (file if file.is_file() else SITE / "404.html").read_bytes()
            self.size += len(content)
            kind = mimetypes.guess_type(file.name)[0] or "text/html"
            route.fulfill(body=content, content_type=kind)
        else:
            self.faults.append(f"asks for what is not there: {asked.url}")
            route.fulfill(status=404)

    def _hear(self, message):
        if message.type == "error":
            self.faults.append(f"console: {message.text}")

    def open(self, place):
        """Go to an address below the site's."""
        self.faults, self.size = [], 0
        self.tab.goto(f"{HOST}{self.under}{place}")
        return self.tab
