"""Graph: let dependencies decide what runs at once.

Read `task_graph` first: a `program` of tasks becomes a list, each one a `node`; `hazards` say who
waits for whom, and `audit` whether tasks do what they have said; `schedule` chooses lanes,
and `execution` carries out the steps of the `plan` they make on the `graph_lanes`, as many as were
found best, for a `run` that is asked for results. `tracing` makes a program of unmodified code,
each operator a `traced_call`, by way of `watch`, of what is `known`, of `chance` for what it draws,
and of `assignments`, with `ctrl_c` held back, or tells why it is `refused`; `capture` makes a CUDA
graph, after trials that leave all unchanged.
"""

from autopar.graph.schedule import Entry, Job, Resource, Schedule

__all__ = ["Entry", "Job", "Resource", "Schedule"]
