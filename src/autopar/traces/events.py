"""Events: those of a trace in Chrome's JSON format, each handed on as soon as it is decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

_LIST = re.compile(r',?\s*"traceEvents"\s*:\s*\[')
_TAKEN = object()  # what stays of an event that was handed on


class Document(NamedTuple):
    """What a JSON text is, its events aside.

    Args:
        header: What stands beside the list of events.
        has_list: Whether there is a list of events.
        damage: Why and where reading ended before the end; empty if it did not.
    """

    header: dict[str, Any]
    has_list: bool
    damage: str


def decode(text: str, take: Callable[[Any], None]) -> Document:
    """Hand each event of a JSON text on, up to the end or to the first damage.

    What is handed on is not kept: a trace of a million events would take gigabytes.

    Args:
        text: May be cut off or damaged anywhere.
        take: Called with each event, whatever it is.
    """

    def finish(pairs: list[tuple[str, Any]]) -> Any:
        decoded = dict(pairs)
        if "ph" not in decoded:  # only events have a phase
            return decoded
        if len(decoded) < len(pairs):
            msg = "an event has a key twice"  # with a piece missing, two have become one
            raise ValueError(msg)
        take(decoded)
        return _TAKEN

    try:
        whole = json.loads(text, strict=False, object_pairs_hook=finish)
    # The decoder has ValueErrors for numbers of thousands of digits, too.
    except (ValueError, RecursionError) as error:
        where = (
            f" after {error.pos:,} characters" if isinstance(error, json.JSONDecodeError) else ""
        )
        return _damaged(text, f"it ends early or is not JSON{where}")
    header = whole if type(whole) is dict else {}
    events = header.pop("traceEvents", None) if type(header.get("traceEvents")) is list else whole
    if type(events) is not list:
        return Document(header, has_list=False, damage="")
    for event in events:
        if event is not _TAKEN:  # it is none
            take(event)
    return Document(header, has_list=True, damage="")


def _damaged(text: str, why: str) -> Document:
    """A text whose header the decoder has not given: it is what precedes the events."""
    opening, begin = text[:64].lstrip()[:1], _LIST.search(text)
    if opening != "{" or not begin:
        return Document({}, opening == "[", why)
    try:
        header = json.loads(f"{text[: begin.start()]}}}", strict=False)
    except (ValueError, RecursionError):
        header = {}
    return Document(header, has_list=True, damage=why)
