"""Glossary links: the first use of each of the glossary's terms on a page leads to its entry.

Pages use a term in their paragraphs; some stand in the tables and claims that cells put out, too.
"""

import functools
import re

from docutils import nodes

# These pages stay: they explain the terms, or are for those who know them.
_OTHERS = ("glossary", "reference", "contributing")
# Where a term is a name or a label, or leads somewhere already.
_LEFT_ALONE = (nodes.reference, nodes.literal, nodes.title, nodes.caption, nodes.table, nodes.raw)
_CLOSED = {"sd-card", "autopar-name"}  # a card, which a link of its own covers, and a way's name
_IN_OUTPUTS = re.compile(
    r"(?<=>)(spread)(?= \(IQR\)</th>)|(?<=>share of )(makespan)(?=</th>)"
    r"|(?<=: )(95 % interval|range)(?=, \d+ samples\))"
)
# Terms that are verbs, too: these are linked behind a word that stands before nouns.
_VERB = re.compile("branch|capture|claim|host|launch|limit|plan|prefetch|record|span|stream|trace")
_BEFORE_A_NOUN = re.compile(
    r"\b(an?|the|this|that|each|every|any|no|one|another|which|what|whose|its|their|your|our|of|in"
    r"|from|with|by|per|without|as|on|for|side|second|copy|computing|first|new|same)\W+$",
    re.IGNORECASE,
)
_CAPITALS = {"GIL", "NVTX", "D2H", "H2D", "METG", "NCCL", "TF32"}  # terms that are written so
_TOLD_WITH = {"range": "95 % interval"}  # of a few samples; in prose a range is something else


def link_first_uses(app, doctree, page):
    """Link the first use of each term in the paragraphs of a page."""
    objects = app.env.get_domain("std").objects
    entries = {name: place for (kind, name), place in objects.items() if kind == "term"}
    if page.startswith(_OTHERS) or not entries:
        return
    names = {name.lower(): name for name in entries}
    terms, linked = _terms(tuple(entries)), set()

    def address(words):
        """Where a term's entry is, at its first use; of none, or one linked before, nothing."""
        term = names.get(words.lower())
        if term is None or term in linked:
            return ""
        linked.add(term)
        place, anchor = entries[term]
        return f"{app.builder.get_relative_uri(page, place)}#{anchor}"

    def link_in_output(match):
        uri = address(_TOLD_WITH.get(match[0], match[0]))
        link = f'<a class="reference internal term" href="{uri}">{match[0]}</a>'
        return link if uri else match[0]

    for text in list(doctree.findall(nodes.Text)):
        parents = list(_parents(text))
        if isinstance(text.parent, nodes.raw) and text.parent.get("format") == "html":
            text.parent.replace(text, nodes.Text(_IN_OUTPUTS.sub(link_in_output, text)))
        elif in_prose(parents):
            said = _said_before(text)
            parts, done = [], 0
            for match in terms.finditer(text):
                if means(match, said) and (uri := address(match[1])):
                    attributes = {"refuri": uri, "internal": True, "classes": ["term"]}
                    link = nodes.reference("", match[0], **attributes)
                    parts += [nodes.Text(text[done : match.start()]), link]
                    done = match.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[done:])])


def in_prose(parents):
    """Whether what has these parents is read in a paragraph, and is no name and no label."""
    return any(isinstance(parent, nodes.paragraph) for parent in parents) and not any(
        isinstance(parent, _LEFT_ALONE) or _CLOSED & {*parent["classes"]} for parent in parents
    )


def means(match, before):
    """Whether what was found is the term, and no placeholder in capitals and no verb."""
    word = match[1]
    if word.isupper() and len(word) > 1 and word not in _CAPITALS:
        return False
    here = before + match.string[: match.start()]
    return not _VERB.fullmatch(word.lower()) or bool(_BEFORE_A_NOUN.search(here))


def _said_before(text):
    """What its paragraph says before a piece of text."""
    paragraph = next(parent for parent in _parents(text) if isinstance(parent, nodes.paragraph))
    pieces = list(paragraph.findall(nodes.Text))
    return "".join(pieces[: next(i for i, piece in enumerate(pieces) if piece is text)])


@functools.cache
def _terms(names):
    """Any of the terms as a word, the longest first; a plural may be a verb, as in `it records`."""
    alternatives = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"\b({alternatives})\b", re.IGNORECASE)


def _parents(node):
    while (node := node.parent) is not None:
        yield node


def setup(app):
    app.connect("doctree-resolved", link_first_uses)
