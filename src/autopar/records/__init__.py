"""Records: measurements that can be believed later and elsewhere.

Read `experiment` first: `recorded` measures here or shows the record of where it was measured, if
its `digest` is that of the code. A `claim` holds a sentence against what was measured.
"""
