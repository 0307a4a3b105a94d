"""Torch's private names: every one that autopar uses, with the reason, in this one file.

A torch that lacks a function is imported all the same: `_find` puts a function in its place that
raises an error when it is called, with the name and what needs it. A class or a module that is
lacking ends the import with torch's own error, as hardly anything would work without.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch import _ops, overrides
from torch._subclasses import fake_tensor
from torch.utils import _python_dispatch, _pytree

pytree = _pytree  # nested containers; there is no public module
HigherOrderOperator = _ops.HigherOrderOperator
OpOverload = _ops.OpOverload
OpOverloadPacket = _ops.OpOverloadPacket
FakeTensor = fake_tensor.FakeTensor  # tensors while code is traced
TorchDispatchMode = _python_dispatch.TorchDispatchMode
is_traceable_wrapper_subclass = _python_dispatch.is_traceable_wrapper_subclass

# Attributes of torch's objects, read where they are needed, as each call counts there.
ATTRIBUTES = {
    "_version": "counts the changes of a tensor in place",
    "_values": "what a sparse tensor holds, where it lies, also if it holds two for one place",
    "_use_count": "how many of torch's own objects refer to a tensor",
    "_cdata": "one number for each memory and generator, that all its objects have",
    "_schema": "what an operator reads, writes and returns",
    "_qualified_op_name": "an operator's name, for all of its overloads",
    "_opoverload": "the operator that torch.library.custom_op has made",
    "_op": "an operator without its wrapper of Python, where each call counts",
    "_is_profiler_enabled": "asked at each range, where nanoseconds count",
    "_current_level": "of forward-mode differentiation, asked at each copy",
}


def _find(path: str, needed_for: str) -> Any:
    """One of torch's names, or a function in its place that says what is lacking."""
    value: Any = torch
    for part in path.split("."):
        value = getattr(value, part, None)

    def lacks(*args: object, **kwargs: object) -> NoReturn:
        msg = (
            f"torch {torch.__version__} has no torch.{path}, which is needed {needed_for}; "
            f"expected torch 2.11 or 2.13, which are tested. Install one, with CUDA for GPUs."
        )
        raise RuntimeError(msg)

    return lacks if value is None else value


# Operators: what they declare
schemas_for = _find("_C._jit_get_schemas_for_operator", "to know what operators write")
has_kernel = _find("_C._dispatch_has_kernel", "to know which operators are there")
has_kernel_for = _find("_C._dispatch_has_kernel_for_dispatch_key", "to know what autocast changes")
OPERATOR_HOMES = [
    home for name in ("_nn", "_linalg", "_fft", "_special") if (home := getattr(torch._C, name, 0))
]

# Modes of a thread: what has no public way to be read, or switched without a `with`
autocast_is_on = _find("_C._is_any_autocast_enabled", "to run tasks under autocast")
function_mode_count = _find("_C._len_torch_function_stack", "to run tasks under modes")
dispatch_mode_count = _find("_C._len_torch_dispatch_stack", "to run tasks under modes")
last_hooks = _find("_C._autograd._top_saved_tensors_default_hooks", "to run tasks under hooks")
push_hooks = _find("_C._autograd._push_saved_tensors_default_hooks", "to run tasks under hooks")
pop_hooks = _find("_C._autograd._pop_saved_tensors_default_hooks", "to run tasks under hooks")
hooks_disabled = _find(
    "_C._autograd._saved_tensors_hooks_get_disabled_error_message", "to run tasks without hooks"
)
disable_hooks = _find("_C._autograd._saved_tensors_hooks_disable", "to run tasks without hooks")
enable_hooks = _find("_C._autograd._saved_tensors_hooks_enable", "to run tasks without hooks")
DEFAULT_DEVICE = _find("_GLOBAL_DEVICE_CONTEXT", "so that tasks may set another default device")
transform = _find("_C._functorch.peek_interpreter_stack", "to refuse tasks inside of vmap")
InferenceMode = _find("_C._InferenceMode", "to run tasks in inference mode")
set_grad_enabled = _find("_C._set_grad_enabled", "to run tasks without gradients")
function_modes = overrides._get_current_function_mode_stack
push_function_mode, pop_function_mode = overrides._push_mode, overrides._pop_mode
dispatch_modes = _python_dispatch._get_current_dispatch_mode_stack
push_dispatch_mode = _python_dispatch._push_mode
pop_dispatch_mode = _python_dispatch._pop_mode
disable_current_modes = _python_dispatch._disable_current_modes  # to look at tensors in a trace

