"""Properties held to random cases: few in a quick run, many under the marker `stress`."""

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from sampling import every

shares = pytest.mark.parametrize("share", every(40, range(40)))


def hold_for_all(check, *strategies, share, examples):
    """Hold a check to examples, which are the same each time; other shares draw others."""
    options = {"derandomize": True, "deadline": None, "suppress_health_check": [*HealthCheck]}
    options["phases"] = [Phase.generate, Phase.shrink]  # what is explained beside takes minutes
    seed(share)(settings(max_examples=examples, **options)(given(*strategies)(check)))()
