"""Lanes: run it beside other work, in order, on a CPU thread or a CUDA stream.

Read `lane` first: a lane is a queue of `submission`s, each with the `modes` of the thread that gave
it away; `cpu` and `cuda` issue the first of them. A `handle` is what the caller gets for one, and
yields the result only once it is there. `outcome` is how a task ended, and `clock` puts a GPU's
times on the host's.
"""
