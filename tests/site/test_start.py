"""Where readers begin: what is found first, wrong addresses, words, and the first program."""

import ast
import html
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from docutils import nodes

from autopar import read_trace

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "_build" / "html"
CHROMIUM = shutil.which("chromium")

in_browser = [
    pytest.mark.skipif(not SITE.exists(), reason="no site in docs/_build/html: run `nox -s docs`"),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH"),
]


class Below(SimpleHTTPRequestHandler):
    """Serves the site below a path of its own, and page 404 for all that is not there."""

    PATH = "/some/where/"

    def translate_path(self, path):
        return super().translate_path(path.removeprefix(self.PATH.rstrip("/")))

    def send_head(self):
        asked = Path(self.translate_path(self.path))
        if self.path.startswith(self.PATH) and (asked.is_file() or asked == SITE):
            return super().send_head()
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        return (SITE / "404.html").open("rb") if self.path.startswith(self.PATH) else None

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The text of a page as Chromium shows it, which lies at some address below the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Below, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("chromium")

    def render(place):
        address = f"http://127.0.0.1:{server.server_port}{Below.PATH}{place}"
        quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
        quiet += ("--disable-background-networking", "--disable-component-update", "--dump-dom")
        own = (f"--user-data-dir={profile}", "--virtual-time-budget=5000")
        done = subprocess.run(
            [CHROMIUM, *quiet, *own, address],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    yield render
    server.shutdown()
    server.server_close()


class TestInBrowser:
    pytestmark = in_browser

    @pytest.mark.parametrize(
        ("words", "place"),
        [
            ("pinned", "glossary.html#"),
            ("pinned memory", "glossary.html#term-pinned-memory"),
            ("record_stream", "glossary.html#term-record_stream"),
            ("non_blocking", "glossary.html#term-non_blocking"),
            ("NVTX", "glossary.html#term-NVTX"),
            ("install", "install.html"),
            ("race condition", "glossary.html#term-race-condition"),
            ("deadlock", "howto/from_one_machine_to_many.html"),
            ("multiprocessing", "howto/from_one_machine_to_many.html"),
            ("asynchronous", "chapter/1_work_is_queued.html"),
            ("cudaMemcpyAsync", "chapter/3_computing_and_copying.html"),
        ],
    )
    def test_the_search_finds_the_page_about_it_first(self, rendered, words, place):
        page = rendered(f"search.html?q={quote(words)}")
        found = re.findall(r'<li class="kind-\w+"><a href="([^"]*)"', page)
        assert found, page[-2000:]
        assert found[0].startswith(place)

    @pytest.mark.parametrize(
        ("words", "title"), [("GIL", "GIL"), ("NVTX", "NVTX"), ("pinned memory", "pinned memory")]
    )
    def test_a_term_is_found_once_under_its_own_name(self, rendered, words, title):
        page = rendered(f"search.html?q={quote(words)}")
        links = re.findall(r'<li class="kind-\w+"><a [^>]*>(.*?)</a>', page)
        titles = [re.sub("<[^>]*>", "", link) for link in links]  # without its marks on words
        assert titles[0] == f"{title} (glossary)"
        assert titles.count(titles[0]) == 1
        assert "Glossary" not in titles[:-1]  # if at all, the whole of it is last

    def test_the_page_on_pinned_memory_is_among_the_first(self, rendered):
        page = rendered("search.html?q=pinned")
        found = re.findall(r'<li class="kind-\w+"><a href="([^"]*)"', page)
        assert any("plot_1_where_a_copys_time_goes" in place for place in found[:5])

    @pytest.mark.parametrize("place", ["no_page.html", "no/such/folder/", "glossary/x"])
    def test_the_page_for_wrong_addresses_finds_its_site(self, rendered, place):
        page = rendered(place)
        assert "There is no such page" in page
        assert re.search(rf'<base href="{Below.PATH}">', page)


def test_the_glossary_is_sorted_and_speaks_in_sentences():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^(\S.*)\n((?:  .*\n)+)", text.partition("{glossary}\n")[2], re.MULTILINE)
    terms = [term for term, _ in entries]
    assert len(terms) >= 30
    assert terms == sorted(terms, key=str.casefold)
    for term, lines in entries:
        words = re.sub(r"\s+", " ", re.sub(r"```.*?```", "", lines, flags=re.DOTALL)).strip()
        sentences = re.split(r"(?<=\.) (?=[A-Z`\[])", words)
        assert 1 <= len(sentences) <= 2, term
        assert all(each.endswith(".") for each in sentences), term
        verb = r"\b(is|are|say|holds|stands|begins|shows|happens|overlap|was|says)"
        assert re.search(verb, sentences[0]), term


def test_the_search_reads_prose_and_no_outputs(extension):
    output = nodes.container("", nodes.paragraph(text="0.5 ms"), classes=["cell_output"])
    drawing = nodes.raw("", "<svg/>", format="html")
    document = nodes.document(None, None)
    document += [output, nodes.paragraph(text="prose"), drawing]
    left_out = []

    def index_page(page, doctree, title):
        left_out.extend("no-search" in each["classes"] for each in doctree)

    builder = SimpleNamespace(index_page=index_page)
    extension("search_words").leave_outputs_out(SimpleNamespace(builder=builder))
    builder.index_page("page", document, "Page")
    assert left_out == [True, False, True]
    assert drawing["classes"] == []  # or its HTML would get a box


@pytest.mark.skipif(not SITE.exists(), reason="no site in docs/_build/html: run `nox -s docs`")
def test_no_word_of_a_drawing_is_in_the_index_of_the_search():
    index = (SITE / "searchindex.js").read_text(encoding="utf-8")
    pages_of = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    words = {word for word, pages in pages_of.items() if pages != []}  # as after a change
    assert "stream" in words
    assert [word for word in words if word.startswith(("sgemm", "magma", "cutlass"))] == []


@pytest.mark.skipif(not SITE.exists(), reason="no site in docs/_build/html: run `nox -s docs`")
def test_the_home_page_shows_both_ways_whole():
    page = (SITE / "index.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="highlight-python[^>]*>(.*?)</div>', page, re.DOTALL)
    one, two = (html.unescape(re.sub(r"<[^>]*>", "", block)).strip() for block in blocks)
    assert [each.name for each in ast.parse(one).body] == ["to_cpu", "one_stream"]
    assert isinstance(ast.parse(two).body[0], ast.For)
    assert len(two.splitlines()) == 6


def blocks(name):
    """The code of a page under a name."""
    text = (DOCS / "five_minutes.md").read_text(encoding="utf-8")
    return re.search(rf":name: {name}\n(.*?)```", text, re.DOTALL)[1]


def run(program, folder):
    (folder / "program.py").write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, "program.py"], cwd=folder, check=True, timeout=50)
    return read_trace(folder / "trace.json").hidden()


def test_the_program_of_five_minutes_and_its_mended_step_fit_together():
    program, mended = blocks("five-minutes-program"), blocks("five-minutes-mended")
    compile(with_step(program, mended), "program.py", "exec")


def with_step(program, mended):
    before, step, after = re.split(r"(def step\(\):\n(?:    .*\n)+)", program)
    assert step.count("\n") == 3
    return f"{before}{mended}\n\n{after}"


@pytest.mark.gpu
def test_the_program_of_five_minutes_hides_nothing_until_it_is_mended(tmp_path):
    program, mended = blocks("five-minutes-program"), blocks("five-minutes-mended")
    assert run(program, tmp_path) < 0.1
    assert run(with_step(program, mended), tmp_path) > 0.5
