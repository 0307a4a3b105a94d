"""Graph: let dependencies decide what runs at once.

Read `task_graph` first: a `program` of tasks becomes a list, each one a `node`; `hazards` say who
waits for whom, `guard` and `audit` whether tasks do what they have said; `schedule` chooses lanes,
as many as `lane_counts` finds best, and `execution` carries out the steps of the `plan` they make,
until a `failure`, as a `run` on the lanes of a `runner`; each thread tells what it waits for by an
`awaited_node`. `tracing` makes a program of unmodified code, each operator a `traced_call`, by way
of `watch`, of what is `known`, of `chance` for what it draws, and of `assignments`,
or tells why it is `refused`; `capture` makes a CUDA graph, after trials that leave all `unchanged`.
"""

from autopar.graph.schedule import Entry, Job, Resource, Schedule

__all__ = ["Entry", "Job", "Resource", "Schedule"]
