"""Timing: how long does it take?

Read `timer` first: `measure` runs a function again and again and returns a `measurement`, the raw
seconds under a label. `fresh_process` calls a function where nothing has run before.
"""
