"""Effects: what does a call read, write and draw? Only `task` knows that there are graphs.

Read `calls` first: what is known of a call before it is made, of torch's `operators` by what they
declare, of its `chance` by those too. `reach` finds what it can use without being given it, by the
`loads` of its code, the `objects` it holds, their `bindings` and their `kinds`; `hidden` is what
lies where nobody can look. `observer` sees what a call really reads and writes, as `memory`, and
`access` who then has to wait for whom. `state` is put back after a trial. `task` stands for a
result.
"""
