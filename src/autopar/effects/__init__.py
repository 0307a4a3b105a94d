"""Effects: what does a call read, write and draw? Only `task` knows that there are graphs.

Read `calls` first: what torch's `operators` say of a call before it is made; of other functions
nothing is known. `memory` tells which objects hold tensors and arrays and where those lie, `access`
which of two calls must wait for the other by that. `state` is all that a call can reach, by the
names that its code `loads`, and settings that all share: to see what it changed, and to put that
back. A `task` stands for a result.
"""
