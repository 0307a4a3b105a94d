"""Effects: what does a call read, write and draw? Only `task` knows that there are graphs.

Read `calls` first: what torch's `operators` say of a call before it is made; of others nothing is
known. `observer` sees what a call really reads and writes, as `memory`, and `access` who then has
to wait for whom. `state` is all that a call can reach, by the names that its code `loads` and the
`objects` it holds: to see what it changed, and to put that back; `binder` notes what it has done
that is not known to be harmless. `hidden` is what lies where nobody looks. `task` stands for a
result.
"""
