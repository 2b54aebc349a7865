"""Workloads by name: splits, seeds, scaling, refusals, and the config group."""

import contextlib
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from serving_gym.envs.workload import flying
from serving_gym.envs.workload.fitting import fit
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import (
    FUNCTIONS,
    SESSIONS,
    SPLITS,
    WorkloadSource,
    WorkloadSpec,
    for_larger,
    make_workload,
    split_rows,
    workload_names,
)
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import TRACES, load_trace

CONFIGS = Path(__file__).parents[2] / "configs" / "workload"
GENERATED = tuple(
    name
    for name in workload_names()
    if name not in TRACES and name not in FUNCTIONS and name not in ("file", "mixture", "sequence")
)


def trace(n=1000, span_s=2000.0):
    rng = np.random.default_rng(3)
    arrival_s = np.sort(rng.uniform(0, span_s, n))
    return Workload(arrival_s, np.arange(1, n + 1), rng.integers(1, 50, n), name="mine")


@pytest.fixture
def path(tmp_path):
    return str(write_trace(trace(), tmp_path / "mine.parquet"))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_episodes(name):
    source = WorkloadSource(WorkloadSpec(name=name, num_requests=300))
    episodes = [source.sample(seed, split).validate() for split in SPLITS for seed in range(3)]
    assert len({episode.sha256() for episode in episodes}) == len(episodes)
    assert source.sample(1).equals(source.sample(1, "train"))
    assert pickle.loads(pickle.dumps(source)).sample(1).equals(source.sample(1))
    for episode in episodes:
        assert len(episode) == 300
        assert episode.classes == source.classes
        assert episode.input_tokens.max() <= source.max_input_tokens
        assert episode.max_output_tokens.max() <= source.max_output_tokens


@pytest.mark.parametrize("name", GENERATED)
def test_generators_have_a_length_of_their_own(name):
    assert len(make_workload(WorkloadSpec(name=name), 0)) == (1000 if name in SESSIONS else 4000)


def test_priority_and_long_workloads():
    priority = make_workload(WorkloadSpec(name="flying_priority"), 0)
    assert priority.classes == ("priority", "normal")
    assert (priority.priority == 0).mean() == pytest.approx(flying.PRIORITY_SHARE, abs=0.03)
    long = make_workload(WorkloadSpec(name="flying_long", long_input_tokens=7936), 0)
    assert (long.input_tokens == 7936).mean() == pytest.approx(flying.LONG_SHARE, abs=0.01)
    none = WorkloadSource(WorkloadSpec(name="flying_long", long_share=0.0))
    assert none.classes == none.sample(0).classes == ("standard",)
    assert none.max_input_tokens == 4096
    both = WorkloadSource(WorkloadSpec(name="flying_bursty", priority_share=0.5, long_share=0.5))
    assert both.classes == both.sample(0).classes == ("priority", "normal", "long")
    assert both.max_input_tokens == both.sample(0).input_tokens.max() == flying.LONG_INPUT_TOKENS


def test_a_long_request_fits_the_context_it_is_named_after():
    assert flying.LONG_INPUT_TOKENS + flying.long().max_output_tokens == 131072


@pytest.mark.parametrize("changes", [{"rate_rps": 20.0}, {"rate_scale": 2.5}])
def test_scaling_keeps_the_requests(path, changes):
    plain = WorkloadSource(WorkloadSpec(name="file", path=path, num_requests=100))
    scaled = WorkloadSource(WorkloadSpec(name="file", path=path, num_requests=100, **changes))
    factor = scaled.rate_rps / plain.rate_rps
    assert factor == pytest.approx(changes.get("rate_scale", 20.0 / plain.rate_rps))
    assert np.allclose(scaled.sample(4).arrival_s * factor, plain.sample(4).arrival_s)
    assert np.array_equal(scaled.sample(4).input_tokens, plain.sample(4).input_tokens)


