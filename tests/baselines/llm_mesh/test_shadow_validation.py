import numpy as np
import pytest

from serving_gym.baselines.llm_mesh import shadow_validation as module
from serving_gym.baselines.llm_mesh.quantification import quantify
from serving_gym.baselines.llm_mesh.shadow_validation import Case, NodeView, Phase

TPOT_S = 0.25


def node(*requests, ready_s=(0.0, 0.0, 0.0), profile=None, busy=(-1, 0.0), now_s=0.0):
    """A node of three instances; requests are (instance, phase, deadline, length)."""
    columns = list(zip(*requests, strict=True)) if requests else [[], [], [], []]
    return NodeView(
        now_s,
        busy[0],
        busy[1],
        np.array(profile or [0] * len(ready_s)),
        np.array(ready_s),
        np.array(columns[0], int),
        np.array(columns[1], int),
        np.array(columns[2], float),
        np.array(columns[3], float),
    )


def shadow_validation(view, quantification, tpot_slo_s, **options):
    """Of the last request of a view."""
    instance, _, deadline_s, length = (column[-1] for column in view[5:])
    present = view._replace(**{name: getattr(view, name)[:-1] for name in view._fields[5:]})
    return module.shadow_validation(
        present, instance, deadline_s, length, quantification, tpot_slo_s, **options
    )


def times(prefill_s_per_token=0.001, decode_s=0.05, per_request_s=0.0):
    return quantify(
        [lambda n: prefill_s_per_token * n], [lambda b, n: decode_s + per_request_s * b], 1024, 64
    )


@pytest.fixture
def figure_6():
    """R1 and R2 run in instance 1, R3 in instance 2, R4 in instance 3."""
    return node(
        (0, Phase.RUNNING, 0.3, 100),
        (0, Phase.RUNNING, 0.4, 100),
        (1, Phase.RUNNING, 0.5, 100),
        (2, Phase.RUNNING, 0.6, 100),
    )


def test_figure_6_a_request_that_harms_nobody_is_accepted(figure_6):
    # Round: 3 x 0.05 x 1.1 = 0.165 s. R1, R3, R4 first, each 0.055 s; R5's prompt takes 0.11 s when it is the most
    # urgent.
    view = figure_6.with_request(2, deadline_s=2.0, length=100)
    assert shadow_validation(view, times(), TPOT_S) is Case.PASSED


def test_figure_6_case_1_the_new_prefill_ends_too_late():
    # Alone its 900 tokens take 0.99 s.
    assert shadow_validation(node().with_request(2, 1.00, 900), times(), TPOT_S) is Case.PASSED
    assert shadow_validation(node().with_request(2, 0.98, 900), times(), TPOT_S) is Case.OWN_PREFILL_LATE
    # R1, R3 and R1 again are due before 0.6 s and go first: R5 begins at 0.165 s and has 0.435 s, at 0.00055 s a token.
    others = node((0, Phase.RUNNING, 0.3, 100), (1, Phase.RUNNING, 0.5, 100))
    quick = times(prefill_s_per_token=0.0005)
    assert shadow_validation(others.with_request(2, 0.6, 790), quick, TPOT_S) is Case.PASSED
    assert shadow_validation(others.with_request(2, 0.6, 792), quick, TPOT_S) is Case.OWN_PREFILL_LATE


def test_figure_6_case_2_an_existing_request_is_delayed_too_late():
    # R5 is due first and takes 0.33 s; R1 was to have its token by 0.35 s and needs 0.055 s more.
    view = node((0, Phase.RUNNING, 0.35, 100)).with_request(2, deadline_s=0.34, length=300)
    assert shadow_validation(view, times(), TPOT_S) is Case.OTHER_LATE
    # With 0.04 s more it is in time.
    view = node((0, Phase.RUNNING, 0.39, 100)).with_request(2, deadline_s=0.34, length=300)
    assert shadow_validation(view, times(), TPOT_S) is Case.PASSED


def test_figure_6_case_3_a_round_of_decodes_takes_too_long():
    # Three instances, 0.05 s and 0.02 s a request: 1.1 x (0.15 + 0.02 x requests) is 0.231 s with three of them, and
    # 0.253 s with four.
    quantified = times(decode_s=0.05, per_request_s=0.02)
    two = [(i, Phase.RUNNING, 5.0, 100) for i in (0, 1)]
    assert shadow_validation(node(*two).with_request(2, 9.0, 10), quantified, TPOT_S) is Case.PASSED
    three = [(i, Phase.RUNNING, 5.0, 100) for i in (0, 1, 2)]
    found = shadow_validation(node(*three).with_request(2, 9.0, 10), quantified, TPOT_S)
    assert found is Case.DECODE_ROUND_TOO_LONG
    assert (
        shadow_validation(node(*three).with_request(2, 9.0, 10), quantified, TPOT_S, overestimate=0.0)
        is Case.PASSED
    )


def test_every_iteration_is_overestimated_by_a_tenth():
    assert shadow_validation(node().with_request(0, 1.09, 1000), times(), TPOT_S) is Case.OWN_PREFILL_LATE
    assert shadow_validation(node().with_request(0, 1.10 + 1e-9, 1000), times(), TPOT_S) is Case.PASSED


