"""Transfer: copy it beside other work, through a ring of pinned memory.

Read `pipeline` first: a `CopyPipeline` cuts items into loads (`parcel`), and a `ring` moves them by
the rules of `copy_plan`.
"""
