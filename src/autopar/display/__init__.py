"""Display: show tables, timelines and plans at a terminal, on a page and in figures.

Read `table` and `svg` first: both make text and HTML of the same figures, in the words of `text`
and the numbers of `format`; a `comparison` is a table of measurements beside a limit, which it is
given (a record computes one). `plot`, `lanes_plot` and `graph_plot` draw on matplotlib's axes, the
last where `graph_layout` says. `rows` has the places of bars for `shapes`, which is SVG, and for
`plot`; `titles` has what lanes are called there, and what stands in and under the bars. `show`
picks terminal or `page`. A `prediction` is the timeline that a copy pipeline would have at best.
"""
