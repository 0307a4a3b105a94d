"""Source: the iterable that a pipeline's items come from."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from autopar.refusal import what

T = TypeVar("T")

_GIVEN = {list, tuple, type(iter([])), type(iter(()))}  # whose items are there already


def iterated(values: Iterable[T], name: str, instead: str) -> Iterator[T]:
    """An iterator, refused for what could only be a mistake."""
    if isinstance(values, torch.Tensor):
        msg = f"{name} is a single tensor; expected an iterable of them. Pass {instead}."
        raise TypeError(msg)
    if isinstance(values, (str, bytes, Mapping)):
        msg = f"{name} is {what(values)}, whose items are none; expected an iterable of them. "
        msg += f"Pass {instead}."
        raise TypeError(msg)
    if not isinstance(values, Iterable):
        msg = f"{name} is {what(values)}; expected an iterable, such as a list or a generator."
        raise TypeError(msg)
    if inspect.isgenerator(values) and values.gi_running:
        msg = f"{name} is a generator that is running already; expected one that is suspended."
        raise ValueError(msg)
    return iter(values)


def is_given(values: Iterable[Any]) -> bool:
    """Whether all items are there already; a subclass may make them as it is iterated over."""
    return type(values) in _GIVEN


def closing(results: Iterator[T], source: Iterator[Any]) -> Iterator[T]:
    """Yield the results, and close their source's generator whatever happens."""
    try:
        yield from results
    finally:
        if inspect.isgenerator(source):
            source.close()
