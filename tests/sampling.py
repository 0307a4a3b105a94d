"""Few cases of many for a quick run; the others are marked `stress`."""

from itertools import product

import pytest


def every(step, values, name_of=None):
    """One value in so many is for a quick run, too."""
    return [
        pytest.param(
            value, marks=[pytest.mark.stress] * (i % step > 0), id=name_of and str(name_of(value))
        )
        for i, value in enumerate(values)
    ]


def names_of(marks):
    """The names that `parametrize` marks give values to, in the marks' order."""
    lists = [mark.args[0] for mark in marks]
    lists = [names.split(",") if isinstance(names, str) else names for names in lists]
    return [name.strip() for names in lists for name in names]


def few(marks, chance):
    """Cases that show each value of each parameter, and so for each value with marks (GPUs)."""
    parameters = [[_case(value, mark) for value in mark.args[1]] for mark in marks]
    if not all(parameters):
        return  # a parameter without values has no cases, as without this
    count = max((len(cases) for cases in parameters if not _is_marked(cases)), default=1)
    for kept in product(*(cases if _is_marked(cases) else [None] for cases in parameters)):
        columns = [
            [case] * count if case else _drawn(cases, count, chance)
            for cases, case in zip(parameters, kept, strict=True)
        ]
        for row in zip(*columns, strict=True):
            values = [value for case in row for value in case.values]
            yield pytest.param(*values, marks=[mark for case in row for mark in case.marks])


def _case(value, mark):
    if mark.kwargs:
        msg = f"parametrize of a stress test has {[*mark.kwargs]}; expected names and values alone"
        raise ValueError(msg)
    if hasattr(value, "marks"):  # it is a pytest.param
        return value
    several = len(names_of([mark])) > 1
    return pytest.param(*value) if several else pytest.param(value)


def _is_marked(cases):
    return any(case.marks for case in cases)


def _drawn(cases, count, chance):
    rounds = -(-count // len(cases))
    return [case for _ in range(rounds) for case in chance.sample(cases, len(cases))][:count]
