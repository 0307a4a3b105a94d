"""Display: show tables, timelines and plans at a terminal, on a page and in figures.

Read `table` and `svg` first: both make text and HTML of the same figures, in the words of `text`
and the numbers of `format`; `compare` makes a table of measurements beside a limit, which it is
given (a record computes one). `rows` says what a picture of a timeline has: `svg` draws that for a
page, and `plot`, which has what figures are made with, on matplotlib's axes; `graph_plot` draws
plans. `show` picks terminal or `page`.
"""
