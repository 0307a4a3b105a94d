"""Parcel: how a pipeline's items become loads, and come back from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import CopyStream, Past, Waitable
from autopar.transfer.load import Load, wait_for_end


class Parcels(ABC):
    """The loads of an iterable's items, in order, made when they are asked for.

    An error ends them. It is kept, to be raised once the items before it have been taken. Of a
    source that is given, all items are there already: none changes when the next one is taken.
    """

    ahead_at_first = 1  # half of how many items to have under way before the first is yielded

    def __init__(self, verb: str, stream: CopyStream, source: Iterator[Any], given: bool) -> None:
        self._verb = verb
        self._stream = stream
        self._source = source
        self._given = given
        self._number = 0  # of the next item to make a load for
        self._failures: list[Exception] = []  # at most one, until it was raised
        self._reading: Waitable = Past()  # of the last item, where its memory is pinned

    def __iter__(self) -> Iterator[Load]:
        try:
            yield from self._loads()
        except Exception as error:
            self._failures.append(error)
            note(error, f"in item {self._number} of {self._verb}")

    def raise_failure(self) -> None:
        """Raise the error that ended them, if one did."""
        if self._failures:
            raise self._failures.pop()  # a local for it would keep its frames, and they the local

    def give_back(self) -> None:
        """Wait until the items that were yielded may be overwritten."""
        wait_for_end(self._reading)

    @abstractmethod
    def _loads(self) -> Iterator[Load]:
        """Take items from the source and make their loads."""

    @abstractmethod
    def unpack(self, load: Load) -> list[Any]:
        """The items of a load, once they are copied."""

    def _count(self, items: int) -> str:
        """Count items that a load is made for, and name them."""
        first, self._number = self._number, self._number + items
        numbers = f"item {first}" if items == 1 else f"items {first} to {self._number - 1}"
        return f"{numbers} of {self._verb}"
