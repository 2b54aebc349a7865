"""Settings shared by all tests."""

import os

from hypothesis import HealthCheck, settings

# One thread each: contended threads cost more than they give on small networks.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compilation of the kernel falls into whichever example comes first, so examples have no deadline of their own. They
# are the same in every run, so that what fails is what was changed; SERVING_GYM_EXAMPLES=3000 tries as many new ones.
examples = os.environ.get("SERVING_GYM_EXAMPLES")
settings.register_profile(
    "serving-gym",
    max_examples=int(examples or 100),
    derandomize=examples is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("serving-gym")
