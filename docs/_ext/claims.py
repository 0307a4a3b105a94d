"""Claims: what the gallery's pages claim, collected as they run, and shown machine by machine."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from machines import claims_by_machine, newest_claims
from side_by_side import Row, link, small, table, unbroken
from sphinx.util import logging

from autopar.records.claim import HOLDS
from autopar.records.gallery import GALLERY

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "auto_gallery"
SUFFIX = ".claims.json"  # a line for each claim, beside the page that makes it
STRICT = "AUTOPAR_STRICT"
GOOD = HOLDS, "met"  # verdicts that need no emphasis
BOUNDS = {"claim": "claimed", "goal": "goal"}
_LINKED = re.compile(r"\]\(\.\./(auto_gallery/\w+/\w+)\)")
logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """A claim or a goal, and what became of it, in words."""

    sentence: str
    bound: str
    figure: str
    sure: str  # how sure the figure is, and of which day
    verdict: str


def collect_anew(gallery_conf, script):
    """Let the claims of a script go to a file of their own, before sphinx-gallery runs it."""
    (source,) = GALLERY.rglob(Path(script).name)
    path = (PAGES / source.relative_to(GALLERY)).with_suffix(SUFFIX)
    path.unlink(missing_ok=True)
    os.environ["AUTOPAR_CLAIMS_TO"] = str(path)


def collected():
    """All claims: the page's name in the documentation, and what was claimed there."""
    for path in sorted(PAGES.rglob(f"*{SUFFIX}")):
        page = path.relative_to(DOCS).as_posix().removesuffix(SUFFIX)
        for line in path.read_text(encoding="utf-8").splitlines():
            yield f"/{page}", json.loads(line)


class ClaimsByMachine(Directive):
    """Every claim with a column for each machine that has records, then what was claimed live."""

    def run(self):
        env = self.state.document.settings.env
        scripts = [*GALLERY.rglob("plot_*.py")]  # `freshness` sees to new records
        folders = {path.parent for path in scripts}
        for path in (*scripts, *folders, *PAGES.rglob(f"*{SUFFIX}")):
            env.note_dependency(str(path))
        told = [
            (page, {machine: outcome(it, it.estimate.origin) for machine, it in ones.items()})
            for page, ones in claims_by_machine()
        ]
        live = [
            (page, {it["machine"]: outcome(SimpleNamespace(**it), it["origin"])})
            for page, it in collected()
            if it["origin"].startswith("measured live")
        ]
        return [*by_machine(told), *([self.section_of_live(live)] if live else [])]

    def section_of_live(self, live):
        title = "Measured live where this site was built"
        section = nodes.section(ids=[nodes.make_id(title)], names=[title.lower()])
        section += nodes.title(text=title)
        self.state.document.note_explicit_target(section)
        section += by_machine(live)
        return section


class Verdicts(Directive):
    """How many of the claims hold on the pages that this one leads to, and those that don't."""

    def run(self):
        env = self.state.document.settings.env
        source = Path(env.doc2path(env.docname)).read_text(encoding="utf-8")
        pages = dict.fromkeys(f"/{page}" for page in _LINKED.findall(source))
        claims = [(page, claim) for page in pages for claim in newest_claims(page)]
        said = counted(claim.verdict for _, claim in claims)
        listed = nodes.bullet_list()
        for page, claim in claims:
            if claim.verdict != HOLDS:
                line = nodes.paragraph("", "", nodes.strong(text=claim.verdict.capitalize()))
                line += nodes.Text(f": {claim.sentence} {claim.measured}; claimed: {claim.bound}. ")
                if note := claim.estimate.note:
                    line += nodes.Text(f"({note[0].upper()}{note[1:]}.) ")
                line += link(page, on=env.docname)
                listed += nodes.list_item("", line)
        words = f"The gallery pages that this section links have, by the newest records, {said}."
        if not listed.children:
            few = {1: "the only claim", 2: "both claims"}
            which = few.get(len(claims), f"all {len(claims)} claims")
            verb = "holds" if len(claims) == 1 else "hold"
            words = f"By the newest records {which} of the linked gallery pages {verb}."
        summary = nodes.paragraph(text=words)
        return [summary, listed] if listed.children else [summary]


def outcome(claim, origin):
    """What became of a claim, with the day of its record beside how sure it is."""
    figure, _, sure = claim.measured.removesuffix(")").partition(" (")
    day = re.search(r"\d{4}-\d\d-\d\d", origin)
    sure = "; ".join(filter(None, (sure, day and day[0])))
    return Outcome(claim.sentence, claim.bound, figure, sure, claim.verdict)


def by_machine(told, what="claim", linked=link):
    """How many claims or goals are met on each machine, and all: a row each, a column a machine."""
    machines = sorted({machine for _, ones in told for machine in ones})
    counts = nodes.bullet_list()
    for machine in machines:
        ones = [of[machine] for _, of in told if machine in of]
        words = nodes.Text(f": {counted((one.verdict for one in ones), what)}")
        named = nodes.strong(text=machine)
        counts += nodes.list_item("", nodes.paragraph("", "", named, words))
    rows = []
    for place, ones in told:
        one = next(iter(ones.values()))
        said = [nodes.Text(one.sentence), small(f"{BOUNDS[what]}: {one.bound}")]
        rows.append(Row(linked(place), said, {it: shown(claim) for it, claim in ones.items()}))
    return [counts, table(what.capitalize(), machines, rows)]


def shown(one):
    """A figure, its verdict, and how sure it is."""
    look = nodes.inline if one.verdict in GOOD else nodes.strong
    said = look(text=one.verdict)
    return [nodes.Text(f"{unbroken(one.figure)}: "), said, *([small(one.sure)] if one.sure else [])]


def counted(verdicts, what="claim"):
    """How many claims or goals there are, and how many of them have each verdict, in words."""
    counts = Counter(verdicts)
    verdicts = sorted(counts, key=lambda verdict: (verdict not in GOOD, verdict))
    words = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in verdicts)
    return f"{counts.total()} {what}{'s' * (counts.total() != 1)} ({words})"


def summarize(app, error) -> None:
    """Say at the end of the build which claims hold; fail it then if that was asked for."""
    if error is not None or app.builder.name != "html":
        return
    claims = [*collected()]
    logger.info("There are %s", counted(claim["verdict"] for _, claim in claims))
    for page, claim in claims:
        if claim["verdict"] != HOLDS:
            where = f"{page.rpartition('/')[2]} on {claim['machine'] or 'any machine'}"
            text = f"{claim['sentence']} {claim['measured']}; {claim['bound']}"
            logger.info("%s (%s): %s", claim["verdict"], where, text)
    if os.environ.get(STRICT) and any(claim["verdict"] != HOLDS for _, claim in claims):
        logger.info("%s is set, and not every claim holds: the build has failed", STRICT)
        app.statuscode = 1


def setup(app):
    app.add_directive("claims-by-machine", ClaimsByMachine)
    app.add_directive("verdicts", Verdicts)
    app.connect("build-finished", summarize)
