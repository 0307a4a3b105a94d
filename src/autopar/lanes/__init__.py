"""Lanes: run it beside other work, in order, on a CPU thread or a CUDA stream.

Read `lane` first: `submit` queues a task and returns a `Handle`, which yields the result only once
it is there. `cpu` and `cuda` are the two kinds of lanes.
"""
