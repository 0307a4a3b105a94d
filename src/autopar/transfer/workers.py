"""Workers: threads that move host memory while the caller is elsewhere."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

from autopar.machine import settle_threads

_FEWEST = 3  # if they can be: one is at work while others wait for the bus, or for a slow thread
_LAST_WAIT_S = 5.0  # for one that is at work, where nobody leaves the pipeline it belongs to

Work = Callable[[], object]


class Workers:
    """Threads that do what they are given if they come to it; who needs it done looks after that.

    Each is started when it is needed. They end with this object, and with the process. As others
    wait for them, they wait for nobody, also where they happen to collect somebody's garbage. Their
    moves take so many CPU threads, all together.
    """

    def __init__(self, threads: int, moves: int) -> None:
        self.threads = threads
        fewest = min(threads, moves, _FEWEST)
        # A power of two: with 3, 5 or 6 threads each, moves took about a quarter longer than with 4
        # or 8, on machines of 16 and of 32 cores.
        self._threads_each = 1 << ((threads // fewest).bit_length() - 1)
        self._missing = min(moves, threads // self._threads_each)
        self._queued: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Ends them, and waits for what they are at.
        self.stop = weakref.finalize(self, _stop, self._queued, self._threads)

    def is_one_calling(self) -> bool:
        """Whether the calling thread is one of them."""
        return threading.current_thread() in self._threads

    def submit(self, work: Work) -> None:
        """Give them something to do, if there can be one of them."""
        if self._missing:
            self._missing -= 1
            thread = threading.Thread(
                target=_serve,
                args=(self._queued, self._threads_each),
                name="autopar copies",
                daemon=True,
            )
            self._threads.append(thread)  # first, as Ctrl-C may come to its start
            try:
                thread.start()
            except RuntimeError:  # there can be no more threads
                self._threads.remove(thread)
        if self._threads:
            self._queued.put(work)


def _serve(queued: queue.SimpleQueue[Work | None], threads: int) -> None:
    settle_threads(threads)
    for work in iter(queued.get, None):
        work()
        del work  # with its memory, while it waits for the next
    queued.put(None)  # for the others


def _stop(queued: queue.SimpleQueue[Work | None], threads: list[threading.Thread]) -> None:
    queued.put(None)
    for thread in threads:
        # This one may be who collects the garbage, and one that Ctrl-C came to has not started.
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(_LAST_WAIT_S)
