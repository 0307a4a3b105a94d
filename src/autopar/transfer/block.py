"""Block: small tensors that travel as one stretch of memory, and how each comes out of it."""

from __future__ import annotations

import torch

from autopar.transfer.copy_plan import ALIGNMENT, Pack
from autopar.transfer.layout import Layout, flat

_memory_bytes = torch.UntypedStorage.nbytes


class Alike:
    """Tensors of one dtype and shape, stacked."""

    def __init__(self, block: torch.Tensor) -> None:
        self.device = block
        self.count = len(block)
        self.offsets = list(range(0, block.nbytes, block.nbytes // self.count))

    def split(self, block: torch.Tensor) -> list[torch.Tensor]:
        """Each of them, in a block that has come."""
        count, size, *rest = block.shape
        # Unlike what `split` gives, these may be written to in place, each by itself.
        return list(block.view(count * size, *rest).unsafe_split_with_sizes([size] * count))


class Joined:
    """Tensors of any dtypes and shapes in one block, with gaps that keep them aligned."""

    def __init__(self, tensors: list[torch.Tensor], pack: Pack) -> None:
        self._layouts = [Layout.of(each) for each in tensors]
        self.offsets = pack.offsets
        self.count = len(tensors)
        gap = torch.zeros(ALIGNMENT, dtype=torch.uint8, device=tensors[0].device)
        pieces, stop = [], 0
        for tensor, offset in zip(tensors, pack.offsets, strict=True):
            pieces += [gap[: offset - stop], flat(tensor)]
            stop = offset + tensor.nbytes
        self.device = torch.cat([*pieces, gap[: pack.size_bytes - stop]])

    def split(self, block: torch.Tensor) -> list[torch.Tensor]:
        """Each of them, in a block that has come."""
        return within(block, self._layouts, self.offsets)


def within(block: torch.Tensor, layouts: list[Layout], offsets: list[int]) -> list[torch.Tensor]:
    """The tensors in a block; `.data`, so that each counts its own changes, as autograd does."""
    as_type = {dtype: block.view(dtype) for dtype in {layout.dtype for layout in layouts}}
    return [
        as_type[dtype].as_strided(shape, strides, offset // dtype.itemsize).data
        for (dtype, shape, strides, _), offset in zip(layouts, offsets, strict=True)
    ]


def have_memory(group: list[torch.Tensor]) -> bool:
    """Whether tensors that may be alike lie in their memory; where not so it may be, even so."""
    last = max(map(torch.Tensor.storage_offset, group)) * group[0].itemsize + group[0].nbytes
    return last <= min(map(_memory_bytes, map(torch.Tensor.untyped_storage, group)))
