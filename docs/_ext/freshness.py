"""Freshness: pages run again when the package, its records, torch or the machine change.

Sphinx and sphinx-gallery look at a page's own text only, and would keep showing what an older
package printed.
"""

import hashlib
import os
import platform
import shutil
from pathlib import Path

import torch
from sphinx.util import logging

from autopar.machine import describe
from autopar.records.experiment import RECORD_TO
from autopar.records.gallery import scripts_of, stale_records, unshown_records
from autopar.records.store import FOLDER

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "auto_gallery"
logger = logging.getLogger(__name__)
_WATCHED = (("src", "*.py"), ("src", "*.json"), ("docs/_ext", "*.py"))


def stamp() -> str:
    """A digest of everything that pages depend on besides their own text."""
    digest = hashlib.sha256()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cpu = [describe()["hardware"][field] for field in ("cpu", "cpu_cores")]
    digest.update(repr((platform.python_version(), torch.__version__, devices, cpu)).encode())
    for folder, pattern in _WATCHED:
        for path in sorted((DOCS.parent / folder).rglob(pattern)):
            digest.update(path.relative_to(DOCS.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def look_at_records(app, config) -> None:
    """Look at all records before any page runs: to find the first bad one takes minutes otherwise.

    A build that writes them looks at those it could not measure when it comes to their pages.
    """
    if os.environ.get(RECORD_TO):
        return
    scripts = scripts_of(DOCS.parent / "gallery")
    bad = [*stale_records(scripts, FOLDER, may_be_earlier=True), *unshown_records(scripts, FOLDER)]
    if bad:
        lines = "\n".join(bad)
        msg = f"{len(bad)} records can't be shown:\n{lines}"
        raise SystemExit(msg)  # no traceback helps
    for line in stale_records(scripts, FOLDER):
        logger.info("shown, and said to be of an earlier version: %s", line)


def forget_stale_pages(app, config) -> None:
    """Make all pages of the gallery anew if the stamp or the list of scripts has changed."""
    gallery = DOCS.parent / "gallery"
    names = [str(script.relative_to(gallery)) for script in scripts_of(gallery)]
    last, now = PAGES / ".stamp", "\n".join([config.autopar_stamp, *names])
    if last.exists() and last.read_text() == now:
        return
    for folder in (PAGES, Path(app.outdir, PAGES.name)):
        shutil.rmtree(folder, ignore_errors=True)
    PAGES.mkdir()
    last.write_text(now)


def setup(app):
    app.add_config_value("autopar_stamp", stamp(), "env")
    app.connect("config-inited", look_at_records, priority=50)
    app.connect("config-inited", forget_stale_pages, priority=100)