# Tracing
get_dispatch_mode = _find("_C._get_dispatch_mode", "to trace code")
FAKE = torch._C._TorchDispatchModeKey.FAKE  # of the mode that makes tensors without memory
set_versions = _find("_C._autograd._unsafe_set_version_counter", "to trace changes in place")
plain_functions = torch._C._disabled_torch_function_impl  # of subclasses that add none of their own
ExcludeDispatchKeyGuard = _find("_C._ExcludeDispatchKeyGuard", "to trace under autocast")
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU).add(
    torch._C.DispatchKey.AutocastCUDA
)
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@functools.cache
def is_composite(operator: Any) -> bool:
    """Whether an operator is made of others."""
    is_there = isinstance(operator, OpOverload) and has_kernel(operator.name())
    return is_there and has_kernel_for(operator.name(), COMPOSITE)


# By these code asks whether it is traced, or seen operator by operator.
LIBRARIES_ASK = {"transformers.utils.import_utils": "is_fake_tensor"}
TORCH_ASKS = {
    "torch.overrides": "has_torch_function",  # which attention and encoders ask
    "torch.nn.modules.activation": "_is_make_fx_tracing",
}

# What operators raise whose results only the data decides.
DATA_DEPENDENT = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)

# An operator that is given a generator is traced where these are known as values without a form.
_is_opaque = getattr(torch._library, "opaque_object", None)
TRACES_GENERATORS = bool(_is_opaque and _is_opaque.is_opaque_type(torch.Generator))

unsafe_view = torch.ops.aten._unsafe_view.default  # a view that matmul makes
VIEWS = {torch.ops.aten.view.default, unsafe_view}
to_copy = torch.ops.aten._to_copy.default  # the operator behind x.to(device)


def _bits(*keys: str) -> int:
    keyset = torch._C.DispatchKeySet
    bits = [keyset(getattr(torch._C.DispatchKey, key)).raw_repr() for key in keys]
    return functools.reduce(int.__or__, bits)


# Memory
storage_use_count = _find("_C._storage_Use_Count", "to know who else reaches a tensor's memory")
foreach_copy = _find("_foreach_copy_", "to move several tensors in one call")
# A tensor's keys, as bits, tell at once what many questions would, some of which free the GIL.
dispatch_keys = _find("_C._dispatch_keys", "to know what a tensor is, before it is copied")
PUT_OFF = _bits("Negative", "Conjugate")
MORE_THAN_MEMORY = ~_bits(
    *("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"),
    "ADInplaceOrView",
)

# CUDA: builds without it lack these, and nothing asks for them there
nvtx = getattr(torch._C, "_nvtx", None)  # torch.cuda.nvtx imports more, and checks at each call
has_context = _find("_C._cuda_hasPrimaryContext", "to know which GPUs are in use")
current_gpu = _find("_C._cuda_getDevice", "to run tasks on the current GPU")
exchange_gpu = _find("_C._cuda_maybeExchangeDevice", "to run tasks on the current GPU")
current_stream_key = _find("_C._cuda_getCurrentStream", "to copy beside the current stream")
spin = _find("cuda._sleep", "to time kernels without their launch")
clear_workspaces = _find("_C._cuda_clearCublasWorkspaces", "to capture a CUDA graph")
end_allocating_to = _find("_C._cuda_endAllocateToPool", "to mend a capture that has failed")
release_pool = _find("_C._cuda_releasePool", "to mend a capture that has failed")
empty_host_cache = getattr(torch.accelerator, "empty_host_cache", None) or _find(  # public later
    "_C._host_emptyCache", "to give pinned memory back"
)


def comes_of_csan(error: BaseException | None) -> bool:
    """Whether torch's sanitizer for CUDA streams has raised an error, or one that it is due to."""
    from torch.cuda._sanitizer import CUDASanitizerErrors

    while error is not None and not isinstance(error, CUDASanitizerErrors):
        error = error.__cause__ or error.__context__
    return error is not None
