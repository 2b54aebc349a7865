"""Settings shared by all tests."""

import os

from hypothesis import HealthCheck, settings

# One thread each: contended threads cost more than they give on small networks.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compilation of the kernel falls into whichever example comes first, so examples have no deadline of their own.
settings.register_profile("serving-gym", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("serving-gym")
