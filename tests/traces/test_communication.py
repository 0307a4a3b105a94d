"""What communicates, by the names that libraries give their kernels; and what only sounds so."""

from __future__ import annotations

import pytest
from trace_builder import work_of
from trace_files import kernel

from autopar.traces.chrome import Events
from autopar.traces.communication import COMMUNICATION, ends_together

_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
# As profilers print them, with whether all ranks end together.
_COMMUNICATES = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": True,
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": True,
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": False,
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": False,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": False,
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)": True,
    "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)": True,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": True,
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": True,
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]": False,
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": False,
    "mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": False,
    "void mscclpp::collective::allreducePacket<__half>(__half*, __half*)": True,
    "mscclpp::collective::(anonymous namespace)::allgatherFullmesh2(void*)": True,
    "void mscclpp::executionKernel<__half, mscclpp::LLPacket, true>(int, __half*)": False,
    "void allreduce_LL_1node<__nv_bfloat16>(mscclpp::MemoryChannel*)": True,
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)": True,
    "void alltoall_on_stream_kernel<char>(int, char*, char const*, unsigned long)": True,
    "nvshmemi_proxy_rma_entrypoint_blocking(void*, void*, rma_bytesdesc_t)": False,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": False,
    "void deep_ep::legacy::internode::cached_notify<false>(int, int)": False,
    "void deep_ep::internode_ll::combine<true, 7168, 9, 3>(void*, void*)": False,
    "void nccl_ep::internode_ll::dispatch<(bool)0, (bool)0, (int)7168>(void *)": False,
    "void deep_ep::elastic::hybrid_dispatch_impl<4>(void*)": False,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)": True,
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)": True,
    "void aiter::cross_device_reduce_2stage_write_mode<__half, 8>(aiter::RankData*)": True,
    "void vllm::cross_device_all_gather<4>(vllm::RankData*, vllm::RankSignals)": True,
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)": True,
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>()": True,
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<__half>()": True,
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8>(int const*)": False,
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>()": True,
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()": True,
    "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *)": True,
    "one_shot_all_reduce_kernel": True,
}
_ONLY_SOUNDS_SO = [
    "nccl_like_reduce",
    "my_ncclDevKernel_AllReduce(float*)",
    "combine_heads_kernel",
    "dispatch_elementwise",
    "void mine::dispatch<8>(int*)",
    "void intranode::combine_heads<8>(int*)",
    "void deep_ep::legacy::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<4>(__nv_bfloat16*)",
    "block_allreduce_kernel(float*)",
    "all_reduce_within_a_warp",
    "one_shot_reduce_kernel",
    "reduce_1stage",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
    "void cub::DeviceReduceKernel<ncclDevKernel_AllReduce_Sum_f32_RING_LL>(float*)",
    "void vllm::rms_norm_kernel<__half>(vllm::cross_device_reduce_1stage*)",
    "void flashinfer::trtllm_allreduce::lamport_initialize_kernel<__half>(__half*)",
    "oneRankReduce",
    "a barrier_on_stream_kernel",
    "",
]


@pytest.mark.parametrize("name", _COMMUNICATES)
def test_libraries_are_known_by_the_names_of_their_kernels(name: str) -> None:
    assert COMMUNICATION.search(name)
    assert ends_together(name) is _COMMUNICATES[name]


@pytest.mark.parametrize("name", _ONLY_SOUNDS_SO)
def test_what_only_sounds_like_them_is_not_taken(name: str) -> None:
    assert not COMMUNICATION.search(name)
    assert not ends_together(name)


def test_the_collective_says_more_than_the_kernel() -> None:
    message = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    assert ends_together(message, "all_to_allv")
    assert not ends_together(message, "send")
    assert not ends_together("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "broadcast")


def test_a_name_of_any_length_is_looked_at_in_no_time() -> None:
    for part in ("one_shot", "a", "allreduce_", "a::", "(anonymous namespace)::", "void "):
        assert not COMMUNICATION.search("x" + part * 20_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "allreduce of group 0, ranks [0, 1]"),
        ({"Process Group Ranks": None}, "allreduce of group 0, ranks unknown"),
        ({"Process Group Name": None}, ""),
        ({"Process Group Name": 0}, ""),
        ({"Collective name": ["allreduce"]}, ""),
        ({"Collective name": ""}, ""),
        ({"Process Group Name": "a\x1bb"}, "allreduce of group a\ufffdb, ranks [0, 1]"),
    ],
)
def test_the_collective_is_read_as_far_as_the_trace_tells(arguments, said: str) -> None:
    told = {"Collective name": "allreduce", "Process Group Name": "0"}
    told |= {"Process Group Ranks": "[0, 1]", "Group size": 2} | arguments
    events = [kernel(_KERNEL, 10.0, 5.0), kernel("checkForNaN", 20.0, 5.0)]
    for event in events:
        event["args"] |= told
    work = Events(events).trace({})
    assert [activity.collective for activity in work_of(work)] == [said, ""]
