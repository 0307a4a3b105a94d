"""Effects: what does a call read, write and draw? Nothing here knows of graphs or lanes.

Read `calls` first: what is known of a call before it is made, of torch's `operators` by what they
declare. `reach` finds what it can use without being given it, `observer` what it really reads and
writes, `access` who then has to wait for whom.
"""
