"""Interrupt `submit` before each of its lines, and print as JSON what was wrong afterwards.

A CUDA lane launches in the thread that submits: here on streams and events that are made up, so
that it can be shown without a GPU.

Usage: python lane_interrupted.py cpu|cuda
"""

import json
import sys
import threading
from pathlib import Path

import pytest

import autopar

sys.path.insert(0, str(Path(__file__).parents[1]))
from cuda_stand_ins import stand_in

_PACKAGE = str(Path(autopar.__file__).parent)


def new_lane(kind):
    return autopar.cpu_lane() if kind == "cpu" else autopar.cuda_lane(0)


class Interrupting:
    """Raises KeyboardInterrupt before the n-th line that autopar runs in this thread."""

    def __init__(self, line):
        self.left = line
        self.where = None

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line" and self.where is None:
            self.left -= 1
            if self.left < 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace


def interrupted(kind, which, line):
    """Interrupt one of the submits; tell where, and what was wrong afterwards."""
    gate, wrong, interrupting = threading.Event(), [], Interrupting(line)
    came_out = False
    with autopar.cpu_lane() as other, new_lane(kind) as lane:
        held = other.submit(gate.wait, 10)
        if which == "behind one that waits":
            lane.submit(abs, -1, after=[held])
        else:
            gate.set()
            held.result()
        try:
            with interrupting:
                lane.submit(int)
        except KeyboardInterrupt:
            came_out = True
        gate.set()
        later = [lane.submit(abs, -i) for i in range(3)]
        from_elsewhere = other.submit(lambda: lane.submit(abs, -7))
        if [each.result() for each in later] != [0, 1, 2] or from_elsewhere.result().result() != 7:
            wrong.append("later tasks")
    if came_out != (interrupting.where is not None):
        wrong.append("it did not come out")
    if lane._waiting or lane._unseen or getattr(lane, "_pending", ()):
        wrong.append("something is left behind")
    return interrupting.where, wrong


def main():
    kind = sys.argv[1]
    if kind == "cuda":
        stand_in(pytest.MonkeyPatch())
    seen, found = set(), {}
    for which in ("at once", "behind one that waits"):
        line = 0
        while True:
            where, wrong = interrupted(kind, which, line)
            if where is None:
                break
            seen.add(where)
            if wrong:
                found[f"{which}: {where}"] = wrong
            line += 1
    print(json.dumps({"lines": len(seen), "wrong": found}))


if __name__ == "__main__":
    main()
