"""Damage small trace files at random and read them; print as JSON what came of it.

Either a TraceError with a clear message in one line or a Trace may come, and within two seconds.

Usage: python trace_fuzz.py [COUNT [SEED]]
"""

import collections
import json
import math
import random
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from autopar.traces.read import read_evidence
from autopar.traces.trace import TraceError

sys.path.insert(0, str(Path(__file__).parents[1]))
from trace_files import write_all

_LONGEST_S = 2.0
_VALUES = [b"0", b"-1", b"NaN", b"Infinity", b"-Infinity", b"1e308", b"1e999", b'"12"', b"null"]
_VALUES += [b"9" * 30, b"9" * 5000, b"0.0", b"[]", b"{}", b"true", b'""', b"1e-320", b"4294967295"]


def flip(data, at, chance):
    """Some bytes become others."""
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def flip_bit(data, at, chance):
    data[at] ^= 1 << chance.randrange(8)


def cut(data, at, chance):
    del data[at:]


def delete(data, at, chance):
    del data[at : at + chance.choice((1, 2, 10, 100))]


def repeat(data, at, chance):
    """A piece comes twice, perhaps elsewhere."""
    start = chance.randrange(len(data))
    data[at:at] = data[start : start + chance.choice((1, 10, 200))]


def renumber(data, at, chance):
    """A number becomes another, or no number."""
    found = [*re.finditer(rb"[-.]*\d[-.\d]*", data)]
    if found:
        new = chance.choice([*_VALUES, b"%d" % chance.randrange(10**12)])
        data[slice(*chance.choice(found).span())] = new


_DAMAGE = (flip, flip_bit, cut, delete, repeat, renumber)


def outcome(path):
    """In a word or two what reading the file led to."""
    try:
        trace = read_evidence(path)
    except TraceError as error:
        words = str(error)
        assert path.name in words, words
        assert "\n" not in words, words
        assert words.endswith("."), words
        return "refused"
    for span in trace.timeline.spans:
        assert math.isfinite(span.start_s + span.end_s), span
        (span.name + span.lane).encode()  # half a surrogate pair could not be printed
    trace.origin.encode()
    for words in (*trace.warnings, *trace.doubts.values()):
        words.encode()
        assert words.endswith("."), words
    return "warned" if trace.warnings else "read"


def main(count, seed, folder):
    """Read `count` damaged files."""
    chance = random.Random(seed)
    whole = {name: path.read_bytes() for name, path in write_all(folder).items()}
    outcomes, bad, slowest_s = collections.Counter(), [], 0.0
    for number in range(count):
        name, damage = chance.choice([*whole]), chance.choice(_DAMAGE)
        data = bytearray(whole[name])
        damage(data, chance.randrange(len(data)), chance)
        path = folder / name
        path.write_bytes(data)
        start_s = time.perf_counter()
        try:
            found = outcome(path)
        except Exception:
            found = "failed"
            bad.append(f"{number}: {name}, {damage.__name__}: {traceback.format_exc()}")
        seconds = time.perf_counter() - start_s
        if seconds > _LONGEST_S:
            bad.append(f"{number}: {name}, {damage.__name__}: took {seconds:.1f} s")
        slowest_s = max(slowest_s, seconds)
        outcomes[f"{name} {found}"] += 1
    found = {"count": count, "seed": seed, "slowest_s": slowest_s, "outcomes": outcomes}
    print(json.dumps(found | {"bad": bad[:10], "bad_count": len(bad)}, indent=2, sort_keys=True))


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as scratch:
        main(*(arguments + [100_000, 0][len(arguments) :]), Path(scratch))
