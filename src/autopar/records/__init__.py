"""Records: measurements that can be believed later and elsewhere.

Read `experiment` first: `recorded` measures here or shows the `record` of where it was measured, if
its `digest` is that of the code; `store` keeps them as files, with their `provenance`. A `claim`
holds a sentence against what was measured, a `race` times several ways to one result, `nsight` runs
NVIDIA's profilers, and `gallery` knows which scripts show which records.
"""
