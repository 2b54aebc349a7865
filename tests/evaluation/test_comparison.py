import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.runners.comparison.pooling import pooled
from serving_gym.runners.comparison.results import Kinds, References, compare_results, disjoint_blocks
from serving_gym.runners.reporting.figure_style import bin_length_s, looks_of
from serving_gym.runners.reporting.plots import plot_intervals, plot_timeline
from serving_gym.runners.rollouts.rollout import Episode

MakeEpisode = Callable[..., Episode]


@pytest.fixture
def results(make_episode: MakeEpisode) -> dict[str, list[Episode]]:
    """`good` is 20 % better than `plain` on every one of ten seeds, `bad` worse; seeds differ more than policies."""
    base = [-100.0 - 40.0 * seed for seed in range(10)]
    factors = {"plain": 1.0, "bad": 1.5, "good": 0.8}
    return {
        name: [make_episode(name, seed, **{"return": factor * base[seed]}) for seed in range(10)]
        for name, factor in factors.items()
    }


def _against_plain(make_episode: MakeEpisode, factors: list[float]) -> dict[str, list[Episode]]:
    """`good` has returns of so many times those of `plain`, which has -100."""
    return {
        "plain": [make_episode("plain", i, **{"return": -100.0}) for i in range(len(factors))],
        "good": [make_episode("good", i, **{"return": -100.0 * factor}) for i, factor in enumerate(factors)],
    }


def test_the_binding_form(results: dict[str, list[Episode]]) -> None:
    comparison = json.loads(json.dumps(to_jsonable(compare_results(results, Kinds())), allow_nan=False))
    entry = comparison["policies"]["plain"]
    assert entry["us_per_decision"] == 1.0
    low, high = entry["metrics"]["return"]["ci95"]
    assert low < entry["metrics"]["return"]["iqm"] == -280.0 < high
    assert comparison["probability_of_improvement"] == {
        "plain>bad": 1.0, "plain>good": 0.0, "bad>plain": 0.0, "bad>good": 0.0, "good>plain": 1.0, "good>bad": 1.0,
    }  # fmt: skip
    assert comparison["corrected"] == "holm"
    assert comparison["p_values"] == pytest.approx(dict.fromkeys(comparison["p_values"], 3 * 2 / 2**10))
    assert comparison["regret"] == dict.fromkeys(("bound", "clairvoyant", "clairvoyant_policies", "search"))


def test_a_learned_policy_is_held_against_the_best_heuristic(results: dict[str, list[Episode]]) -> None:
    comparison = compare_results(results, Kinds(learned=frozenset({"good"})))
    assert comparison["best_heuristic"] == "plain"
    assert comparison["gates"]["good"]["holds"]
    assert comparison["badge"] == "solved"
    assert compare_results(results, Kinds())["badge"] == "none"  # nothing was learned


@pytest.mark.parametrize(
    ("gains", "badge"),
    [
        ([0.02, 0.05], "solved"),  # 3.5 % in the mean; that the interval begins below 3 % does not matter
        ([0.02, 0.03], "none"),  # 2.5 %
        ([-0.08, 0.15], "none"),  # 3.5 %, and the interval holds zero
    ],
)
def test_solved_is_three_per_cent_clear_of_zero(
    results: dict[str, list[Episode]], make_episode: MakeEpisode, gains: list[float], badge: str
) -> None:
    results["good"] = [
        make_episode("good", e.seed, **{"return": e.metrics["return"] * (1.0 - gains[i % len(gains)])})
        for i, e in enumerate(results["plain"])
    ]
    assert compare_results(results, Kinds(learned=frozenset({"good"})))["badge"] == badge


@pytest.mark.parametrize(
    ("worse", "gate"),
    [
        ({"ttft_p99_s": 1.06}, "ttft_p99_ratio"),
        ({"ttft_p99_s": math.inf}, "ttft_p99_ratio"),
        ({"ttft_p99_s": math.nan}, "ttft_p99_ratio"),
        ({"slo_attainment": 0.99}, "slo_attainment_loss"),
        ({"slowdown/standard": 1.06}, "worst_class_slowdown_ratio"),
        ({"refused": 1.0}, "extra_requests_lost"),
    ],
)
def test_gates_keep_a_bought_return_from_counting(
    results: dict[str, list[Episode]], make_episode: MakeEpisode, worse: dict[str, float], gate: str
) -> None:
    results["good"] = [
        make_episode("good", e.seed, **{"return": e.metrics["return"]}, **worse) for e in results["good"]
    ]
    comparison = compare_results(results, Kinds(learned=frozenset({"good"})))
    assert not comparison["gates"]["good"][gate]["holds"]
    assert not comparison["gates"]["good"]["holds"]
    assert comparison["badge"] == "none"


