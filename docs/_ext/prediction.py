"""Prediction: when the chunks of a copy pipeline are copied and computed, if all else is free.

    to the GPU      0 1 2   3   4        in the order of issue: a chunk is begun
    computing         0   1   2   3   4  as soon as one of the slots is free
    to the host           0   1   2 ...

It is pure arithmetic, and what the simulator in the pages does in JavaScript; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.timeline.span import Span, Timeline

# As lanes of one GPU are called where they are measured, so that pictures of both are alike.
FROM_HOST, COMPUTE, TO_HOST = "GPU 0 copies from host", "GPU 0", "GPU 0 copies to host"
_STREAMS = {FROM_HOST: (0, 1, 1), COMPUTE: (0, 0, 0), TO_HOST: (0, 1, 2)}  # of 1, 2 or 3 streams


@dataclass(frozen=True)
class Prediction:
    """Equal chunks that are copied to a GPU, computed there and copied back: what runs when.

    The stages of a chunk follow each other. A stream runs its stages in the order of issue, one
    at a time. A chunk holds its slot from the start of its first stage to the end of its last,
    and chunks are issued as early as slots allow. Launches and waits take no time.

    Args:
        chunks: How many there are.
        compute_s: Seconds that computing one chunk takes alone.
        from_host_s: Seconds to copy a chunk to the GPU; 0 if it is there already.
        to_host_s: Seconds to copy a chunk to the host; 0 if it stays on the GPU.
        slots: How many chunks may be under way at once.
        streams: 1 for everything, 2 for computing and copying, or 3, with one a direction.
    """

    chunks: int
    compute_s: float
    from_host_s: float = 0.0
    to_host_s: float = 0.0
    slots: int = 3
    streams: int = 2

    @property
    def limit_s(self) -> float:
        """Seconds that no number of slots and streams beats: the first chunk, then the longest."""
        stages_s = (self.from_host_s, self.compute_s, self.to_host_s)
        return sum(stages_s) + (self.chunks - 1) * max(stages_s)

    @property
    def timeline(self) -> Timeline:
        """What runs when, on a lane for each part of the GPU that is used."""
        seconds = {FROM_HOST: self.from_host_s, COMPUTE: self.compute_s, TO_HOST: self.to_host_s}
        stages = {lane: stage_s for lane, stage_s in seconds.items() if stage_s}  # in order
        free_s = [0.0] * 3  # when each stream has done all that was issued to it
        ready_s = [0.0] * self.chunks  # when each chunk has done its stages so far
        spans = []
        for chunk, lane in self._issued(stages):
            stream = _STREAMS[lane][self.streams - 1]
            start_s = max(free_s[stream], ready_s[chunk])
            if lane == next(iter(stages)) and chunk >= self.slots:
                start_s = max(start_s, ready_s[chunk - self.slots])  # whose slot it takes over
            free_s[stream] = ready_s[chunk] = start_s + stages[lane]
            kind = "compute" if lane == COMPUTE else "copy"
            spans.append(Span(f"{kind} {chunk}", lane, start_s, ready_s[chunk], kind))
        return Timeline(tuple(spans))

    def _issued(self, stages: dict[str, float]) -> Iterator[tuple[int, str]]:
        """Chunk and lane in the order in which a program issues them."""
        first, *others = stages
        for chunk in range(min(self.slots, self.chunks)):
            yield chunk, first
        for chunk in range(self.chunks):
            for lane in others:
                yield chunk, lane
            if chunk + self.slots < self.chunks:
                yield chunk + self.slots, first
