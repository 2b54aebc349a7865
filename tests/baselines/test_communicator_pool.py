import pytest

from serving_gym.baselines.flying_serving.communicator_pool import (
    Communicator,
    CommunicatorPool,
    identify_groups,
)
from serving_gym.envs.interface.layout import all_groups


def test_the_papers_example():
    """Section 4.3.2: 4 engines, degrees 2 and 4."""
    assert identify_groups(4, (2, 4)) == ((0, 1), (2, 3), (0, 1, 2, 3))


@pytest.mark.parametrize("engines", [2, 4, 8, 16])
def test_groups_are_the_layouts_groups_and_linear_in_number(engines):
    degrees = [2**k for k in range(1, engines.bit_length())]
    groups = identify_groups(engines, degrees)
    assert groups == tuple(tuple(group.members) for group in all_groups(engines) if group.length > 1)
    assert len(groups) == engines - 1


@pytest.mark.parametrize("degree", [1, 3, 8])
def test_impossible_degrees_are_refused(degree):
    with pytest.raises(ValueError, match="degree"):
        identify_groups(4, (degree,))


def test_every_communicator_is_built_once_at_the_start():
    built = []

    def new_group(ranks):
        built.append(ranks)
        return Communicator(ranks)

    pool = CommunicatorPool(4, (2, 4), new_group)
    assert built == list(pool.groups)
    assert pool.get((2, 3)) is pool.get([2, 3])
    assert len(built) == len(pool) == 3
    assert pool.host_bytes == 3 * 2_000_000
    assert pool.start_up_s > 0


@pytest.mark.parametrize("ranks", [(0, 2), (1, 2), (0,), (1, 0), (0, 1, 2, 3, 4)])
def test_a_communicator_that_was_not_built_is_an_error(ranks):
    with pytest.raises(ValueError, match="no communicator"):
        CommunicatorPool(4, (2, 4)).get(ranks)
