"""Interrupt `submit` wherever Python hears a signal, and print as JSON what was wrong afterwards.

A CUDA lane launches in the thread that submits: here on streams and events that are made up, so
that it can be shown without a GPU.

Usage: python lane_interrupted.py cpu|cuda
"""

import functools
import itertools
import json
import sys
import threading
from pathlib import Path

import pytest

import autopar

sys.path.insert(0, str(Path(__file__).parents[1]))
from cuda_stand_ins import stand_in
from interruptions import interrupted_at
from lane_forms import caught


def interrupted(kind, number, *, waits):
    """Interrupt a submit at a place; whether there is one, and what was wrong afterwards."""
    gate, wrong, errors, ran = threading.Event(), [], [], []
    new_lane = autopar.cpu_lane if kind == "cpu" else autopar.cuda_lane
    with autopar.cpu_lane() as other, new_lane() as lane:
        held = other.submit(gate.wait, 10)
        if waits:
            lane.submit(abs, -1, after=[held])
        else:
            gate.set()
            held.result()
        submit = functools.partial(lane.submit, ran.append, 1)
        places = interrupted_at(number, lambda: errors.append(caught(submit)))
        gate.set()
        later = [lane.submit(abs, -i) for i in range(3)]
        from_elsewhere = other.submit(lambda: lane.submit(abs, -7))
        if [each.result() for each in later] != [0, 1, 2] or from_elsewhere.result().result() != 7:
            wrong.append("later tasks")
    if isinstance(errors[0], KeyboardInterrupt) != (places > number):
        wrong.append("it did not come out")
    if waits and len(ran) == (places > number):
        wrong.append("it ran although it was dropped, or did not run")
    if lane._pending or lane._unseen:
        wrong.append("something is left behind")
    return places > number, wrong


def main():
    kind = sys.argv[1]
    if kind == "cuda":
        stand_in(pytest.MonkeyPatch())
    places, found = 0, {}
    for waits in (False, True):
        for number in itertools.count():
            is_place, wrong = interrupted(kind, number, waits=waits)
            if not is_place:
                break
            places += 1
            if wrong:
                found[f"place {number}, {waits=}"] = wrong
    print(json.dumps({"places": places, "wrong": found}))


if __name__ == "__main__":
    main()
