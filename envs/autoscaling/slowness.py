"""How much slower engines are than their profile says, from what may be read of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Endpoint

FloatArray = NDArray[np.float64]

_COLUMN = {name: number for number, name in enumerate(TRAFFIC_DTYPE.names or ())}
_LEAST = 1e-9  # instances


def first_places(engines: NominalEngines, endpoints: tuple[Endpoint, ...]) -> NDArray[np.int64]:
    """(P,) the first place of each endpoint.

    Args:
        engines: What is known of the places of the fleet.
        endpoints: Models and regions.
    """
    served = list(zip(engines.models, engines.regions, strict=True))
    return np.array([served.index((endpoint.model, endpoint.region)) for endpoint in endpoints], np.int64)


def slowness_of(
    traffic: FloatArray, bin_s: float, engines: NominalEngines, places: NDArray[np.int64]
) -> FloatArray:
    """(P,) times as long as by their profile that engines have taken; 1 where no answer has ended.

    By its profile an iteration of as many requests as were inside takes d seconds, and a share r of the time goes to
    prompts. Engines that take f times as long for everything leave 1 - f r to answers, hence TPOT (1 - f r) = f d and
    f = TPOT / (d + r TPOT). Requests that wait count as inside, up to as many as an engine runs and its memory holds.

    Args:
        traffic: (P, T, columns of TRAFFIC_DTYPE) bins, of which those count in which an instance served.
        bin_s: Their length, seconds.
        engines: The profile.
        places: (P,) a place of each endpoint, whose profile stands for all of them.
    """
    served = traffic[:, :, _COLUMN["mean_instances"]] > 0.0
    sums = np.where(served[:, :, None], traffic, 0.0).sum(axis=1)

    def total(*names: str) -> FloatArray:
        return np.asarray(sum(sums[:, _COLUMN[name]] for name in names), np.float64)

    instances, finished = np.maximum(total("mean_instances"), _LEAST), total("finished")
    prompts = total("input_tokens", "niw_input_tokens")
    requests = np.maximum(total("requests", "niw_requests"), 1.0)
    context = prompts / requests + total("output_tokens") / np.maximum(finished, 1.0) / 2.0
    most = np.minimum(
        engines.max_num_seqs[places], engines.kv_capacity_tokens[places] / np.maximum(context, 1.0)
    )
    batch = np.clip(total("mean_concurrency") / instances, 1.0, np.maximum(most, 1.0))
    below = batch.astype(np.int64)
    above = np.minimum(below + 1, engines.decode_s.shape[1] - 1)
    share = batch - below
    decode_s = (1.0 - share) * engines.decode_s[places, below] + share * engines.decode_s[places, above]
    iteration_s = decode_s + engines.kv_s_per_token[places] * batch * context
    of_prompts = prompts / (instances * bin_s) * engines.prefill_s_per_token[places]
    tpot_s = total("tpot_sum_s") / np.maximum(finished, 1.0)
    found: FloatArray = tpot_s / (iteration_s + of_prompts * tpot_s)
    return np.where(finished > 0.0, found, 1.0)
