"""Display: show tables, timelines and plans at a terminal, on a page and in figures.

Read `table` and `svg` first: both make text and HTML of the same figures, in the words of `text`
and the numbers of `format`. `plot` and `graph_plot` draw on matplotlib's axes. `rows` has the
places of bars for `shapes`, which is SVG, and for `plot`. `show` picks terminal or `page`.
"""
