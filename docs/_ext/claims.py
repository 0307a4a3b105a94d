"""Claims: what the gallery's pages claim, collected as they run, and shown by machine."""

import json
import os
from collections import Counter
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.addnodes import pending_xref
from sphinx.util import logging

from autopar.records.claim import FAILS, HOLDS, UNSURE

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "auto_gallery"
GALLERY = DOCS.parent / "gallery"
SUFFIX = ".claims.json"  # a line for each claim, beside the page that makes it
STRICT = "AUTOPAR_STRICT"
WORDS = {  # of a verdict behind the number of claims that have it: one, or several
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold here", "do not hold here"),
    UNSURE: ("is too noisy to tell", "are too noisy to tell"),
}
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
    """A table for each machine: every claim with its page, its figure, its bound, its verdict."""

    def run(self):
        self.state.document.settings.env.note_reread()  # other pages' claims change by themselves
        by_machine = {}
        for page, claim in collected():
            machine = claim["machine"] or "Of no one machine"
            by_machine.setdefault(machine, []).append((page, claim))
        if not by_machine:
            return [nodes.paragraph(text="No page has run in this build.")]
        return [
            section
            for machine, claims in sorted(by_machine.items())
            for section in [self.section(machine, claims)]
        ]

    def section(self, machine, claims):
        section = nodes.section(ids=[nodes.make_id(f"on {machine}")], names=[machine.lower()])
        section += nodes.title(text=machine)
        section += nodes.paragraph(text=f"{counted(claim for _, claim in claims)}.")
        self.state.document.note_explicit_target(section)
        section += table(claims)
        return section


def table(claims):
    """Each claim over its page, and what was measured over what is claimed: it fits on a phone."""
    head = ("Claim", "Measured", "Verdict")
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=width) for width in (50, 35, 15)]
    group += nodes.thead("", row(*([nodes.Text(text)] for text in head)))
    group += nodes.tbody()
    for page, claim in claims:
        verdict = claim["verdict"]
        shown = nodes.Text(verdict) if verdict == HOLDS else nodes.strong(text=verdict)
        sentence, measured = (nodes.Text(unbroken(claim[key])) for key in ("sentence", "measured"))
        bound = nodes.Text(f"Claimed: {unbroken(claim['bound'])}")
        group.children[-1] += row([sentence, link(page)], [measured, bound], [shown])
    return nodes.table("", group, classes=["autopar-claims"])


def unbroken(text):
    """Words with each unit on the line of its number."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace(" ×", "\N{NO-BREAK SPACE}×")


def row(*cells):
    """A row of cells with some paragraphs each."""
    return nodes.row(
        "", *(nodes.entry("", *(nodes.paragraph("", "", each) for each in cell)) for cell in cells)
    )


def link(page):
    """A link to a page, under its title."""
    return pending_xref(
        "",
        nodes.inline(),
        refdomain="std",
        reftype="doc",
        refexplicit=False,
        refwarn=True,
        refdoc="claims",
        reftarget=page,
    )


def counted(claims):
    """How many claims there are, and how many of them have each verdict, in words."""
    verdicts = Counter(claim["verdict"] for claim in claims)
    words = " and ".join(
        f"{number} {WORDS[verdict][number > 1]}" for verdict, number in verdicts.most_common()
    )
    return f"Of {verdicts.total()} claims {words}"


def summarize(app, error) -> None:
    """Say at the end of the build which claims hold; fail it then if that was asked for."""
    if error is not None or app.builder.name != "html":
        return
    claims = [(page, claim) for page, claim in collected()]
    logger.info("%s", counted(claim for _, claim in claims))
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
