"""What tests of lanes share: each form runs in time, and what it raises can be looked at."""

import pytest


@pytest.fixture
def forms_run_in_time(request, in_time):
    """No form hangs: each is run in a thread that is given up after some seconds."""
    form = request.function
    request.node.obj = lambda **given: in_time(lambda: form(**given), timeout_s=30)


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
