"""Source links: where a documented name is written, on the project's repository."""

import inspect
import pkgutil
from operator import attrgetter
from pathlib import Path

from addresses import PUBLISHED, SOURCES

ROOT = Path(__file__).parents[2]


def linkcode_resolve(domain, info):
    """The address of the lines that define a name, or None where there are none (constants)."""
    if domain != "py" or not PUBLISHED:
        return None
    module = pkgutil.resolve_name(info["module"])
    try:
        defined = inspect.unwrap(attrgetter(info["fullname"])(module))
        if isinstance(defined, property):
            defined = defined.fget
        lines, first = inspect.getsourcelines(defined)
        path = Path(inspect.getsourcefile(defined)).resolve().relative_to(ROOT)
    except (AttributeError, OSError, TypeError, ValueError):
        return None  # a field, a constant, or a method that Python wrote
    return f"{SOURCES}/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"