def test_a_larger_cluster_is_asked_for_as_much_more():
    parts = [{"name": "azure_conv_fitted", "rate_rps": 3.0}, {"name": "azure_code_fitted", "num_requests": 7}]
    mixture = WorkloadSpec(name="mixture", num_requests=10, params={"parts": parts})
    for spec in (mixture, WorkloadSpec(rate_scale=2.0), WorkloadSpec(rate_rps=5.0, num_requests=3)):
        larger = for_larger(spec, 4.0)
        assert WorkloadSource(larger).rate_rps == pytest.approx(4.0 * WorkloadSource(spec).rate_rps)
        assert larger.num_requests == (None if spec.num_requests is None else 4 * spec.num_requests)
    lengths = {len(make_workload(for_larger(mixture, 4.0), seed)) for seed in range(8)}
    assert lengths == {40, 28}
    assert for_larger(WorkloadSpec(num_clients=3), 4.0).num_clients == 12
    assert parts[0] == {"name": "azure_conv_fitted", "rate_rps": 3.0}, "what it is given stays as it is"


def test_splits_are_apart_in_time(path):
    table = trace()
    ends = {split: split_rows(table, split) for split in SPLITS}
    assert ends["all"] == (0, 1000)
    span, begin = table.duration_s, table.arrival_s[0]
    for earlier, later, border in (("train", "validation", 0.6), ("validation", "test", 0.8)):
        assert table.arrival_s[ends[earlier][1] - 1] < begin + border * span
        assert table.arrival_s[ends[later][0]] >= begin + border * span + 60.0
    assert ends["test"][1] == 1000


def test_windows_stay_in_their_split_and_differ(path):
    source = WorkloadSource(WorkloadSpec(name="file", path=path, num_requests=50))
    for split in ("train", "validation", "test"):
        first, last = split_rows(trace(), split)
        episodes = [source.sample(seed, split).validate() for seed in range(10)]
        assert len({episode.sha256() for episode in episodes}) == 10
        for episode in episodes:
            rows = episode.input_tokens - 1
            assert first <= rows[0]
            assert rows[-1] < last
            assert (np.diff(rows) == 1).all()
            assert episode.arrival_s[0] == 0.0


def test_a_split_smaller_than_the_episode_gives_shorter_windows(path):
    source = WorkloadSource(WorkloadSpec(name="file", path=path, num_requests=100_000, split="test"))
    first, last = split_rows(trace(), "test")
    episodes = [source.sample(seed) for seed in range(10)]
    assert {len(episode) for episode in episodes} == {int(0.75 * (last - first))}
    assert len({episode.sha256() for episode in episodes}) > 5


def test_without_a_number_the_episode_is_the_whole_split(path):
    source = WorkloadSource(WorkloadSpec(name="file", path=path))
    assert source.sample(0, "all").equals(source.sample(7, "all"))
    assert np.array_equal(source.sample(0, "all").input_tokens, trace().input_tokens)
    first, last = split_rows(trace(), "validation")
    assert len(source.sample(3, "validation")) == last - first


@given(st.integers(1, 400), st.floats(0.1, 1e5))
@settings(max_examples=60, deadline=None)
def test_splits_never_overlap(n, span_s):
    table, used = trace(n, span_s), np.zeros(n, dtype=int)
    for split in ("train", "validation", "test"):
        with contextlib.suppress(ValueError):
            first, last = split_rows(table, split)
            assert first < last
            used[first:last] += 1
    assert used.max() == 1


def test_a_written_episode_cannot_spoil_the_next(path):
    source = WorkloadSource(WorkloadSpec(name="file", path=path, split="all"))
    source.sample(0).input_tokens[:] = 0
    assert source.sample(0).input_tokens.min() == 1


def test_files_and_fitted_files(tmp_path, path):
    fit(trace(), "own").save(tmp_path / "own.json")
    source = WorkloadSource(WorkloadSpec(name="file", path=str(tmp_path / "own.json"), num_requests=20))
    assert len(source.sample(0).validate()) == 20
    for absent in ("absent.csv", "absent.json"):
        with pytest.raises(ValueError, match=f"{absent} does not exist"):
            make_workload(WorkloadSpec(name="file", path=absent), 0)


