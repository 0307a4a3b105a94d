"""Ctrl-C at each place of the package where Python may hear it."""

import contextlib
import dis
import itertools
import sys
import threading
from pathlib import Path

import autopar

_HOME = str(Path(autopar.__file__).parent)


def hearing(code, known={}):  # noqa: B006
    """Where in some code Python hears a signal: as it begins, goes back, or returns from a call."""
    if code not in known:
        before, known[code] = "", set()
        for each in dis.get_instructions(code):
            if each.opname in ("RESUME", "JUMP_BACKWARD") or before in ("CALL", "CALL_FUNCTION_EX"):
                known[code].add(each.offset)
            before = each.opname
    return known[code]


def interrupted_at(number, run):
    """Run something but for a Ctrl-C at one of the places where it can come; how many there are."""
    places = itertools.count()
    heard_in = (_HOME, contextlib.__file__, threading.__file__)

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(heard_in):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in hearing(frame.f_code) and next(places) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this when tracing begins
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return next(places)
