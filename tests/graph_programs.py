"""Random programs of tasks on several devices, and what they are to give.

A program draws from any `random.Random`: one with a seed, or one of hypothesis, which shrinks it.
"""

from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from autopar import TaskGraph

CPU, LABELS = ("cpu",), ("cpu", "cuda:0", "cuda:1")
_N = 4  # numbers in a row; whole ones, far below 2**53, so that all devices agree on every bit


# -- what tasks do --------------------------------------------------------------------------------


def last(values):
    return pytree.tree_leaves(values)[-1]


def total(x, others):
    return x + sum(other.sum() % 1000 for other in pytree.tree_leaves(others))


def added_to(x, y):
    """Writes one argument and returns the other."""
    x.add_(y.clone())  # they may overlap
    return y


def exchanged(x, y):
    x_before = x.clone()
    x.copy_(y.clone())
    y.copy_(x_before)
    return x


def raised(values):
    last(values).add_(1)
    return values


class Kind(NamedTuple):
    """A kind of step: `count` values go in, and `rest`; it writes the first `writes` of them."""

    fn: Any
    count: int = 1
    rest: tuple = ()
    rows: int | None = None  # that its values must have, if not any; containers have none
    after: int | None = None  # rows of its result, if not the same
    alias: bool = True  # its result may lie in the memory of an argument
    through: tuple = ()  # what its arguments, but for those that it writes, go through first
    writes: int = 0


_FRESH = [Kind(fn, 2, alias=False) for fn in (torch.add, torch.sub, torch.maximum)]
_FRESH += [Kind(torch.neg, alias=False), Kind(torch.clone, alias=False)]
_FRESH += [Kind(torch.add, rest=(2,), alias=False)]
_FRESH += [Kind(torch.mm, 2, rows=_N, alias=False, through=(torch.remainder, 7))]
_VIEWS = [Kind(torch.Tensor.view, rest=(_N, _N), rows=_N), Kind(torch.t, rows=_N)]
_VIEWS += [Kind(torch.narrow, rest=(0, 1, 2), rows=_N, after=2), Kind(torch.Tensor.detach)]
_PYTHON = [Kind(lambda x: x), Kind(lambda x: x.t(), rows=_N), Kind(lambda x, y: y, 2)]
_PYTHON += [Kind(lambda x: x[:2], rows=_N, after=2)]
_PYTHON += [Kind(lambda x, y: (x, y + 1), 2, rows=_N, after=0)]
_PYTHON += [Kind(lambda x, y: {"sum": [x + y], "y": y.t()}, 2, rows=_N, after=0)]
_PYTHON += [Kind(last, rows=0, after=_N), Kind(total, 5, rows=_N, alias=False)]
_WRITES = [Kind(torch.Tensor.add_, rest=(3,), writes=1), Kind(raised, rows=0, writes=1)]
_WRITES += [Kind(torch.Tensor.mul_, rest=(2,), writes=1), Kind(added_to, 2, writes=1)]
_WRITES += [Kind(torch.Tensor.copy_, 2, writes=1, through=(torch.clone,))]
_WRITES += [Kind(exchanged, 2, rows=_N, writes=2)]
_KINDS = [_FRESH, _VIEWS, _PYTHON, _WRITES]


class Ref(NamedTuple):
    """Stands among a step's arguments for a value: a given tensor, or what a step returned."""

    number: int


class Step(NamedTuple):
    fn: Any
    args: tuple
    device: str
    writes: tuple[Ref, ...]
    cost_s: float


class Value(NamedTuple):
    """What is known of a value; `shared`: it may lie in the memory of a copy."""

    device: str
    rows: int
    shared: bool = False


