"""What all tests of graphs share: none leaves a thread behind."""

import pytest


@pytest.fixture(autouse=True)
def _threads_gone(threads_gone):
    """Also none that is about to end."""
