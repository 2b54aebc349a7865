"""Our routers on the script of a run of vllm-router, in the states that its choices led to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.routing.state import RoutingState
from tests.baselines.routers.states import arriving, routing_spec, routing_state, sent
from tests.baselines.routers.vllm_router.scripts import PRUNE_INTERVAL_S, Script


def our_choices(script: Script, chosen: list[int], seed: int = 0) -> list[int]:
    """What our policy would have chosen for each request.

    Args:
        script: What happened.
        chosen: What vllm-router chose; requests run where it sent them.
        seed: Of our policy.
    """
    policy = make_policy(script.policy, **script.options)
    policy.reset(routing_spec(script.num_workers), seed)
    return [policy.act(None, state) for state in states(script, chosen)]


def states(script: Script, chosen: list[int]) -> Iterator[RoutingState]:
    """What a router knows at each request of a script; arguments as above."""
    running: list[int] = []
    number, now_s = 0, 0.0
    for step in script.steps:
        if step[0] == "prune":
            now_s += PRUNE_INTERVAL_S
        elif step[0] == "finish":
            running.remove(step[1])
        else:
            _, prompt, held = step
            request = arriving(hash_ids=prompt, input_tokens=len(prompt), hash_block_tokens=1, index=number)
            flights = [sent(chosen[other]) for other in running]
            yield routing_state(script.num_workers, in_flight=flights, request=request, now_s=now_s)
            if held:
                running.append(number)
            number += 1


def loads(script: Script, chosen: list[int]) -> list[np.ndarray]:
    """Requests in flight on each worker at each request of a script; arguments as above."""
    return [
        np.bincount(state.in_flight["place"], minlength=script.num_workers)
        for state in states(script, chosen)
    ]
