"""Transfer: copy it beside other work, through a ring of pinned memory.

Read `pipeline` first: what comes from a `source` is cut into loads by the parcels of `to_host` and
`to_device` (`parcel` has what both do), small tensors in a `block`; `targets` notes where the
caller's own memory is written. Each `load` travels through a `slot` of a `ring` by the rules of
`copy_plan`, on the stream of `copy_stream`; `workers` move what is large within host memory. A
`delivery` is a copy that nobody has to ask for. `layout` is how a tensor lies in memory, `owner`
finds who else can reach it, and `use` says who may use the pipeline.
"""
