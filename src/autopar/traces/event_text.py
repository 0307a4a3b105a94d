"""Event text: the text of a Chrome trace, decoded event by event."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BETWEEN = re.compile(r"[\s,:]*")  # two values
_PIECE = 1 << 20  # characters to decode at a time


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    decoded = dict(pairs)
    if len(decoded) < len(pairs) and "ph" in decoded:
        msg = "an event has a key twice"  # with a piece missing, two have become one
        raise ValueError(msg)
    return decoded


def _number(digits: str) -> float:
    return int(digits) if len(digits) < 100 else float(digits)


_WIDE = json.JSONDecoder(strict=False, object_pairs_hook=_unique, parse_int=_number)


class EventText:
    """A JSON text of which no more than a piece is kept: large traces would take gigabytes."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces, self._text, self._at, self._before = pieces, "", 0, 0
        self._raw_decode = json.JSONDecoder(strict=False, object_pairs_hook=_unique).raw_decode
        self.damage = ""  # what ended the reading too early

    def decode(self, take: Callable[[Any], None]) -> Mapping[str, Any] | None:
        """Hand each event on; return what stands beside them, or None if it is no trace."""
        header: dict[str, Any] = {}
        start = self._next()
        try:
            if start == "[":
                header["traceEvents"] = self._hand_on(take)
            elif start == "{":
                for _ in self._each("}"):
                    key, mark = self._value(), self._next()
                    are_events = (key, mark) == ("traceEvents", "[")
                    header[key] = self._hand_on(take) if are_events else self._value()
            if self._next() or not start:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            where = f"after {self._before + self._at:,} characters"
            self.damage = self.damage or f"it ends early or is not JSON {where}"
            return header if start in ("[", "{") else None
        if header.get("traceEvents") is self:
            return header
        self.damage = "it is JSON, but has no list of traceEvents"
        return None

    def _hand_on(self, take: Callable[[Any], None]) -> EventText:
        for _ in self._each("]"):
            take(self._value())
        return self

    def _each(self, end: str) -> Iterator[None]:
        """Stand before each value of a list, or key of an object, up to its end."""
        self._at += 1
        while self._next() != end:
            yield
        self._at += 1

    def _next(self) -> str:
        """The next character that matters; none at the end."""
        while True:
            self._at = _BETWEEN.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        """The next value, which may go on in the next piece of the text."""
        while True:
            try:
                value, end = self._raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            except ValueError:  # a number of thousands of digits is one that nobody means
                value, end = _WIDE.raw_decode(self._text, self._at)
            if end < len(self._text) or not self._more():
                self._at = end
                return value

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
