import numpy as np

from serving_gym.baselines.llm_mesh.headroom import headroom_s, longest_headroom, shortest_headroom


def test_equation_1():
    # One arrived at 10 s, TTFT SLO 2 s, three tokens so far: the fourth is due at 12.75 s.
    found = headroom_s(np.array([10.0]), np.array([2.0]), 0.25, np.array([3]), now_s=12.0)
    np.testing.assert_allclose(found, [0.75])


def test_figure_5_the_most_urgent_instance_computes_and_its_headroom_grows():
    # Instance 2 has 1.9 s, computes 0.05 s, and has 1.9 - 0.05 + 0.25 = 2.1 s then.
    start_s, ttft_slo_s, instance = np.zeros(3), np.array([2.2, 1.9, 2.05]), np.array([1, 2, 3])
    generated, now_s = np.zeros(3, int), 0.0
    before = headroom_s(start_s, ttft_slo_s, 0.25, generated, now_s)
    assert shortest_headroom(instance, before) == 2
    generated[1] += 1
    after = headroom_s(start_s, ttft_slo_s, 0.25, generated, now_s + 0.05)
    np.testing.assert_allclose(after, [2.15, 2.1, 2.0])
    assert shortest_headroom(instance, after) == 3


def test_the_instance_of_the_most_urgent_of_its_requests():
    instance, headroom = np.array([0, 0, 1]), np.array([5.0, -0.1, 0.0])
    assert shortest_headroom(instance, headroom) == 0
    assert shortest_headroom(np.array([4, 2]), np.array([1.0, 1.0])) == 2
    assert shortest_headroom(np.array([], int), np.array([])) is None


def test_the_longest_headroom_is_evicted():
    assert longest_headroom(np.array([0.5, 3.0, -1.0, 3.0])) == 3
