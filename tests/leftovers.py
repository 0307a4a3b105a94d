"""What a test may leave behind that the next would meet: it is told, and mended if it can be."""

import gc
import os
import signal
import sys
import threading

import torch
from torch.cuda import _gpu_trace

from autopar.device import empty_pinned_pool, used_gpus

_GONE_S = 10  # for threads that are about to end: none is waited for but one that stays


def _streams():
    return [torch.cuda.current_stream(gpu) for gpu in range(torch.cuda.device_count())]


def _set_streams(streams):
    with torch.cuda.device(torch.cuda.current_device()):  # which setting a stream changes, too
        for stream in streams:
            torch.cuda.set_stream(stream)


def traced():
    """Whether each call of CUDA's is traced, which slows all that comes after it."""
    return any(getattr(registry, "callback_list", None) for registry in vars(_gpu_trace).values())


def threads_of_a_new_thread():
    """How many threads torch gives a new thread: another number than the caller's own."""
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]


_OF_PROCESS = {  # how to read it, and how to set it
    "Python's switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "the working directory": (os.getcwd, os.chdir),
    "what hears Ctrl-C": (
        lambda: signal.getsignal(signal.SIGINT),
        lambda handler: signal.signal(signal.SIGINT, handler),
    ),
    "autograd's mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "how many threads torch gives a new one": (threads_of_a_new_thread, torch.set_num_threads),
    "how many threads torch has": (torch.get_num_threads, torch.set_num_threads),
}
_OF_GPUS = {
    "the current streams": (_streams, _set_streams),
    "the current GPU": (torch.cuda.current_device, torch.cuda.set_device),
}


class Before:
    """How things stand before a test; `gpus`: on GPUs, too, which are idle and hold nothing."""

    def __init__(self, gpus=False):
        self._gpus = gpus
        if gpus:
            torch.cuda.init()
            empty_gpus()
        self._settings = _OF_PROCESS | (_OF_GPUS if gpus else {})
        self._values = {name: read() for name, (read, _) in self._settings.items()}
        self._threads = set(threading.enumerate())

    def changed(self):
        """What is otherwise now, in words. Settings are set back, and GPUs can be used again."""
        words = [f"the thread {thread.name!r} runs" for thread in self._new_threads()]
        if self._gpus and torch.cuda.is_current_stream_capturing():
            words.append("a CUDA graph is being captured")
        if traced():
            words.append("each call of CUDA's is traced")
        for name, (read, write) in self._settings.items():
            before, now = self._values[name], read()
            if now != before:
                words.append(f"{name}: {before} became {now}")
                write(before)
        return [*words, *broken_generators()] if self._gpus else words

    def _new_threads(self):
        for thread in set(threading.enumerate()) - self._threads:
            if isinstance(thread, threading._DummyThread):
                continue  # torch's own, which has called Python: it stays, and can't be joined
            if thread.ident is None:
                continue  # Ctrl-C came to its start: it never runs
            thread.join(_GONE_S)
            if thread.is_alive():
                yield thread


def empty_gpus():
    """Wait for all GPUs, and empty the pools: each test finds no more memory than the first.

    What is there by now is not searched for garbage again: kernels would be done before that is.
    """
    gc.collect()
    gc.freeze()
    for gpu in used_gpus():
        torch.cuda.synchronize(gpu)
    torch.cuda.empty_cache()
    empty_pinned_pool()


def broken_generators():
    """GPUs without random numbers: a capture that failed has left their generator in it."""
    for gpu in used_gpus():
        try:
            torch.rand(1, device=gpu)
        except RuntimeError as error:
            generator = torch.cuda.default_generators[gpu.index]
            generator.graphsafe_set_state(generator.clone_state())
            yield f"{gpu} has no random numbers: {error}"
