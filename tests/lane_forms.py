"""What tests of lanes import: lanes by their place, and errors raised and caught."""

import json

from autopar import cpu_lane, cuda_lane

WAIT_S = 10  # for what should come at once, so that a broken lane fails instead of hanging


def lane_on(place):
    return cpu_lane() if place == "cpu" else cuda_lane(place)


def equals(tensor, value):
    """Whether all elements are of one value; on a GPU it is waited for."""
    return bool((tensor == value).all().item())


def fail(text="on purpose"):
    raise ValueError(text)


def caught(fn):
    try:
        fn()
    except BaseException as error:
        return error
    finally:
        del fn  # this frame is in the traceback, and must not hold the handle
    return None


def require_waits_end(done):
    """What programs/interrupted.py has found: waits end at once, and all is well afterwards."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for how, wait in found["waits"].items():
        assert wait["s"] is not None, f"{how}: the wait ended before it was interrupted"
        assert wait["s"] < 0.5, how
        assert wait["later"] == 0, f"{how}: tasks were begun afterwards"
    assert (found["threads"], found["equal"]) == (0, True)
    return [*found["waits"]]
