import numpy as np
import pytest

from serving_gym.baselines.llm_mesh.quantification import powers_of_two, quantify


def prefill(length):
    return 0.01 + 0.001 * length


def decode(batch, length):
    return 0.02 + 0.001 * batch + 1e-6 * batch * length


@pytest.fixture
def found():
    return quantify([prefill, lambda n: 2 * prefill(n)], [decode, lambda b, n: 2 * decode(b, n)], 4096, 256)


def test_samples_are_powers_of_two(found):
    np.testing.assert_array_equal(powers_of_two(8), [1, 2, 4, 8])
    np.testing.assert_array_equal(powers_of_two(15), [1, 2, 4, 8])
    assert found.lengths[-1] == 4096
    assert found.batches[-1] == 256
    # section 5.2: "only a few hundred samples"
    assert found.decode_s[0].size + found.prefill_s[0].size == 13 * 9 + 13


def test_prefill_is_linear_between_the_two_nearest():
    # 512 takes 1 s and 1024 takes 3 s: 640, a quarter of the way, takes 1.5 s.
    times = {512: 1.0, 1024: 3.0}
    found = quantify([lambda n: times.get(n, 0.0)], [decode], 1024, 2)
    assert found.prefill(0, 640) == pytest.approx(1.5)
    assert found.prefill(0, 512) == pytest.approx(1.0)


def test_decode_is_bilinear_between_the_four_nearest():
    times = {(2, 4): 1.0, (2, 8): 2.0, (4, 4): 3.0, (4, 8): 8.0}
    found = quantify([prefill], [lambda b, n: times.get((b, n), 0.0)], 8, 4)
    # Three requests of 5 tokens: a quarter along length, 1.25 and 4.25; half way between those.
    assert found.decode(0, 3, 5) == pytest.approx(2.75)
    assert found.decode(0, 4, 8) == pytest.approx(8.0)


def test_what_is_bilinear_already_is_met_everywhere_and_beyond_the_samples(found):
    for batch, length in ((1, 1), (3, 700), (17, 1500.5), (255, 4095), (300, 5000)):
        assert found.decode(0, batch, length) == pytest.approx(decode(batch, length))
        assert found.decode(1, batch, length) == pytest.approx(2 * decode(batch, length))
    for length in (1, 100, 4095, 6000):
        assert found.prefill(1, length) == pytest.approx(2 * prefill(length))


def test_bad_input():
    with pytest.raises(ValueError, match="at least 2"):
        powers_of_two(1)
    with pytest.raises(ValueError, match="as many"):
        quantify([prefill], [], 16, 16)
