"""What tests of the site share: the extensions of its build, and one browser for all pages."""

import importlib.util
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from reader import CHROMIUM

if not importlib.util.find_spec("sphinx_gallery"):  # nor what else comes with the group docs
    needless = "test_code_on_pages.py"
    collect_ignore = [one.name for one in Path(__file__).parent.iterdir() if one.name != needless]
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))


@pytest.fixture
def extension():
    """Imports an extension; figures that it leaves are closed."""
    plt.switch_backend("agg")
    yield importlib.import_module
    plt.close("all")


@pytest.fixture(scope="session")
def browser():
    """Chromium, once for all tests of a process."""
    driver = pytest.importorskip("playwright.sync_api", reason="it comes with the group browser")
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-gpu"])
        yield chromium
        chromium.close()
