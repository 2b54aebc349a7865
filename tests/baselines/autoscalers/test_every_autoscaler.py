"""What holds for every autoscaler, in whatever state."""

import numpy as np
import pytest

from serving_gym.baselines.chiron.autoscaler import ChironConfig, ChironPolicy
from serving_gym.baselines.common.autoscalers.cron import CronPolicy
from serving_gym.baselines.common.autoscalers.horizontal import HorizontalConfig, HorizontalPolicy
from serving_gym.baselines.common.autoscalers.panic_window import PanicWindowPolicy
from serving_gym.baselines.common.autoscalers.queue_proportional import QueueProportionalPolicy
from serving_gym.baselines.common.autoscalers.saturation import SaturationPolicy
from serving_gym.baselines.common.autoscalers.throughput_planner import (
    ThroughputPlannerConfig,
    ThroughputPlannerPolicy,
)
from serving_gym.baselines.llumnix.scaler import LlumnixScalingPolicy
from serving_gym.baselines.preserve.comparators import (
    ComparatorConfig,
    PreServeHybridPolicy,
    PreServeProactivePolicy,
    PreServeReactivePolicy,
)
from serving_gym.baselines.preserve.instance_scaler import PreServeScalingConfig, PreServeScalingPolicy
from serving_gym.baselines.preserve.mlstm import MlstmConfig
from serving_gym.baselines.preserve.pass_scaler import PassConfig, PassPolicy
from serving_gym.baselines.preserve.workload_predictor import WorkloadPredictorConfig
from serving_gym.baselines.sageserve.autoscaler import SageServePolicy
from serving_gym.baselines.sageserve.autoscaling_config import ReactiveConfig, SageServeScalingConfig
from serving_gym.baselines.sageserve.reactive import ReactivePolicy
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import Endpoint, Operation, Pool
from tests.baselines.autoscalers.states import endpoint, instances, spec, state, traffic
from tests.baselines.autoscalers.test_practitioners import engine
from tests.baselines.preserve.states import in_flight, row

ENDPOINTS = tuple(Endpoint(model, region) for region in ("east", "west") for model in ("bloom", "llama"))
QUICK = WorkloadPredictorConfig(mlstm=MlstmConfig(history=4, hidden=2, epochs=1))


def sageserve(strategy):
    return lambda: SageServePolicy(SageServeScalingConfig(strategy=strategy, forecaster="moving_mean"))


EVERY = {
    "LT-I": sageserve("LT-I"),
    "LT-U": sageserve("LT-U"),
    "LT-UA": sageserve("LT-UA"),
    "unified": ReactivePolicy,
    "siloed": lambda: ReactivePolicy(ReactiveConfig(siloed=True)),
    "chiron": lambda: ChironPolicy(
        ChironConfig(interactive_instances=2, mixed_instances=2, batch_instances=1)
    ),
    "preserve": lambda: PreServeScalingPolicy(PreServeScalingConfig(predictor=QUICK)),
    "reactive": lambda: PreServeReactivePolicy(ComparatorConfig(predictor=QUICK)),
    "proactive": lambda: PreServeProactivePolicy(ComparatorConfig(predictor=QUICK)),
    "hybrid": lambda: PreServeHybridPolicy(ComparatorConfig(predictor=QUICK)),
    "pass": lambda: PassPolicy(PassConfig(forecasters=("last_value", "moving_mean"))),
    "llumnix": LlumnixScalingPolicy,
    "hpa_waiting": HorizontalPolicy,
    "hpa_kv": lambda: HorizontalPolicy(HorizontalConfig(metric="kv")),
    "hpa_rate": lambda: HorizontalPolicy(HorizontalConfig(metric="rate")),
    "kpa": PanicWindowPolicy,
    "cron": CronPolicy,
    "saturation": SaturationPolicy,
    "dynamo": lambda: ThroughputPlannerPolicy(
        ThroughputPlannerConfig("moving_mean"), {"bloom": engine(), "llama": engine()}
    ),
    "queue": QueueProportionalPolicy,
}


