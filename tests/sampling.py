"""Few cases of many for a quick run; the others are marked `stress`."""

import random

import pytest


def every(step, values, name_of=None):
    """One value in so many is for a quick run, too."""
    return [
        pytest.param(
            value, marks=[pytest.mark.stress] * (i % step > 0), id=name_of and str(name_of(value))
        )
        for i, value in enumerate(values)
    ]


def quick(items):
    """All that isn't marked `stress`, and few cases of each parametrized test that is.

    They show each value of each parameter, and so on GPUs for each parameter but the device. They
    are the same whatever else runs.
    """
    seen, kept = set(), set()
    for item in sorted(items, key=lambda item: random.Random(item.nodeid).random()):
        if item.get_closest_marker("stress") is None:
            kept.add(item)
            continue
        case = getattr(item, "callspec", None)
        if case is None or any(mark.name == "stress" for mark in case.marks):
            continue
        test = item.parent.nodeid, item.originalname, item.get_closest_marker("gpu") is not None
        shown = {(test, name, id(value)) for name, value in case.params.items()}
        if not shown <= seen:
            seen |= shown
            kept.add(item)
    return [item for item in items if item in kept]
