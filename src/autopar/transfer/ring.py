"""Ring: pinned slots of one direction, and the chunks that travel through them.

    to the host      caller:  queue copy 0 1 2, take 0, queue copy 3, take 1, ...
    (3 slots)        stream:  0 -> slot 0   1 -> slot 1   2 -> slot 2   3 -> slot 0 ...
                     workers:               slot 0 -> x   slot 1 -> x   slot 2 -> x ...

Everything is done by the thread that calls the pipeline, when it calls. Only large moves within
host memory are handed to workers, each as one call that leaves the GIL to others; those that no
worker has begun once they are needed are done by the caller, too.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError

import torch

from autopar.lanes.outcome import Outcome
from autopar.torch_private import InferenceMode, foreach_copy
from autopar.transfer.copy_plan import Rule
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.load import Chunk, Load, Slot, is_over, wait_for_end
from autopar.transfer.workers import Workers

_MOVED_BY_CALLER_BYTES = 1 << 20  # in the time that it takes to hand it to a worker, and back


class Ring:
    """Slots for one direction, by the rules of the two steps that each chunk takes.

    Workers move large chunks on the host, if they may take more than one CPU thread.
    """

    def __init__(
        self,
        rules: tuple[Rule, Rule],
        stream: CopyStream,
        slots: int,
        slot_bytes: int,
        workers: Workers,
    ) -> None:
        self.stream = stream
        self._rules = rules
        self._to_host = rules[0].lane == "stream"
        self._copying, self._moving = rules if self._to_host else reversed(rules)
        self._callers = {
            (r.name, first): r.item_step(first) for r in rules for first in (True, False)
        }
        self.slot_bytes = slot_bytes
        self._workers = workers
        self._slots = deque(Slot(stream.pinned(slot_bytes)) for _ in range(slots))
        self._cut: deque[Chunk] = deque()  # that wait for a slot
        self._begun: deque[Chunk] = deque()
        self._left = False
        # Held by the thread that is at work: who leaves the pipeline waits for it. Garbage may be
        # collected meanwhile, by that very thread, and a load that is given up be part of that.
        self._working = threading.RLock()
        self._at_work = False

    def advance(self, load: Load | None = None) -> None:
        """Take a load, or do what comes next and wait for what that needs; then what can be done.

        Copies of a load that need no slot are queued at once.
        """
        with self._working:
            self._refuse_if_left()
            self._at_work = True
            try:
                if load is not None:
                    self._take(load)
                    self._refuse_if_left()  # while it was queued: nobody would wait for it
                elif self._begun:
                    self._end(self._begun[0])
                else:
                    self._begin(self._cut[0], self._slots[0])
                self._do_what_can_be()
            except BaseException:  # Ctrl-C, anywhere
                self._drop()
                raise
            finally:
                self._at_work = False

    def clear(self) -> None:
        """Forget the chunks of loads that have failed, once nobody moves them any more."""
        if self._workers.is_one_calling():
            return  # nor has who collects garbage to know when: the next to work here forgets them
        with self._working:
            if not self._at_work:  # else whoever is at work comes to them
                self._forget_failed()

    def stop(self, at_most_s: float = -1) -> None:
        """Drop what is not done, once no other thread is at work; then nothing is under way."""
        self._left = True
        if not self._workers.is_one_calling() and self._working.acquire(timeout=at_most_s):
            try:
                self._drop()
                wait_for_end(self.stream.mark())
                self._slots.clear()
            finally:
                self._working.release()

    def _refuse_if_left(self) -> None:
        if self._left:
            msg = "the pipeline was left meanwhile"
            raise RuntimeError(msg)

    def _take(self, load: Load) -> None:
        load.step, load.clear = self.advance, self.clear
        for part in load.parts:
            if part.staged:
                for device, host in part.cut(self.slot_bytes):
                    aside = device.nbytes > _MOVED_BY_CALLER_BYTES and self._workers.threads > 1
                    self._cut.append(Chunk(load, device, host, not load.left, aside))
                    load.left += 1
        if load.pinned:
            self._copy_pinned(load)

    def _do_what_can_be(self) -> None:
        """Do what can be done without waiting."""
        before = self._rules[0].slot
        while not self._left:
            if self._begun and self._can_end(self._begun[0]):
                self._end(self._begun[0])
                continue
            # The slots take turns. So if the next one is taken, it is by the first that was begun.
            slot = self._slots[0]
            if not self._cut or (self._begun and self._begun[0].slot is slot):
                return
            if not self._cut[0].aside and not is_over(slot.ends.get(before)):
                return
            self._begin(self._cut[0], slot)

    def _can_end(self, chunk: Chunk) -> bool:
        if chunk.moving is not None:
            return chunk.moving.done()
        return chunk.load.failed or is_over(chunk.slot.ends[self._rules[1].slot])

    def _begin(self, chunk: Chunk, slot: Slot) -> None:
        """Do a chunk's first step; what is large on the host is handed over."""
        if not chunk.load.failed:
            chunk.slot, chunk.pieces = slot, slot.beside(chunk.host)
            self._slots.rotate(-1)
            self._begun.append(chunk)
            if self._to_host:
                self._do(chunk, self._copying)
            if chunk.aside:
                self._hand_over(chunk)
            elif not self._to_host:
                self._do(chunk, self._moving)
        self._cut.popleft()

    def _end(self, chunk: Chunk) -> None:
        """Do a chunk's last step, and what no worker has begun."""
        if (self._to_host or chunk.aside) and not _is_done_aside(chunk):
            self._do(chunk, self._moving)
        if not self._to_host:
            self._do(chunk, self._copying)
        if not chunk.load.failed:
            chunk.load.left -= 1
        self._begun.remove(chunk)

    def _drop(self) -> None:
        """Fail all there is."""
        for chunk in (*self._begun, *self._cut):
            chunk.load.fail(CancelledError("dropped before it was copied"))
        self._forget_failed()

    def _forget_failed(self) -> None:
        for chunk in [chunk for chunk in self._begun if chunk.load.failed]:
            _is_done_aside(chunk)
            self._begun.remove(chunk)
        self._cut = deque(chunk for chunk in self._cut if not chunk.load.failed)

    def _do(self, chunk: Chunk, rule: Rule) -> None:
        """Wait for what the rule says, act, and keep the end for those that wait for it."""
        load, slot = chunk.load, chunk.slot
        if load.failed:
            return
        callers = load.before[self._callers[rule.name, chunk.first]]
        try:
            if rule.lane == "stream":
                device, host = chunk.device, slot.like(chunk.device)
                copy = (host, device) if self._to_host else (device, host)
                end = self.stream.copy_all([copy], callers, slot.ends.get(rule.slot))
                slot.ends[rule.name] = load.copied = end
            else:
                for end in (callers, slot.ends.get(rule.slot)):
                    if end is not None:
                        wait_for_end(end)
                self._move(chunk)
                slot.ends[rule.name] = None
        except Exception as error:
            load.fail(error)

    def _hand_over(self, chunk: Chunk) -> None:
        """Let a worker do what a chunk needs done on the host."""
        moving: Outcome[None] = Outcome()
        waiting = [chunk]  # which nobody keeps once it is moved, or dropped
        moving.call_when_done(waiting.clear)

        def work() -> None:
            if moving.begin():
                self._do(waiting.pop(), self._moving)
                moving.set_result(None)

        chunk.moving = moving
        self._workers.submit(work)

    def _copy_pinned(self, load: Load) -> None:
        """Queue copies between the device and pinned memory of the caller's, without a slot."""
        try:
            copies = [(part.device, part.host[0][1]) for part in load.pinned]
            if self._to_host:
                copies = [(host, device) for device, host in copies]
            callers = load.before[self._copying.item]
            load.copied = self.stream.copy_all(copies, callers, timed=load.timed)
        except Exception as error:
            load.fail(error)  # raised where its items are waited for

    def _move(self, chunk: Chunk) -> None:
        near, far = chunk.pieces
        move_bytes(*((far, near) if self._to_host else (near, far)))


def _is_done_aside(chunk: Chunk) -> bool:
    """Whether a worker has done a step, once it has; from now on none begins with it."""
    if chunk.moving is None:
        return False
    chunk.moving.drop()
    chunk.moving.wait()
    return not chunk.moving.dropped()


def move_bytes(to: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy within host memory, in one call that leaves the GIL to others."""
    with InferenceMode(True):  # the only one in which all tensors may be written to
        foreach_copy(to, sources)