def random_states(seed: int, count: int):
    """States in which nothing follows from the one before, a minute apart."""
    rng = np.random.default_rng(seed)
    for step in range(count):
        own, place, requests = [], 0, []
        for name in ENDPOINTS:
            rows = []
            for _ in range(rng.integers(0, 9)):
                rows.append(
                    {
                        "place": place,
                        "status": rng.choice(list(InstanceStatus), p=[0.15, 0.75, 0.1]),
                        "pool": rng.choice(list(Pool)),
                        "num_running": rng.integers(0, 20),
                        "num_waiting": rng.integers(0, 8),
                        "num_interactive": rng.integers(0, 3),
                        "kv_used_tokens": rng.integers(0, 1001),
                        "since_s": rng.uniform(0, 60 * step + 1),
                    }
                )
                requests += [row(place, int(rng.integers(1, 700)), 100, int(rng.integers(0, 90)))]
                place += 1
            bins = 30 + 10 * step
            past = {
                column: rng.uniform(0, high, bins)
                for column, high in {
                    "requests": 200,
                    "input_tokens": 2e4,
                    "output_tokens": 1e4,
                    "niw_input_tokens": 5e3,
                    "violations": 4,
                    "first_tokens": 200,
                    "ttft_sum_s": 60,
                    "finished": 200,
                    "tpot_sum_s": 9,
                    "mean_concurrency": 99,
                    "mean_instances": 6,
                }.items()
            }
            own.append(
                endpoint(
                    instances(rows),
                    endpoint=name,
                    spot=rng.integers(0, 3, 1),
                    num_held=int(rng.integers(0, 30)),
                    niw_queued=int(rng.integers(0, 9000)),
                    history=traffic(60.0, end_s=60.0 * step, **past),
                    recent=traffic(
                        2.0, end_s=60.0 * step, **{name: values[:30] for name, values in past.items()}
                    ),
                )
            )
        vacant = {region: rng.integers(0, 4, 1) for region in ("east", "west")}
        yield state(
            *own, now_s=60.0 * step, clock_s=60.0 * step, vacant=vacant, in_flight=in_flight(requests)
        )


@pytest.mark.parametrize("name", EVERY)
def test_what_is_said_can_be_done(name):
    policy = EVERY[name]()
    policy.reset(spec(ENDPOINTS, min_instances=1, max_instances=10), 0)
    assert not policy.clairvoyant
    said = 0
    for here in random_states(1, 12):
        changes = policy.act(None, here)
        said += len(changes)
        gone = [place for change in changes for place in change.places]
        assert len(gone) == len(set(gone))
        for own in here.endpoints:
            mine = [change for change in changes if change.endpoint == own.endpoint]
            there = set(own.present["place"].tolist())
            assert {place for change in mine for place in change.places} <= there
            reclaimed = sum(change.count for change in mine if change.operation is Operation.RECLAIM)
            given = sum(
                change.count
                for change in changes
                if change.donor == own.endpoint.model and change.endpoint.region == own.endpoint.region
            )
            assert reclaimed + given <= own.spot.sum()
            after = len(own.present) + sum(change.signed for change in mine)
            assert min(1, len(own.present)) <= after <= (20 if name == "siloed" else 10)
    assert said > 0


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_says_the_same_again(name):
    policy = EVERY[name]()
    answers = []
    for _ in range(2):
        policy.reset(spec(ENDPOINTS, min_instances=1, max_instances=10), 3)
        answers.append([policy.act(None, here) for here in random_states(2, 6)])
    assert answers[0] == answers[1]


CONFIGS = [type(policy.config) for policy in (make() for make in EVERY.values())]


@pytest.mark.parametrize("config", dict.fromkeys(CONFIGS), ids=lambda config: config.__name__)
def test_tunables_are_constants_within_their_range(config):
    defaults = vars(config())
    for constant, (low, high, log, values) in config.tunables().items():
        default = defaults[constant]
        assert default in values if values else low <= default <= high
        assert low > 0 or not log
