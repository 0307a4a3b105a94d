"""Timeline: what ran when? Spans on lanes, without torch.

Read `span` first: a `Timeline` is a set of named intervals, and its figures are lengths of unions.
`intervals` does the same for a million of them; `chrome_trace` writes a timeline as a file.
"""
