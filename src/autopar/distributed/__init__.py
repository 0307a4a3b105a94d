"""Distributed: one function in several processes, each with a GPU or a share of the CPU.

Read `launch` first: `on_ranks` calls a function on every rank. Its `agent`, PyTorch's own, starts
each `rank` and ends them all if one fails; `member` is what a rank does, started so or by torchrun;
`steps` races ways to train on them, and `joint` makes one of the findings of all ranks.
"""
