"""Events: those of a trace in Chrome's JSON format, decoded one after another."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 20  # characters
_PIECE = 1 << 13
_LONGEST = 1 << 24  # characters of one value; none that a profiler writes comes near it
_SPACE = re.compile(r"[ \t\r\n]*")


class Events:
    """The events of a JSON text, each decoded as it is asked for.

    A trace of a million events would take gigabytes if it were decoded at once.

    Args:
        text: An open text file, which may be cut off or damaged anywhere.

    Attributes:
        header: What stands beside the list of events, as far as it has been read.
        damage: Where and why reading ended before the end, or nothing.
        found: Whether there was a list of events.
    """

    def __init__(self, text: TextIO) -> None:
        self.header: dict[str, Any] = {}
        self.damage = ""
        self.found = False
        self._file, self._text = text, ""
        self._at = self._began = self._passed = 0
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def __iter__(self) -> Iterator[Any]:
        """Give each event, whatever it is, up to the end or to the first damage."""
        try:
            opening = self._peek()
            if opening == "[":
                yield from self._list()
            elif opening == "{":
                yield from self._object()
            if not opening or self._peek():
                raise ValueError
        # The decoder has ValueErrors for numbers of thousands of digits, too.
        except (ValueError, RecursionError):
            why = self.damage or "it ends early or is not JSON"
            self.damage = f"{why} after {self._passed + self._at:,} characters"

    def _object(self) -> Iterator[Any]:
        self._at += 1
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            self._peek()
            if key == "traceEvents" and self._peek() == "[" and not self.found:
                yield from self._list()
            else:
                self.header[str(key)] = self._value()
            if self._peek() != "}":
                self._expect(",")
                self._peek()
        self._at += 1

    def _list(self) -> Iterator[Any]:
        self.found = True
        self._at += 1
        mark = self._peek()
        while mark != "]":
            event = self._value()
            self._check_keys(event)
            yield event
            mark = self._peek()
            if mark == ",":
                self._at += 1
                self._peek()
            elif mark != "]":
                raise ValueError
        self._at += 1

    def _check_keys(self, event: Any) -> None:
        """Refuse an event that has a key twice: with a piece missing, two have become one."""
        if type(event) is not dict:
            return
        arguments = event.get("args")
        keys = len(event) + (len(arguments) if type(arguments) is dict else 0)
        # Counting is quick; only where it does not come out are the keys compared.
        if self._text.count('":', self._began, self._at) > keys:
            json.loads(self._text[self._began : self._at], strict=False, object_pairs_hook=_once)

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise ValueError
        self._at += 1

    def _peek(self) -> str:
        """The next character that is not a space, or none at the end."""
        if self._text[self._at : self._at + 1] > " ":  # most often there is no space
            return self._text[self._at]
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except (ValueError, RecursionError):
                # Either it goes on in the next chunk, or it is damaged; more text will show.
                if len(self._text) - self._at > _LONGEST or not self._more():
                    raise
            else:
                # A number at the end of a chunk may be half of one.
                if end < len(self._text) or not self._more():
                    self._began, self._at = self._at, end
                    return value

    def _more(self) -> bool:
        rest = self._text[self._at :]
        pieces: list[str] = []
        # In small pieces, since what can't be unpacked takes the piece with it.
        for _ in range(0, max(_CHUNK, len(rest)), _PIECE):
            if not self._read_piece(pieces):
                break
        if pieces:
            self._passed += self._at
            self._text, self._at = rest + "".join(pieces), 0
        return bool(pieces)

    def _read_piece(self, pieces: list[str]) -> bool:
        try:
            piece = "" if self.damage else self._file.read(_PIECE)
        except (OSError, EOFError, zlib.error) as error:
            self.damage = f"it can't be unpacked to its end ({error})"
            return False
        if piece:
            pieces.append(piece)
        return bool(piece)


def _once(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if "ph" in keys and len(set(keys)) < len(keys):
        raise ValueError
