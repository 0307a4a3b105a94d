"""Communication: what kernels that communicate are called, library by library."""

from __future__ import annotations

import re

_NAMES = (
    r"nccl(?:[A-Z]\w*)?Kernel\w*",  # ncclDevKernel_, ncclSymkDevKernel_, before 2.19 ncclKernel_
    r"rccl\w*Kernel\w*",  # RCCL; most of its kernels have NCCL's names
    r"mscclKernel_\w+",
    r"mscclpp::(?:collective::)?(?:\(anonymous namespace\)::|<unnamed>::)?"
    r"(?:executionKernel|all(?:reduce|gather)\w*)",
    r"allreduce_LL_[12]node",  # MSCCL++ in SGLang
    r"nvshmemi_(?:proxy|reduce|signal|\w+_wait)_\w+",
    r"(?:alltoall|barrier|broadcast|fcollect|rdxn|reducescatter|sync)_on_stream_kernel\w*",
    # DeepEP, and what has its names: two generations.
    r"(?:intranode|internode(?:_ll)?)::(?:dispatch|combine|barrier|(?:cached_)?notify\w*)",
    r"deep_ep::elastic::(?:(?:hybrid_)?(?:dispatch|combine)|barrier|pp_send|pp_recv"
    r"|engram_fetch(?:_wait)?)_impl",
    # All-reduce of inference servers: vLLM, SGLang, AITER; TensorRT-LLM, FlashInfer, QuickReduce.
    r"cross_device_(?:reduce_[12]stage\w*|all_gather|reduce_scatter)",
    r"mnnvl_lamport_(?:all_gather|reduce_scatter)\w*",
    r"(?i:(?=\w*(?:one|two)_?shot)(?=\w*all_?reduce)\w+)",
    r"mixed_comm::(?:fused_)?(?:allreduce|allgather|reducescatter)\w*",
    r"moeA2A(?:Prepare)?(?:Dispatch|Combine)Kernel",
    r"(?:moe|helix)AllToAllKernel",
    r"ulysses_a2a_kernel",
    # PyTorch's symmetric memory, beside one and two shots.
    r"multimem_(?:all_reduce|all_gather|one_shot_reduce)_kernel\w*",
    r"hybridCubeMeshAllReduceKernel",
)
# The name itself, not its arguments: a sum may be a template over what communicates.
COMMUNICATION = re.compile(
    r"\A(?:void )?(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)*"
    rf"(?:{'|'.join(_NAMES)})(?!\w)"
)
# What no rank can end before the last has begun, so that all end together. A broadcast, a
# reduction to one rank and a message wait for some of the ranks only.
ENDS_TOGETHER = re.compile(
    "all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|cross_device_reduce_"
    "|fcollect|rdxn",
    re.IGNORECASE,
)


def ends_together(kernel: str, collective: str = "") -> bool:
    """Whether all ranks end this together, by the collective that it is of, or else its name."""
    match = COMMUNICATION.match(kernel)
    return bool(ENDS_TOGETHER.search(collective or (match[0].rpartition("::")[2] if match else "")))
