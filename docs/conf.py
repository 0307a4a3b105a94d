"""Settings of the site; `python -m sphinx docs docs/_build/html` needs no others."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "src"), str(DOCS / "_ext")]

# A bare checkout builds as well as an installed package, in notebook kernels too; their
# pages share what is in _ext.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # its models warn of sizes that a page chose
os.environ["AUTOPAR_RICH"] = "1"  # autopar.show returns its argument, for the page to draw

from addresses import CHECKOUT_LINES, INSTALL_LINES, PUBLISHED, REPOSITORY, SITE  # noqa: E402
from gallery_hooks import FIRST_CELL  # noqa: E402
from inventories import write_inventories  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

import autopar.display.plot  # noqa: E402
from autopar.display.graph_plot import Planned  # noqa: E402

# -- The project ------------------------------------------------------------------------------
project = "autopar"
author = "The autopar authors"
copyright = "2026, The autopar authors"
release = autopar.__version__
ADDRESS = os.environ.get("READTHEDOCS_CANONICAL_URL", SITE)

# -- Sphinx -----------------------------------------------------------------------------------
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "myst_nb",  # brings the Markdown parser along: loading myst_parser too is an error
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "sphinxext.opengraph",
    "claims",
    "freshness",
    "gallery_pages",
    "glossary_links",
    "goals",
    "notebooks",
    "records",
    "said_once",
    "simulator",
    "published",
    "search_words",
]
# Without .ipynb: the gallery writes notebooks to download, and myst-nb would run them again.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
exclude_patterns = ["_build", "**.ipynb_checkpoints", "**/sg_execution_times.rst"] + [
    f"auto_gallery/**{suffix}" for suffix in (".ipynb", ".json", ".md5", ".zip", ".py")
]
nitpicky = True
default_role = "code"  # so that `name` reads as code in docstrings, as it does in Markdown
intersphinx_mapping = write_inventories(DOCS / "intersphinx.txt", DOCS / "_build" / "inventories")
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"

# -- Reference --------------------------------------------------------------------------------
# What the module imports for type checkers only.
autopar.plot.Axes = Axes
autopar.plot.Planned = Planned
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
nitpick_ignore_regex = [("py:class", r"autopar\.[\w.]+\._?T")]  # type variables
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# -- Pages that run ---------------------------------------------------------------------------
nb_execution_mode = "force"  # whenever a page is read: what it prints is no older than the page
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_output_stderr = "warn"
nb_merge_streams = True
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "substitution"]
myst_substitutions = {
    "install": INSTALL_LINES,
    "checkout": CHECKOUT_LINES,
}
myst_heading_anchors = 3

sphinx_gallery_conf = {
    "examples_dirs": "../gallery",
    "gallery_dirs": "auto_gallery",
    # One line for each section, in reading order; a section is a folder with a GALLERY_HEADER.rst.
    "subsection_order": [
        "../gallery/first_steps",
        "../gallery/copies",
        "../gallery/one_device",
        "../gallery/tools",
        "../gallery/graphs",
        "../gallery/distributed",
        "*",
    ],
    "filename_pattern": r"/plot_",
    "within_subsection_order": "autopar.display.format.by_number",
    "first_notebook_cell": FIRST_CELL,
    "image_scrapers": ("gallery_hooks.save_figures",),
    "image_srcset": ["2x"],
    "default_thumb_file": str(DOCS / "_static" / "thumbnail.png"),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib\.",
    "reset_modules": (
        *("matplotlib", "gallery_hooks.reset_style", "gallery_hooks.reset_torch"),
        "claims.collect_anew",
    ),
    "doc_module": ("autopar",),
    "backreferences_dir": "auto_gallery/backreferences",
    "inspect_global_variables": False,  # link what the page writes out, not every `int`
    "css": ("sg_gallery",),
    "junit": "../gallery-junit.xml",
    "remove_config_comments": True,
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
    "parallel": False,  # scripts time their own work: a neighbour would be timed with it
}

# -- HTML -------------------------------------------------------------------------------------
html_theme = "furo"
html_title = "autopar"
html_baseurl = ADDRESS
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["autopar.css", "gallery.css", "timeline.css", "simulator.css"]
_SCRIPTS = ("autopar.js", "simulator.js", "timeline.js")
html_js_files = [(name, {"defer": "defer"}) for name in _SCRIPTS]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_show_sourcelink = False
html_search_scorer = str(DOCS / "_ext" / "search_order.js")
html_theme_options = {
    "source_repository": REPOSITORY if PUBLISHED else "",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": [],  # gallery pages are generated: there is no such file to edit
    "footer_icons": [{"name": "Source on GitHub", "url": REPOSITORY, "html": "Source", "class": ""}]
    * PUBLISHED,
}
ogp_site_url = ADDRESS
ogp_social_cards = {
    "font": "DejaVu Sans",  # comes with matplotlib
    "line_color": "#1f5fbf",
    "description_max_length": 300,  # all of it: see `published`
    "image_mini": "_static/thumbnail.png",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
