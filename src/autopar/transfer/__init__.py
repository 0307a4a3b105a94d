"""Transfer: copy it beside other work, through a ring of pinned memory.

Read `pipeline` first: it cuts items into loads (`parcel`), each a `load`, and a `ring` moves them
by the rules of `copy_plan`, with the threads of its `crew` and the stream of `copy_stream`.
`layout` is how a tensor lies in memory, and `owner` finds who else can reach it.
"""
