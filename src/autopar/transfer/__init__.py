"""Transfer: copy it beside other work, through a ring of pinned memory.

Read `pipeline` first: it cuts items into loads (`parcel`), each a `load`, and a `ring` moves them
by the rules of `copy_plan`, on the stream of `copy_stream`; its `workers` move what is large within
host memory. A `delivery` is a copy that nobody has to ask for. `layout` is how a tensor lies in
memory, and `owner` finds who else can reach it.
"""