def test_who_is_late_already_is_computed_but_not_counted():
    # R1 is 0.1 s late: its instance goes first until R5 is more urgent, after two iterations.
    view = node((0, Phase.RUNNING, 0.9, 100), now_s=1.0).with_request(1, deadline_s=1.34, length=200)
    assert shadow_validation(view, times(), TPOT_S) is Case.PASSED  # 1.11 s, then 1.33 s
    view = node((0, Phase.RUNNING, 0.3, 100), now_s=1.0).with_request(1, deadline_s=1.34, length=200)
    # 0.7 s late: five iterations until R5 is more urgent, which leave it no time.
    assert shadow_validation(view, times(), TPOT_S) is Case.OWN_PREFILL_LATE


def test_the_iteration_under_way_ends_first():
    # Instance 1 prefills until 0.8 s; R5 needs 0.22 s after that.
    waiting = (0, Phase.PREFILLING, 1.0, 500)
    view = node(waiting, busy=(0, 0.8))
    assert shadow_validation(view.with_request(1, 1.03, 200), times(), TPOT_S) is Case.PASSED
    assert shadow_validation(view.with_request(1, 1.01, 200), times(), TPOT_S) is Case.OWN_PREFILL_LATE


def test_an_instance_that_loads_computes_nothing_before_it_is_ready():
    view = node(ready_s=(1.5,)).with_request(0, 2.0, 400)
    assert shadow_validation(view, times(), TPOT_S) is Case.PASSED  # 1.94 s
    view = node(ready_s=(1.6,)).with_request(0, 2.0, 400)
    assert shadow_validation(view, times(), TPOT_S) is Case.OWN_PREFILL_LATE


def test_prompts_that_wait_count_too():
    # The prompt of R1 takes 1.1 s; R1 decodes until R5 is more urgent: five tokens, 0.275 s; R5 takes 1.1 s.
    waiting = (0, Phase.WAITING, 1.2, 1000)
    assert shadow_validation(node(waiting).with_request(1, 2.5, 1000), times(), TPOT_S) is Case.PASSED
    assert (
        shadow_validation(node(waiting).with_request(1, 2.46, 1000), times(), TPOT_S) is Case.OWN_PREFILL_LATE
    )


def test_an_emptied_instance_leaves_room():
    view = node((0, Phase.RUNNING, 0.2, 100), (1, Phase.RUNNING, 0.2, 100), busy=(1, 0.05))
    view = view.with_request(2, 0.35, 250)
    assert shadow_validation(view, times(), TPOT_S) is Case.OWN_PREFILL_LATE
    assert shadow_validation(view.without_instance(1), times(), TPOT_S) is Case.PASSED


def test_against_a_plain_simulation_that_runs_much_longer():
    """Accepted requests keep every deadline in a long plain simulation; refused ones break one, or case 3."""
    rng = np.random.default_rng(0)
    quantified = times(decode_s=0.04, per_request_s=0.02)
    outcomes = set()
    for _ in range(300):
        requests = [
            (
                int(rng.integers(3)),
                int(rng.integers(2)) * 2,
                float(rng.uniform(0.1, 2.0)),
                int(rng.integers(50, 600)),
            )
            for _ in range(rng.integers(0, 8))
        ]
        ready = tuple(float(r) for r in rng.choice([0.0, 0.0, 0.4], 3))
        view = node(*requests, ready_s=ready).with_request(
            int(rng.integers(3)), float(rng.uniform(0.2, 2.0)), int(rng.integers(50, 600))
        )
        found = shadow_validation(view, quantified, TPOT_S)
        outcomes.add(found)
        assert found == plainly(view, quantified, until_s=20.0)
    assert outcomes == set(Case)


def plainly(view, quantified, until_s):
    requests = [
        {"i": int(i), "waits": p == Phase.WAITING, "due": float(d), "n": float(n), "id": k}
        for k, (i, p, d, n) in enumerate(zip(*view[5:], strict=True))
    ]
    instances = {r["i"] for r in requests}
    round_s = sum(
        1.1 * quantified.decode(0, len(own), np.mean([r["n"] for r in own]))
        for own in ([r for r in requests if r["i"] == i] for i in instances)
    )
    if round_s > TPOT_S:
        return Case.DECODE_ROUND_TOO_LONG
    clock = view.now_s
    while clock < until_s:
        able = [r for r in requests if view.ready_s[r["i"]] <= clock]
        if not able:
            clock = min(view.ready_s[r["i"]] for r in requests)
            continue
        first = min(able, key=lambda r: (r["due"], r["i"], r["waits"]))
        if first["waits"]:
            clock += 1.1 * quantified.prefill(0, first["n"])
            batch = [first]
        else:
            batch = [r for r in requests if r["i"] == first["i"] and not r["waits"]]
            clock += 1.1 * quantified.decode(0, len(batch), np.mean([r["n"] for r in batch]))
        for r in batch:
            if r["due"] < clock:
                own = r["id"] == len(requests) - 1 and r["waits"]
                return Case.OWN_PREFILL_LATE if own else Case.OTHER_LATE
            r["due"] += TPOT_S
            r["n"] += 1
        first["waits"] = False
    return Case.PASSED
