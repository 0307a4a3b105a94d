"""Graph: let dependencies decide what runs at once.

Read `task_graph` first: a `program` of tasks becomes nodes, `hazards` and `guard` say who waits for
whom, `schedule` chooses lanes, and `execution` carries out the `plan` they make, as a `run`.
"""

from autopar.graph.schedule import Entry, Job, Resource, Schedule

__all__ = ["Entry", "Job", "Resource", "Schedule"]
