"""The project's chores: one session, one verb. `nox -l` lists them, `nox` runs the first three."""

import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"  # with pip, whose settings choose torch's build
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests", "docs"]

GROUPS = nox.project.load_toml("pyproject.toml")
CONSTRAINTS = "--constraint=constraints.txt"
SITE = Path("docs/_build/html")
RECORDS = Path("src/autopar/recorded")

BUILD_SITE = ("python", "-m", "sphinx", "-W", "--keep-going", "docs", str(SITE))
CHECK_LINKS = (*BUILD_SITE[:-2], "-b", "linkcheck", "docs", "docs/_build/linkcheck")
SITE_TESTS = "tests/site"  # `docs` runs them
TEST = ("python", "-m", "pytest", f"--ignore={SITE_TESTS}")
ON_TWO_CORES = ("-n", "2", "--dist", "worksteal")  # a core that is done takes from the other
CHECK_SITE = ("python", "-m", "pytest", "--no-header", *ON_TWO_CORES, SITE_TESTS)
TEST_ON_GPU = ("python", "-m", "pytest", "-m", "gpu")
RECORD = ("python", "-m", "autopar", "record")

# A GPU machine brings a torch that fits its driver; these environments see it and add to it.
on_gpu = nox.session(venv_params=["--system-site-packages"])


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, spelling and types."""
    install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("codespell")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Test the package in minutes (or some files of it)."""
    install(session, "test", "models")
    session.run(*TEST, *(session.posargs or ON_TWO_CORES))


@nox.session(venv_backend="none")  # in that of `tests`
def stress(session: nox.Session) -> None:
    """Try all that is marked `stress`: random programs, faults, mutants, large and broken files."""
    tests = (sys.executable, "-m", "nox", "-s", "tests", "--", *ON_TWO_CORES, "-m", "stress")
    session.run(*tests, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, check it, and say where to open it."""
    install(session, "docs", "browser")
    build_site(session)


@nox.session
def links(session: nox.Session) -> None:
    """Ask the network whether the site's links to elsewhere still lead somewhere."""
    install(session, "docs")
    session.run(*CHECK_LINKS, *session.posargs)


@on_gpu
def gpu_tests(session: nox.Session) -> None:
    """Test what needs a GPU."""
    install_beside_torch(session, "test")
    session.run(*TEST_ON_GPU, *session.posargs)


@on_gpu
def record(session: nox.Session) -> None:
    """Measure every experiment on this machine's GPUs and write the records."""
    install_beside_torch(session)
    session.run(*RECORD, *session.posargs)


@on_gpu
def gpu(session: nox.Session) -> None:
    """Do all that a GPU machine does: test, build the site live, and write its records."""
    install_beside_torch(session, "docs")
    session.run(*TEST_ON_GPU)
    session.env["AUTOPAR_RECORD_TO"] = str(RECORDS.resolve())
    build_site(session)
    session.run(*RECORD, "--check")


def install(session: nox.Session, *groups: str) -> None:
    # Few modules of what is installed are ever imported: pip need not compile them all.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # so that those are compiled once
    packages = nox.project.dependency_groups(GROUPS, *groups)
    session.install("--no-compile", CONSTRAINTS, "-e", ".", *packages)


def install_beside_torch(session: nox.Session, group: str = "") -> None:
    found = session.run("python", "-c", "import torch", silent=True, success_codes=[0, 1])
    if "ModuleNotFoundError" in str(found):
        session.error("no torch here: run nox with the Python that has it (see README.md)")
    session.install("--no-deps", "-e", ".")
    requirements = nox.project.dependency_groups(GROUPS, group) if group else ()
    session.install(CONSTRAINTS, "nvidia-ml-py", *requirements)


def build_site(session: nox.Session) -> None:
    # `-j` is for reading and writing pages. The gallery times its own work, and runs before that,
    # one script after the other; the notebooks only read records.
    session.run(*BUILD_SITE, *session.posargs)
    session.run(*CHECK_SITE)
    session.log(f"The site is built. Open {(SITE / 'index.html').resolve().as_uri()}")
