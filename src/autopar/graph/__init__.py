"""Graph: let dependencies decide what runs at once.

Read `task_graph` first: tasks become nodes, `hazards` and `guard` say who waits for whom,
`schedule` chooses lanes, and `execution` carries out the `plan` they make, as a `run`.

`Schedule`, `Job`, `Entry` and `Resource` are loaded at their first use. The function is
`autopar.graph.schedule.schedule`: a file of its name is here already.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.graph.schedule import Entry, Job, Resource, Schedule

__all__ = ["Entry", "Job", "Resource", "Schedule"]


def __getattr__(name: str) -> Any:
    """Load a name at its first use."""
    if name not in __all__:
        msg = f"module 'autopar.graph' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module("autopar.graph.schedule"), name)