def test_a_workload_that_is_lost_is_not_trimmed_away(make_episode: MakeEpisode) -> None:
    """A tenth of the blocks are of a workload on which the policy costs three times as much."""
    strata = ["usual"] * 54 + ["rare"] * 6
    factors = [0.92] * 54 + [3.0] * 6
    results = _against_plain(make_episode, factors)
    comparison = compare_results(results, Kinds(learned=frozenset({"good"})), strata=strata)
    gain = comparison["relative_improvement"]["good>plain"]
    assert gain["iqm"] == pytest.approx(0.9 * 0.08 - 0.1 * 2.0)
    assert comparison["badge"] == "none"


def test_who_gains_usually_and_loses_on_the_whole_has_not_solved_it(make_episode: MakeEpisode) -> None:
    """On one block in eight the policy costs three times as much; the middle half knows nothing of that."""
    factors = [3.0 if i % 8 == 0 else 0.92 + 0.0001 * i for i in range(64)]
    comparison = compare_results(_against_plain(make_episode, factors), Kinds(learned=frozenset({"good"})))
    gain = comparison["relative_improvement"]["good>plain"]
    assert gain["ci95"][0] > 0.03
    assert gain["mean"] == pytest.approx(1.0 - np.mean(factors))
    assert gain["mean_ci95"][0] < gain["mean"] < gain["mean_ci95"][1] < 0
    assert comparison["gates"]["good"]["holds"]
    assert comparison["badges"] == {"good": "none"}


def test_gates_look_at_every_block(make_episode: MakeEpisode) -> None:
    """Rare bad blocks, which an interquartile mean does not see."""
    results = _against_plain(make_episode, [0.9] * 16)
    for episode in results["good"][:2]:
        episode.metrics.update(ttft_p99_s=4.0, slo_attainment=0.9)
    gates = compare_results(results, Kinds(learned=frozenset({"good"})))["gates"]["good"]
    assert gates["ttft_p99_ratio"]["value"] == pytest.approx((2 * 4.0 + 14) / 16)
    assert gates["slo_attainment_loss"]["value"] == pytest.approx(0.1 * 2 / 16)
    for name in ("ttft_p99_ratio", "slo_attainment_loss"):
        low, high = gates[name]["ci95"]
        assert low <= gates[name]["value"] < high
        assert not gates[name]["holds"]


def test_a_gate_that_holds_may_be_uncertain_and_broken_in_a_workload(make_episode: MakeEpisode) -> None:
    results = _against_plain(make_episode, [0.9] * 16)
    for i, episode in enumerate(results["good"]):
        episode.metrics["ttft_p99_s"] = (0.6 if i % 2 else 1.8) if i < 8 else 0.85
    strata = ["split"] * 8 + ["fine"] * 8
    gates = compare_results(results, Kinds(learned=frozenset({"good"})), strata=strata)["gates"]["good"]
    gate = gates["ttft_p99_ratio"]
    assert gate["holds"]
    assert gate["ci95"][1] > gate["limit"]
    assert not gate["certain"]
    assert not gates["certain"]
    assert gate["beyond_in"] == gates["beyond_in"] == ["split"]
    assert gates["slo_attainment_loss"]["certain"]


def test_a_heuristic_that_loses_requests_excuses_nothing_elsewhere(make_episode: MakeEpisode) -> None:
    results = _against_plain(make_episode, [0.9] * 8)
    for i, episode in enumerate(results["good"]):
        if i < 4:
            episode.metrics["ttft_p99_s"] = 3.0
        else:
            results["plain"][i].metrics["ttft_p99_s"] = math.inf
    strata = ["slow"] * 4 + ["lost"] * 4
    gate = compare_results(results, Kinds(learned=frozenset({"good"})), strata=strata)["gates"]["good"][
        "ttft_p99_ratio"
    ]
    assert gate["by_workload"] == pytest.approx({"slow": 3.0, "lost": 1.0})
    assert gate["value"] == pytest.approx(3.0**0.5)


