"""Event text: the text of a Chrome trace, decoded event by event."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_EVENTS = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # up to the first
_BEGUN = re.compile(r"\s*(?:[\[{]|$)")  # what may become a match of it
_BETWEEN = re.compile(r"[\s,]*")  # two events
_SHOWN = 20  # characters of what is no trace
_PIECE = 1 << 20  # characters to decode at a time


class EventText:
    """A JSON text of which no more than a piece is kept: large traces would take gigabytes."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces, self._text, self._at, self._before = pieces, "", 0, 0
        self.damage = ""  # what ended the reading too early

    def decode(self, take: Callable[[Any], None]) -> Mapping[str, Any] | None:
        """Hand each event on; return what stands beside them, or None if it is no trace."""
        while (
            not (start := _EVENTS.match(self._text)) and _BEGUN.match(self._text) and self._more()
        ):
            pass
        if not start:
            begins = f"it begins with {self._text[:_SHOWN]!r} and has no list of traceEvents"
            self.damage = self.damage or begins
            return None
        self._at = start.end()
        rests = ["]}", "]"]
        try:
            self._decode_events(take)
            while self._more():
                pass
            rests.insert(0, self._text)
        except (ValueError, RecursionError):
            self._note_damage()
        for rest in rests:
            try:
                whole = json.loads(start[0] + rest, strict=False)
            except (ValueError, RecursionError):
                self._note_damage()
            else:
                return whole if isinstance(whole, dict) else {}
        return {}

    def _decode_events(self, take: Callable[[Any], None]) -> None:
        """Hand on what comes before the end of the list, of which the text then begins."""
        decode = json.JSONDecoder(strict=False).raw_decode
        while True:
            self._at += len(_BETWEEN.match(self._text, self._at)[0])  # type: ignore[index]
            try:
                event, self._at = decode(self._text, self._at)
            except json.JSONDecodeError:
                if self._text.startswith("]", self._at):
                    return
                if not self._more():
                    raise
            else:
                take(event)

    def _note_damage(self) -> None:
        where = f"after {self._before + self._at:,} characters"
        self.damage = self.damage or f"it ends early or is not JSON {where}"

    def _more(self) -> bool:
        """Take in as much again as is left, so that no text is decoded many times; if there is."""
        self._before += self._at
        pieces, self._at = [self._text[self._at :]], 0
        wanted = max(_PIECE, len(pieces[0]))
        try:
            while wanted > 0 and (piece := next(self._pieces, "")):
                pieces.append(piece)
                wanted -= len(piece)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            self.damage = f"it can't be unpacked to its end ({error})"
        self._text = "".join(pieces)
        return len(pieces) > 1
