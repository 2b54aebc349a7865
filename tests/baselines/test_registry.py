import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from serving_gym.baselines.common.autoscaler import Autoscaler
from serving_gym.baselines.common.deploying import DeployingPolicy
from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.registry import POLICIES, STATIC_PREFIX, is_admitter, make_policy, policy_tunables
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import all_layouts, changed_regions, format_layout, groups_of
from serving_gym.envs.interface.state import Transition

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "policy").glob("*.yaml"))
ROUTERS = [name for name in POLICIES if name != "static" and isinstance(make_policy(name), Router)]
CLAIRVOYANT = ["clairvoyant_deployment", "clairvoyant_scaling"]
AUTOSCALERS = [name for name in POLICIES if name != "static" and isinstance(make_policy(name), Autoscaler)]
DEPLOYING = [name for name in POLICIES if name != "static" and isinstance(make_policy(name), DeployingPolicy)]
SHARING = [name for name in POLICIES if name != "static" and isinstance(make_policy(name), SharingPolicy)]
BUILT_IN = [
    name
    for name in POLICIES
    if name != "static"
    and name not in (*ROUTERS, *DEPLOYING, *SHARING, *AUTOSCALERS)
    and not is_admitter(name)
]  # that decide about a node


def _params(name):
    return {"layout": "4x2"} if name == "static" else {}


def test_names():
    assert {"static_dp", "static_tp", "static", "random", "shift_parallelism", "load_threshold"} < set(
        POLICIES
    )


@pytest.mark.parametrize(
    "name", [*POLICIES, *(STATIC_PREFIX + format_layout(layout) for layout in all_layouts(8))]
)
def test_every_name_makes_a_policy_that_says_whether_it_is_clairvoyant(name):
    policy = make_policy(name, **_params(name))
    assert policy.clairvoyant == (name in CLAIRVOYANT)
    assert policy.name == (name if name != "static" else "static_4x2")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_makes_its_policy(path):
    config = yaml.safe_load(path.read_text())
    if "defaults" in config:  # a variation of another file
        config = {"name": config["defaults"][0], **config}
    assert config["name"] in POLICIES
    policy = make_policy(config["name"], **config["params"])
    assert policy.name.startswith(config["name"])


def test_the_configs_hold_every_constant_and_its_default():
    for name in (name for name, entry in POLICIES.items() if entry.config is not None):
        path = next(path for path in CONFIGS if path.stem == name)
        params = yaml.safe_load(path.read_text())["params"]
        defaults = make_policy(name).config
        assert params == yaml.safe_load(json.dumps(asdict(defaults)))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("static_dpp", {}, "did you mean 'static_dp'"),
        ("flyingserving", {}, "did you mean 'flying_serving'"),
        ("static_3x2", {}, "power of two"),
        ("static", {}, "needs the parameter layout"),
        ("random", {"switch_probabilty": 1.0}, "did you mean 'switch_probability'"),
        ("flying_serving", {"dwel_s": 1.0}, "did you mean 'dwell_s'"),
        (
            "preserve_scaling",
            {"predictor": {"windows": 1}},
            "unknown field 'predictor.windows'; did you mean 'predictor.window_s'",
        ),
        (
            "cron",
            {"windows": [{"instances": -1, "start_h": 0, "end_h": 1}]},
            "instances must not be negative",
        ),
        ("static_dp", {"layout": "8"}, "unknown parameter of policy static_dp"),
    ],
)
def test_mistakes_are_named(name, params, message):
    with pytest.raises(ValueError, match=message):
        make_policy(name, **params)


@pytest.mark.parametrize("name", list(POLICIES))
def test_tunables_are_constants_within_their_range(name):
    for constant, (low, high, log, values) in policy_tunables(name).items():
        default = getattr(make_policy(name).config, constant)
        assert default in values if values else low <= default <= high
        assert low > 0 or not log
        for value in values or (low, high):
            make_policy(name, **{constant: value})


def test_only_known_policies_have_tunables():
    assert policy_tunables("static_4x2") == {}
    assert {"split_requests_per_gpu", "hysteresis_ratio", "max_pause_s"} < set(
        policy_tunables("flying_serving")
    )
    with pytest.raises(ValueError, match="unknown policy"):
        policy_tunables("flying")


def _states(make_state, num_base):
    """Every layout at rest and, in pairs, in transition, under light and heavy load."""
    layouts = all_layouts(num_base)
    for i, layout in enumerate(layouts):
        target = layouts[-1 - i]
        regions = changed_regions(groups_of(layout), groups_of(target))
        moving = [
            Transition(r, tuple(g for g in groups_of(target) if r.contains(g)), SwitchMode.SOFT, 0.0, None)
            for r in regions[:1]
        ]
        becoming = tuple(
            g for g in groups_of(layout) if not (moving and moving[0].region.contains(g))
        ) + tuple(g for t in moving for g in t.target)
        totals = {
            0: {"arrived": 3 + i % 2, "finished": 3},
            2: {"arrived": 1.0 * (i % 3 == 0), "arrived_tokens": 3e5},
        }
        load = {group: {"num_running": 30 * (i % 2), "num_waiting": i % 5} for group in groups_of(layout)}
        yield make_state(layout, rows=load, totals=totals, now_s=10.0 * i)
        yield make_state(
            layout,
            target=tuple(group.length for group in sorted(becoming)),
            transitions=moving,
            rows=load,
            totals=totals,
            num_pooled=i,
            pooled_tokens=1000 * i,
            now_s=10.0 * i + 5.0,
        )


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_acts_on_every_layout_and_repeats_itself(name, spec, make_state):
    def commands():
        policy = make_policy(name)
        policy.reset(spec, 7)
        return [policy.act(None, state) for state in _states(make_state, 8)]

    first = commands()
    assert first == commands()
    for command, state in zip(first, _states(make_state, 8), strict=True):
        assert command is None or isinstance(command, (SetLayout, Redeploy))
        if name != "random" and isinstance(command, SetLayout):
            regions = changed_regions(groups_of(state.target_layout), groups_of(command.layout))
            busy = [transition.region for transition in state.transitions]
            assert not any(region.overlaps(other) for region in regions for other in busy)
            assert regions or command.mode == SwitchMode.HARD


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_refuse_a_node(name, spec):
    with pytest.raises(ValueError, match="a node without fixed engines"):
        make_policy(name).reset(spec, 0)


@pytest.mark.parametrize("name", SHARING)
def test_policies_of_shared_nodes_refuse_a_node(name, spec):
    with pytest.raises(ValueError, match="how models share nodes"):
        make_policy(name).reset(spec, 0)


@pytest.mark.parametrize("name", AUTOSCALERS)
def test_autoscalers_refuse_a_node(name, spec):
    with pytest.raises(ValueError, match="this policy decides how many instances there are"):
        make_policy(name).reset(spec, 0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_reset_forgets(name, spec, make_state):
    policy = make_policy(name)
    runs = []
    for _ in range(2):
        policy.reset(spec, 3)
        runs.append([policy.act(None, state) for state in _states(make_state, 8)])
    assert runs[0] == runs[1]