class Program:
    """Random steps on random devices.

    Given tensors are windows of one buffer on each of the devices `homes`, and may overlap.
    """

    def __init__(self, chance, devices=LABELS, homes=CPU, *, copies_written=False):
        self.homes, self._chance, self._copies_written = homes, chance, copies_written
        self.seed = chance.randint(0, 2**20)  # of the numbers in the buffers
        self.windows = [(home, chance.randint(0, 4)) for home in homes for _ in range(3)]
        self.values = [Value(home, _N) for home, _ in self.windows]
        self.steps, size = [], chance.randint(3, 25)
        self.options = {"cpu_lanes": chance.randint(1, 4), "streams": chance.randint(1, 3)}
        while len(self.steps) < size:
            kind = chance.choice(chance.choice(_KINDS))
            refs = self._arguments(kind)
            if refs is not None:
                self._add(kind, refs, chance.choice(devices))
        places = range(len(self.windows), len(self.values))
        self.orders = [sorted(chance.sample(places, 2)) for _ in range(chance.randint(0, 3))]

    def __repr__(self):
        steps = [f"{3 * len(self.homes) + i}: {step}" for i, step in enumerate(self.steps)]
        return "\n".join(["Program", *map(str, self.windows), *steps, f"orders {self.orders}"])

    def buffers(self):
        numbers = torch.Generator().manual_seed(self.seed)
        return {x: torch.randint(9, (8, _N), generator=numbers).double() for x in self.homes}

    def given(self, buffers):
        return [buffers[home][start : start + _N] for home, start in self.windows]

    def build(self, buffers):
        """A graph of it, and its values: given tensors and tasks."""
        graph, values = TaskGraph(**self.options), self.given(buffers)
        for step in self.steps:
            args = replaced(step.args, Ref, lambda ref: values[ref.number])
            writes = [values[ref.number] for ref in step.writes]
            options = {"device": step.device, "writes": writes, "cost_s": step.cost_s}
            values.append(graph.add(step.fn, *args, **options))
        for first, then in self.orders:
            graph.order(values[first], values[then])
        return graph, values

    def expected(self):
        """What its values are in the end, and the buffers, step by step on the CPU."""
        buffers = self.buffers()
        values = self.given(buffers)
        for step in self.steps:

            def there(ref, device=step.device):
                value = values[ref.number]
                copied = self.values[ref.number].device != device
                return replaced(value, torch.Tensor, torch.clone) if copied else value

            values.append(step.fn(*replaced(step.args, Ref, there)))
        return values, buffers

    def _arguments(self, kind):
        """Values that a kind of step can take; those that it writes lie on one device."""
        refs = []
        for i in range(kind.count):
            rows = self.values[refs[0].number].rows if i else kind.rows
            device = self.values[refs[0].number].device if 0 < i < kind.writes else None
            may = [
                Ref(n)
                for n, value in enumerate(self.values)
                if (value.rows == rows if rows is not None else value.rows)
                and (device is None or value.device == device)
                and (i >= kind.writes or self._copies_written or not value.shared)
            ]
            if not may:
                return None
            refs.append(self._chance.choice(self._chance.choice([may, may[-8:]])))
        return refs

    def _add(self, kind, refs, device):
        if kind.through:
            for i in range(kind.writes, kind.count):
                way = Kind(kind.through[0], rest=kind.through[1:], alias=False)
                refs[i] = self._add(way, [refs[i]], device)
        if kind.writes:
            device = self.values[refs[0].number].device
        args = (refs[0], {"a": refs[1:3], "b": [(*refs[3:],)]}) if kind.fn is total else refs
        read = [self.values[ref.number] for ref in refs]
        shared = kind.alias and any(value.shared or value.device != device for value in read)
        rows = read[0].rows if kind.after is None else kind.after
        cost_s = self._chance.choice((0.0, 1e-4, 1e-3, 1e-2))
        self.values.append(Value(device, rows, shared))
        self.steps.append(Step(kind.fn, (*args, *kind.rest), device, refs[: kind.writes], cost_s))
        return Ref(len(self.values) - 1)


def replaced(values, kind, fn):
    """Nested containers, with `fn` of each leaf of a kind in its place."""
    return pytree.tree_map_only(kind, fn, values, is_leaf=lambda value: isinstance(value, kind))


def alike(one, other):
    """Whether nested containers hold the same, bit for bit; the second is on the CPU."""
    (ones, form), (others, wanted) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return form == wanted and all(
        isinstance(x, torch.Tensor) and torch.equal(x.cpu(), y)
        for x, y in zip(ones, others, strict=True)
    )
