"""A profile that several tests search over."""

from __future__ import annotations

import pytest

from serving_gym.calibration.models import get_model
from serving_gym.envs.deployment.profiling import CapacityTable, profile_capacities
from serving_gym.envs.machines.cluster import Cluster, replica_kinds
from tests.baselines.oserve.samples import ENGINE, MEANS, lengths


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Two machines of eight GPUs."""
    return Cluster(2)


@pytest.fixture(scope="session")
def table(cluster: Cluster) -> CapacityTable:
    """OPT-66B on 16 GPUs."""
    kinds = replica_kinds(get_model("opt-66b"), cluster)
    return profile_capacities(ENGINE, kinds, [lengths(*mean) for mean in MEANS])