def test_requests_all_at_once_have_no_rate(tmp_path):
    burst = Workload(np.zeros(5), np.ones(5), np.ones(5), name="burst")
    path = str(write_trace(burst, tmp_path / "burst.csv"))
    assert len(make_workload(WorkloadSpec(name="file", path=path, split="all"), 0)) == 5
    with pytest.raises(ValueError, match="has no arrival rate"):
        make_workload(WorkloadSpec(name="file", path=path, split="all", rate_rps=1.0), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "azure_conf"}, "unknown workload name 'azure_conf'; did you mean 'azure_conv'"),
        ({"split": "tests"}, "unknown split 'tests'; did you mean 'test'"),
        ({"name": "file"}, "path must be given for workload 'file'"),
        ({"path": "x.csv"}, "and for no other"),
        ({"num_requests": 0}, "num_requests must be at least 1"),
        ({"rate_scale": 0.0}, "rate_scale must be positive and finite"),
        ({"rate_rps": float("inf")}, "rate_rps must be positive and finite"),
        ({"rate_rps": 3.0, "rate_scale": 2.0}, "not both"),
        ({"priority_share": 1.5}, r"priority_share must lie in \[0, 1\]"),
        ({"long_share": -0.5}, r"long_share must lie in \[0, 1\]"),
        ({"long_input_tokens": 0}, "long_input_tokens must be at least 1"),
        ({"params": {"low_rate": [1, 2]}}, "unknown parameter .* 'low_rate'; did you mean 'low_rate_rps'"),
        ({"params": {"low_rate_rps": [2, 1]}}, "low_rate_rps must be a range"),
        ({"name": "azure_conv_fitted", "params": {"spread_s": 3.0}}, r"\(allowed: none\)"),
    ],
)
def test_bad_specifications_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSource(WorkloadSpec(**{"name": "flying_bursty", **changes}))


def test_bad_split_and_seed_are_refused():
    source = WorkloadSource(WorkloadSpec(name="flying_bursty"))
    with pytest.raises(ValueError, match="unknown split 'trian'; did you mean 'train'"):
        source.sample(0, "trian")
    with pytest.raises(ValueError, match="seed must be at least 0"):
        source.sample(-1)


def composed(name):
    """A workload file with those that it builds on."""
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    parts = [part for part in config.pop("defaults", []) if part != "_self_"]
    return OmegaConf.merge(*(composed(part) for part in parts), config)


def test_every_name_has_a_config_and_every_config_a_name():
    assert {composed(file.stem).name for file in CONFIGS.glob("*.yaml")} == set(workload_names())
    assert {file.stem for file in CONFIGS.glob("*.yaml")} >= set(workload_names())


# Files of another name than their workload's; of the others all are weeks.
USES = {
    "chat_code_agents": "sequence",
    "routing_chat": "azure_conv_fitted",
    "routing_mixture": "mixture",
    "layout_mixture": "mixture",
    "layout_priority_mixture": "mixture",
    "types_mixture": "mixture",
    "drifting_types": "type_mix",
    "tiers_swinging": "sageserve_tiers",
    "tiers_swinging_small": "sageserve_tiers",
    "functions_mostly_small": "functions_fitted",
    "functions_mostly_large": "functions_fitted",
    "sequence_bursts": "sequence",
    "sequence_varied": "sequence",
}


@pytest.mark.parametrize("name", sorted(file.stem for file in CONFIGS.glob("*.yaml")))
def test_configs_are_complete_specifications(name):
    config = composed(name)
    of_files = {"time_unit", "rebase", "columns", "max_gap_s"} if name != "file" else set()
    assert set(config) == set(WorkloadSpec.__dataclass_fields__) - of_files
    if name == "file":
        assert OmegaConf.is_missing(config, "path")
        config.path = "some.csv"
    spec = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(WorkloadSpec), config))
    assert spec.name == (name if name in workload_names() else USES.get(name, "week"))
    WorkloadSource(spec)


@pytest.mark.parametrize(
    "name", ["flying_bursty", "flying_priority", "flying_long", "sageserve_tiers", "sharegpt_poisson", "week"]
)
def test_configs_repeat_the_defaults_of_the_code(name):
    config = OmegaConf.structured(WorkloadSpec)
    spec = OmegaConf.to_object(OmegaConf.merge(config, OmegaConf.load(CONFIGS / f"{name}.yaml")))
    assert make_workload(spec, 3).equals(make_workload(WorkloadSpec(name=name, num_requests=4000), 3))


