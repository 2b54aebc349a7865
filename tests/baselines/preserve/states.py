"""Hand-made states of a router for PreServe and what it is compared with."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec, Underway
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

CAPACITY_TOKENS = 1000


def spec(
    num_places: int = 2,
    *,
    capacity_tokens: int | Sequence[int] = CAPACITY_TOKENS,
    classes: Sequence[str] = ("chat",),
    models: Sequence[str] | None = None,
    prefill_s_per_token: float = 1e-4,
    max_num_seqs: int = 256,
) -> PolicySpec:
    """A setting of equal engines with 16 tokens a block, save for their capacities and models."""
    fleet = FleetSpec((GroupSpec(ReplicaSpec("llama2-7b", "A100-80G"), num_places),))
    full = np.ones(num_places, np.int64)
    engines = NominalEngines(
        models=tuple(models or ("llama2-7b",) * num_places),
        regions=("local",) * num_places,
        gpus=("A100-80G",) * num_places,
        num_gpus=full,
        block_size=16 * full,
        kv_capacity_tokens=full * np.asarray(capacity_tokens),
        max_num_seqs=max_num_seqs * full,
        max_num_batched_tokens=8192 * full,
        prefill_s_per_token=prefill_s_per_token * full,
        decode_s=np.repeat(0.01 + 1e-4 * np.arange(max_num_seqs + 1)[None], num_places, axis=0),
        kv_s_per_token=1e-7 * full,
    )
    slos = (SLO(1.0, 0.05),) * len(classes)
    return PolicySpec(fleet, slos, tuple(classes), 0.1, engines, queue_capacity=100)


def row(place: int, input_tokens: int, predicted_tokens: int, generated_tokens: int = 0, **values) -> dict:
    """A request in flight; its first token came if it has generated any."""
    return {
        "place": place,
        "input_tokens": input_tokens,
        "predicted_tokens": predicted_tokens,
        "generated_tokens": generated_tokens,
        "first_token_s": 50.0 if generated_tokens else -1.0,
        "max_output_tokens": 4096,
        **values,
    }


def in_flight(rows: Sequence[Mapping]) -> np.ndarray:
    """Requests in flight, numbered in their order unless they say otherwise."""
    table = np.zeros(len(rows), IN_FLIGHT_DTYPE)
    for index, values in enumerate(rows):
        for name, value in {"index": index, **values}.items():
            table[index][name] = value
    return table


def request(num_places: int, input_tokens: int = 100, predicted_tokens: int = 50, **values) -> RoutedRequest:
    """A request that waits for its decision."""
    defaults = {
        "index": 1000,
        "arrival_s": 100.0,
        "input_tokens": input_tokens,
        "predicted_tokens": predicted_tokens,
        "max_output_tokens": 4096,
        "priority": 0,
        "class_id": 0,
        "deadline_s": 101.0,
        "region": "local",
        "network_s": np.zeros(num_places),
        "hash_ids": np.zeros(0, np.int32),
        "hash_block_tokens": 16,
        "cached_tokens": np.zeros(num_places, np.int64),
        "held_before": False,
    }
    return RoutedRequest(**{**defaults, **values})


def state(
    num_places: int = 2,
    rows: Sequence[Mapping] = (),
    *,
    asked: RoutedRequest | None = None,
    can_take: Sequence[bool] | None = None,
    gauges: Mapping[int, Mapping[str, float]] | None = None,
    now_s: float = 100.0,
    gauges_s: float | None = None,
    operations: Sequence[Underway] = (),
    num_held: int = 0,
    held_tokens: int = 0,
    num_classes: int = 1,
    capacity_tokens: int = CAPACITY_TOKENS,
) -> RoutingState:
    """A state in which every engine is active and idle, save for what `rows` and `gauges` say."""
    engines = np.zeros(num_places, ENGINE_STATE_DTYPE)
    engines["status"] = EngineStatus.ACTIVE
    engines["kv_capacity_tokens"] = capacity_tokens
    engines["kv_capacity_blocks"] = capacity_tokens // 16
    for place, values in (gauges or {}).items():
        for name, value in values.items():
            engines[place][name] = value
    return RoutingState(
        now_s=now_s,
        gauges_s=now_s if gauges_s is None else gauges_s,
        engines=engines,
        in_flight=in_flight(rows),
        request=request(num_places) if asked is None else asked,
        can_take=np.ones(num_places, np.bool_) if can_take is None else np.asarray(can_take, np.bool_),
        num_held=num_held,
        held_tokens=held_tokens,
        unsent_tokens=held_tokens + (request(num_places) if asked is None else asked).input_tokens,
        gpu_seconds=np.full(num_places, now_s),
        operations=tuple(operations),
        totals=np.zeros((num_classes, len(TOTALS))),
        arrived_predicted_tokens=0,
    )


def random_state(
    rng: np.random.Generator, num_rows: int, step: int, gauges: Mapping | None = None
) -> RoutingState:
    """A crowded state of four instances, some of which can take one of ten requests.

    Args:
        rng: Of the requests.
        num_rows: Requests in flight.
        step: Number of the decision, 50 ms after the one before.
        gauges: As in `state`.
    """
    draws = rng.integers((0, 1, 1, 0), (4, 900, 400, 300), (num_rows, 4)).tolist()
    sizes = int(rng.integers(1, 900)), int(rng.integers(1, 400))
    asked = request(4, *sizes, index=int(rng.integers(100, 110)))
    return state(
        4,
        [row(*draw) for draw in draws],
        asked=asked,
        can_take=rng.random(4) < 0.7,
        now_s=100 + 0.05 * step,
        gauges=gauges,
    )


def num_held(name: str, states: Iterable[RoutingState]) -> int:
    """How often a policy holds a request; checks that it decides alike twice, for places that can take it."""
    routers = [make_policy(name) for _ in range(2)]
    for router in routers:
        router.reset(spec(4, capacity_tokens=8000), 3)
    held = 0
    for busy in states:
        first, second = (router.act(None, busy) for router in routers)
        assert first == second
        assert first is None or busy.can_take[first]
        held += first is None
    return held