def test_requests_lost_in_one_workload_are_not_made_up_in_another(make_episode: MakeEpisode) -> None:
    results = _against_plain(make_episode, [0.9] * 8)
    results["good"][0].metrics["refused"] = 1.0
    results["plain"][7].metrics["refused"] = 5.0
    strata = ["one"] * 4 + ["another"] * 4
    gate = compare_results(results, Kinds(learned=frozenset({"good"})), strata=strata)["gates"]["good"][
        "extra_requests_lost"
    ]
    assert gate["by_workload"] == {"one": 1.0, "another": -5.0}
    assert not gate["holds"]


def test_each_learned_policy_has_a_badge_of_its_own(
    results: dict[str, list[Episode]], make_episode: MakeEpisode
) -> None:
    results["greedy"] = [
        make_episode("greedy", e.seed, **{"return": e.metrics["return"]}, ttft_p99_s=4.0)
        for e in results["good"]
    ]
    comparison = compare_results(results, Kinds(learned=frozenset({"good", "greedy", "bad"})))
    assert comparison["badges"] == {"bad": "none", "good": "solved", "greedy": "none"}
    assert comparison["badge"] == "solved"
    assert comparison["lost_to"] == {"bad": ["plain"], "good": [], "greedy": []}


def test_what_is_lost_to_the_digit_is_not_too_much(
    results: dict[str, list[Episode]], make_episode: MakeEpisode
) -> None:
    for name, attained in (("plain", 0.914), ("good", 0.912)):
        results[name] = [
            make_episode(name, e.seed, **{"return": e.metrics["return"]}, slo_attainment=attained)
            for e in results[name]
        ]
    assert 0.914 - 0.912 > 0.002, "as floating-point numbers have it"
    assert compare_results(results, Kinds(learned=frozenset({"good"})))["gates"]["good"]["holds"]


def test_workloads_may_differ_in_their_classes(
    results: dict[str, list[Episode]], make_episode: MakeEpisode
) -> None:
    """A class that half of the episodes have is worse off by a tenth there."""
    for name in ("plain", "good"):
        for episode in results[name][5:]:
            del episode.metrics["slowdown/standard"]
            episode.metrics["slowdown/priority"] = 1.1 if name == "good" else 1.0
    strata = ["one"] * 5 + ["another"] * 5
    names = {name: results[name] for name in ("plain", "good")}
    comparison = compare_results(names, Kinds(learned=frozenset({"good"})), strata=strata)
    gate = comparison["gates"]["good"]["worst_class_slowdown_ratio"]
    assert gate["value"] == pytest.approx(1.1)
    assert not gate["holds"]
    assert comparison["policies"]["good"]["metrics"]["slowdown/priority"]["iqm"] == pytest.approx(1.1)


def test_a_clairvoyant_policy_shows_the_room_left(results: dict[str, list[Episode]]) -> None:
    comparison = compare_results(results, Kinds(clairvoyant=frozenset({"good"})))
    assert comparison["best_heuristic"] == "plain"
    assert comparison["regret"]["clairvoyant"]["plain"] == pytest.approx(0.2)
    assert comparison["badge"] == "open"


def test_regret_to_a_bound_and_to_a_search_on_some_seeds(results: dict[str, list[Episode]]) -> None:
    plain = np.array([episode.metrics["return"] for episode in results["plain"]])
    searched = np.where(np.arange(len(plain)) < 4, 0.75 * plain, np.nan)
    references = References(bound=0.5 * plain, clairvoyant=searched)
    regret = compare_results(results, Kinds(learned=frozenset({"good"})), references)["regret"]
    assert regret["bound"]["plain"] == pytest.approx(0.5)
    assert regret["bound"]["good"] == pytest.approx((0.8 - 0.5) / 0.8)
    assert regret["clairvoyant"]["plain"] == pytest.approx(0.25)
    assert regret["clairvoyant"]["bad"] == pytest.approx(0.5)
    assert compare_results({"plain": results["plain"]}, Kinds(), references)["badge"] == "open"


def test_strata_count_alike_whatever_the_size_of_their_returns(make_episode: MakeEpisode) -> None:
    """In one workload the gain is a tenth, in the other a fifth of returns a thousand times larger."""
    strata = ["small"] * 6 + ["large"] * 6
    base = [-1.0] * 6 + [-1000.0] * 6
    gains = [0.9] * 6 + [0.8] * 6
    results = {
        "plain": [make_episode("plain", i, **{"return": value}) for i, value in enumerate(base)],
        "good": [
            make_episode("good", i, **{"return": gain * value})
            for i, (gain, value) in enumerate(zip(gains, base, strict=True))
        ],
    }
    comparison = compare_results(results, Kinds(learned=frozenset({"good"})), strata=strata)
    gain = comparison["relative_improvement"]["good>plain"]
    assert gain["iqm"] == pytest.approx(0.15)
    assert gain["ci95"] == pytest.approx((0.15, 0.15))  # nothing varies inside a stratum
    assert comparison["best_heuristic"] == "plain"
    assert comparison["badge"] == "solved"