@pytest.mark.parametrize("name", sorted(TRACES))
def test_real_traces(name, real_traces):
    whole = load_trace(name).validate()
    assert len(whole) <= TRACES[name].published_rows
    assert (np.diff(whole.arrival_s) > 0).mean() > 0.99
    assert make_workload(WorkloadSpec(name=name, split="all"), 5).sha256() == whole.sha256()
    source = WorkloadSource(WorkloadSpec(name=name, num_requests=200))
    for split in ("train", "validation", "test"):
        episodes = [source.sample(seed, split).validate() for seed in range(10)]
        assert {len(episode) for episode in episodes} == {200}
        assert len({episode.sha256() for episode in episodes}) == 10
    assert (whole.hash_ids is not None) == name.startswith("mooncake")
    if whole.hash_ids is not None:
        blocks = -(-whole.input_tokens // whole.hash_block_tokens)
        assert np.abs(np.diff(whole.hash_offsets) - blocks).max() <= 1


def test_absent_trace_is_refused_in_one_sentence(no_traces):
    with pytest.raises(ValueError, match=r"runners\.traces fetch name=azure_code") as caught:
        make_workload(WorkloadSpec(name="azure_code"), 0)
    assert "\n" not in str(caught.value)


def test_mixture_draws_each_episode_from_one_of_its_parts():
    parts = [{"name": "flying_bursty"}, {"name": "azure_conv_fitted", "rate_scale": 4.0}]
    source = WorkloadSource(WorkloadSpec(name="mixture", num_requests=50, params={"parts": parts}))
    names = {source.sample(seed).name for seed in range(20)}
    assert names == {"flying_bursty", "azure_conv_fitted"}
    assert source.sample(3).equals(source.sample(3))
    assert len(source.sample(0)) == 50
    assert source.classes == ("standard",)


def test_parts_of_a_mixture_stream_as_they_would_alone():
    """A day of a mixture is a day of one of its parts, with that part's past."""
    parts = [
        {"name": "week", "params": {"requests_per_week": 50_000.0}},
        {"name": "sageserve_tiers", "params": {"mean_rps": 0.05}},
    ]
    mixture = WorkloadSource(WorkloadSpec(name="mixture", params={"parts": parts}))
    seen = set()
    for seed in range(6):
        drawn = mixture.stream(seed, past_s=7200.0, duration_s=36_000.0)
        alone = [
            WorkloadSource(WorkloadSpec(**part)).stream(seed, past_s=7200.0, duration_s=36_000.0)
            for part in parts
        ]
        pieces = [[each.piece(i) for i in range(each.num_pieces)] for each in (drawn, *alone)]
        arrivals = [np.concatenate([piece.arrival_s for piece in each]) for each in pieces]
        same = [np.array_equal(arrivals[0], other) for other in arrivals[1:]]
        assert sum(same) == 1
        seen.add(same.index(True))
    assert seen == {0, 1}


def test_mixture_has_the_classes_of_all_its_parts():
    parts = [
        {"name": "flying_bursty"},
        {"name": "flying_priority"},
        {"name": "flying_bursty", "long_share": 0.5},
    ]
    source = WorkloadSource(WorkloadSpec(name="mixture", num_requests=50, params={"parts": parts}))
    assert source.classes == ("standard", "priority", "normal", "long")
    seen = set()
    for seed in range(20):
        episode = source.sample(seed)
        assert episode.classes == source.classes
        seen.add(frozenset(np.array(source.classes)[episode.class_id].tolist()))
    assert seen == {
        frozenset({"standard"}),
        frozenset({"priority", "normal"}),
        frozenset({"standard", "long"}),
    }


IN_TURN = [
    {"name": "flying_bursty", "num_requests": 30},
    {"name": "azure_conv_fitted", "num_requests": 20, "priority_share": 0.5},
    {"name": "azure_code_fitted", "num_requests": 10, "long_share": 0.5},
]


def in_turn(**params):
    return WorkloadSource(WorkloadSpec(name="sequence", params={"parts": IN_TURN, **params}))


def test_parts_of_a_sequence_follow_one_another():
    source = in_turn()
    orders = set()
    for seed in range(60):
        episode = source.sample(seed).validate()
        assert len(episode) == 60
        names = episode.name.split("+")
        orders.add(tuple(names))
        lengths = {part["name"]: part["num_requests"] for part in IN_TURN}
        first = 0
        for name in names:  # each begins where the one before has ended, with as many requests as it asks for
            rows = episode.rows(first, first + lengths[name])
            assert first == 0 or rows.arrival_s[0] >= episode.arrival_s[first - 1]
            assert ("long" in np.array(episode.classes)[rows.class_id]) == (name == "azure_code_fitted")
            first += lengths[name]
        assert source.sample(seed).equals(episode)
    assert len(orders) == 6
    assert not source.sample(0, "train").equals(source.sample(0, "test"))


def test_where_some_parts_of_a_sequence_have_priorities_other_requests_are_normal():
    source = in_turn()
    assert source.classes == ("priority", "normal", "long")
    episode = source.sample(0)
    assert episode.classes == source.classes
    urgent = episode.class_id == 0
    assert 0 < urgent.sum() < 20
    assert (episode.priority == np.where(urgent, 0, 1)).all()
    plain = WorkloadSource(WorkloadSpec(name="sequence", params={"parts": [IN_TURN[0], IN_TURN[2]]}))
    assert plain.classes == ("standard", "long")
    assert (plain.sample(0).priority == 0).all()


def test_a_sequence_may_have_some_of_its_parts_an_episode():
    names = {in_turn(length=1).sample(seed).name for seed in range(20)}
    assert names == {part["name"] for part in IN_TURN}
    assert {len(in_turn(length=2).sample(seed).name.split("+")) for seed in range(5)} == {2}
    for length in (0, 4, 1.5, "two"):
        with pytest.raises(ValueError, match="length must be between 1 and 3"):
            in_turn(length=length)


def test_parts_of_a_sequence_may_come_at_other_rates_in_each_episode():
    spread = 4.0
    plain, spread_out = in_turn(length=1), in_turn(length=1, rate_spread=spread)
    counts: dict[str, list[int]] = {}
    for seed in range(90):
        episode = spread_out.sample(seed).validate()
        assert spread_out.sample(seed).equals(episode)
        counts.setdefault(episode.name, []).append(len(episode))
    for part in IN_TURN:
        factors = np.array(counts[part["name"]]) / part["num_requests"]
        assert factors.min() >= 0.9 / spread  # a few requests are counted in whole ones
        assert factors.max() <= 1.1 * spread
        assert factors.min() < 0.6
        assert factors.max() > 1.6
    seconds = [[source.sample(seed).duration_s for seed in range(300)] for source in (plain, spread_out)]
    assert np.median(seconds[1]) == pytest.approx(np.median(seconds[0]), rel=0.2)  # they last as long
    for nothing in (1, None):
        assert in_turn(rate_spread=nothing).sample(0).equals(in_turn().sample(0))
    for spread in (0.5, "two", math.inf, True):
        with pytest.raises(ValueError, match="rate_spread must be a number of at least 1"):
            in_turn(rate_spread=spread)


def test_rate_of_a_sequence_is_over_the_time_that_its_parts_take():
    parts = [
        {"name": "azure_conv_fitted", "num_requests": 100, "rate_rps": 10.0},
        {"name": "azure_conv_fitted", "num_requests": 100, "rate_rps": 40.0},
    ]
    spec = WorkloadSpec(name="sequence", params={"parts": parts})
    assert WorkloadSource(spec).rate_rps == pytest.approx(200 / 12.5)
    assert WorkloadSource(for_larger(spec, 2.0)).rate_rps == pytest.approx(2 * 200 / 12.5)
    twice = WorkloadSource(replace(spec, rate_scale=2.0))
    assert twice.rate_rps == pytest.approx(2 * 200 / 12.5)
    assert twice.sample(0).duration_s == pytest.approx(WorkloadSource(spec).sample(0).duration_s / 2)
    assert WorkloadSource(for_larger(twice.spec, 2.0)).rate_rps == pytest.approx(4 * 200 / 12.5)
    for name, value in (("rate_rps", 3.0), ("num_clients", 2), ("priority_share", 0.2), ("long_share", 0.1)):
        with pytest.raises(ValueError, match=f"have a {name} each"):
            WorkloadSource(replace(spec, **{name: value}))


def test_classes_numbered_anew_keep_their_names():
    workload = make_workload(WorkloadSpec(name="flying_priority", num_requests=50), 0)
    anew = workload.with_classes(("long", "normal", "priority"))
    assert [anew.classes[i] for i in anew.class_id] == [workload.classes[i] for i in workload.class_id]
    assert workload.with_classes(workload.classes) is workload
    with pytest.raises(ValueError, match="normal"):
        workload.with_classes(("priority", "long"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "needs params.parts"),
        (["azure_conv"], "must be a mapping"),
        ([{"nmae": "azure_conv"}], "name"),
        ([{"name": "mixture"}], "cannot be a mixture"),
        ([{"name": "sequence"}], "cannot be a sequence"),
    ],
)
@pytest.mark.parametrize("name", ["mixture", "sequence"])
def test_what_has_parts_refuses_what_it_cannot_draw_from(name, parts, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSource(WorkloadSpec(name=name, params={"parts": parts}))
