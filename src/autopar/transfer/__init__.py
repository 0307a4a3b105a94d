"""Transfer: copy it beside other work, through a ring of pinned memory.

Read `pipeline` first: the items of a `source` become loads by the parcels of `to_host` and
`to_device` (`parcel` has what both do). The chunks of a `load` go through the slots of a `ring` by
the rules of `copy_plan`, on a `copy_stream`; `workers` move what is large within host memory. A
`delivery` is a copy that nobody has to ask for. `layout` is how tensors lie in memory, `reuse`
gives that of results out again, and `use` says who may use the pipeline.
"""