def test_the_best_heuristic_does_not_depend_on_the_order_of_policies(make_episode: MakeEpisode) -> None:
    """`a` beats `b` on most blocks; measured by their gains over `poor`, or by returns, `b` would be ahead."""
    strata = ["one"] * 8 + ["another"] * 8
    returns = {
        "poor": [-1000.0] * 8 + [-20.0] * 8,
        "b": [-50.0] * 8 + [-10.0] * 8,
        "a": [-49.0] * 8 + [-10.1] * 8,
    }
    for order in itertools.permutations(returns):
        results = {
            name: [make_episode(name, i, **{"return": value}) for i, value in enumerate(returns[name])]
            for name in order
        }
        comparison = compare_results(results, Kinds(), strata=strata)
        gains = comparison["relative_improvement"]
        assert gains["a>b"]["iqm"] > 0 > gains["b>a"]["iqm"]
        assert gains["b>poor"]["iqm"] > gains["a>poor"]["iqm"] > 0
        assert comparison["best_heuristic"] == "a"


def test_no_workload_is_left_out_of_the_gates_for_its_size(
    results: dict[str, list[Episode]], make_episode: MakeEpisode
) -> None:
    """The tail of one block in five, ten times as long as that of the others, is three times as long."""
    for name in ("plain", "good"):
        times = {"long": 30.0 if name == "good" else 10.0, "usual": 0.99 if name == "good" else 1.0}
        results[name] = [
            make_episode(
                name,
                e.seed,
                **{"return": e.metrics["return"]},
                ttft_p99_s=times["long" if e.seed < 2 else "usual"],
            )
            for e in results[name]
        ]
    strata = ["long"] * 2 + ["usual"] * 8
    names = {name: results[name] for name in ("plain", "good")}
    gate = compare_results(names, Kinds(learned=frozenset({"good"})), strata=strata)["gates"]["good"][
        "ttft_p99_ratio"
    ]
    assert gate["by_workload"] == pytest.approx({"long": 3.0, "usual": 0.99})
    assert gate["value"] == pytest.approx(3.0**0.2 * 0.99**0.8)
    assert not gate["holds"]


def test_windows_of_one_trace_are_not_independent(tmp_path: Path) -> None:
    rows = "\n".join(f"{t},10,10" for t in range(1000))
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    windows = WorkloadSource(WorkloadSpec("file", path=str(path), num_requests=30))
    test_rows = len(WorkloadSource(WorkloadSpec("file", path=str(path))).sample(0, "test"))
    assert disjoint_blocks(windows, "test", 10) == test_rows // 30
    assert disjoint_blocks(windows, "test", 2) == 2
    assert disjoint_blocks(WorkloadSource(WorkloadSpec("flying_bursty", num_requests=30)), "test", 10) == 10


def test_plots_are_written(results: dict[str, list[Episode]], tmp_path: Path) -> None:
    comparison = compare_results(results, Kinds())
    names = list(results)[:2]
    pools = pooled(results, {"runs/ten/*": names})
    plot_intervals(tmp_path / "intervals.png", comparison["policies"], pools, "pdf")
    firsts = {name: episodes[0] for name, episodes in results.items()}
    plot_timeline(tmp_path / "timeline.png", firsts, [(0.5, 0.02)], pools, "pdf")
    for name in ("intervals", "timeline"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_policy_looks_the_same_in_all_figures() -> None:
    few, many = looks_of(["jsq", "llm_d"]), looks_of(["llm_d", "random", "jsq", "preserve"])
    assert few["jsq"] == many["jsq"]
    twenty = looks_of([f"policy_{number}" for number in range(20)])
    assert len(set(twenty.values())) == 20, "colour or mark tells any two apart"


@pytest.mark.parametrize(
    ("duration_s", "length_s"), [(9.0, 0.1), (61.0, 1.0), (950.0, 10.0), (86_400.0, 900.0)]
)
def test_bins_fit_the_run(duration_s: float, length_s: float) -> None:
    assert bin_length_s(duration_s) == length_s
    assert 24 <= duration_s / length_s <= 120
