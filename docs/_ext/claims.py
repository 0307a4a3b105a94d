"""Claims: what the gallery's pages claim, collected as they run, and shown machine by machine."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from docutils import nodes
from docutils.parsers.rst import Directive
from machines import claims_by_machine
from side_by_side import Row, link, small, table, unbroken
from sphinx.util import logging

from autopar.records.claim import FAILS, HOLDS, UNSURE
from autopar.records.gallery import GALLERY
from autopar.records.store import FOLDER

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "auto_gallery"
SUFFIX = ".claims.json"  # a line for each claim, beside the page that makes it
STRICT = "AUTOPAR_STRICT"
WORDS = {  # of a verdict behind the number of claims that have it: one, or several
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold here", "do not hold here"),
    UNSURE: ("is too noisy to tell", "are too noisy to tell"),
    "met": ("is met", "are met"),
    "missed": ("is missed", "are missed"),
}
GOOD = HOLDS, "met"  # what needs no emphasis
BOUNDS = {"claim": "claimed", "goal": "goal"}
logger = logging.getLogger(__name__)


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
        read = [*GALLERY.rglob("plot_*.py"), *FOLDER.rglob("*.json")]
        for path in {*read, *(path.parent for path in read), *PAGES.rglob(f"*{SUFFIX}")}:
            env.note_dependency(str(path))
        told = [
            (one.page, {it: dated(claim) for it, claim in one.by_machine.items()})
            for one in claims_by_machine()
        ]
        live = [
            (page, {claim["machine"]: SimpleNamespace(**claim)})
            for page, claim in collected()
            if claim["origin"].startswith("measured live")
        ]
        return [*by_machine(told), *([self.section_of_live(live)] if live else [])]

    def section_of_live(self, live):
        title = "Measured live where this site was built"
        section = nodes.section(ids=[nodes.make_id(title)], names=[title.lower()])
        section += nodes.title(text=title)
        self.state.document.note_explicit_target(section)
        section += by_machine(live)
        return section


def dated(claim):
    """A claim whose figure says when it was measured."""
    found = re.search(r"\d{4}-\d\d-\d\d", claim.estimate.origin)
    figure, _, sure = claim.measured.removesuffix(")").partition(" (")
    said = "; ".join(filter(None, (sure, found and found[0])))
    names = "sentence", "verdict", "bound"
    fields = {name: getattr(claim, name) for name in names}
    return SimpleNamespace(**fields, measured=f"{figure} ({said})" if said else figure)


def by_machine(told, what="claim", linked=link):
    """How many claims or goals are met on each machine, and all: a row each, a column a machine."""
    machines = sorted({machine for _, ones in told for machine in ones})
    counts = nodes.bullet_list()
    for machine in machines:
        ones = [of[machine] for _, of in told if machine in of]
        words = nodes.Text(f": of {counted(ones, what)}.")
        named = nodes.strong(text=machine)
        counts += nodes.list_item("", nodes.paragraph("", "", named, words))
    rows = []
    for place, ones in told:
        one = next(iter(ones.values()))
        said = [nodes.Text(one.sentence), small(f"{BOUNDS[what]}: {one.bound}")]
        rows.append(Row(linked(place), said, {it: shown(claim) for it, claim in ones.items()}))
    return [counts, table(what.capitalize(), machines, rows)]


def shown(claim):
    """A figure, its verdict, and how sure it is."""
    figure, _, sure = claim.measured.partition(" (")
    verdict = claim.verdict
    said = nodes.Text(verdict) if verdict in GOOD else nodes.strong(text=verdict)
    more = [small(sure.removesuffix(")"))] if sure else []
    return [nodes.Text(f"{unbroken(figure)}: "), said, *more]


def counted(claims, what="claim"):
    """How many claims or goals there are, and how many of them have each verdict, in words."""
    verdicts = Counter(claim.verdict for claim in claims)
    words = " and ".join(
        f"{number} {WORDS[verdict][number > 1]}" for verdict, number in verdicts.most_common()
    )
    return f"{verdicts.total()} {what}s {words}"


def summarize(app, error) -> None:
    """Say at the end of the build which claims hold; fail it then if that was asked for."""
    if error is not None or app.builder.name != "html":
        return
    claims = [(page, claim) for page, claim in collected()]
    logger.info("Of %s", counted(SimpleNamespace(**claim) for _, claim in claims))
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
    app.connect("build-finished", summarize)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
