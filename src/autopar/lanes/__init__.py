"""Lanes: run it beside other work, in order, on a CPU thread or a CUDA stream.

Read `lane` first: `submit` queues a `submission`, with the `modes` of its thread, and returns a
`handle`, which yields the result only once it is there; `outcome` is how a task ended. `cpu` and
`cuda` are the two kinds of lanes, and `clock` puts a GPU's times on the host's.
"""
