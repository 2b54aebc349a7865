"""Time per output token of one engine in steady state, from its latency model.

A fluid model: B sequences decode at mean context; each finished request is replaced by a prompt whose prefill rides
along with the others' decode steps. Per iteration `B / (output_tokens - 1)` prompts enter. Prefill chunks come whole,
so only a share `f = 1 - exp(-chunks per iteration)` of the iterations (Poisson) carries prefill, with proportionally
more tokens each.
"""

import math

from serving_gym.calibration.fitting.data import Run
from serving_gym.calibration.latency import LatencyModel

ROUNDS = 30
DAMPING = 0.5


def iteration_mean_s(model: LatencyModel, run: Run, sequences: float) -> tuple[float, float]:
    """Mean iteration and prefill time with a given number of decoding sequences.

    Args:
        model: Latency model of the engine.
        run: Lengths and token budget.
        sequences: Mean number of decoding sequences.

    Returns:
        (mean iteration, iterations that compute one prompt), s.
    """
    context = sequences * (run.cached_tokens + run.input_tokens + run.output_tokens / 2.0)
    prompts = sequences / max(run.output_tokens - 1.0, 1.0)
    chunks = max(1.0, run.input_tokens / max(run.max_num_batched_tokens - sequences, 1.0))
    share = 1.0 - math.exp(-prompts * chunks)
    pairs = run.input_tokens * (run.cached_tokens + (run.input_tokens + 1.0) / 2.0)
    kv = model.kv_s * context
    decoding_s = sequences * model.coefficients.sequence_s
    crowded = model.mixed_s(sequences + prompts * run.input_tokens / share) + decoding_s
    mean = (1.0 - share) * model.decode_s(sequences) + share * crowded + kv + prompts * pairs * model.pair_s
    own = (
        chunks * (model.mixed_s(sequences + run.input_tokens / chunks) + decoding_s + kv)
        + pairs * model.pair_s
    )
    return mean, own


def predict_s(model: LatencyModel, run: Run) -> tuple[float, float]:
    """Time per output token and time to first token in steady state.

    Args:
        model: Latency model of the engine.
        run: Load and lengths; its measured times are not looked at.

    Returns:
        (tpot, ttft), s; the latter without any client or API-server overhead.
    """
    sequences = run.concurrency or 1.0
    mean, own = iteration_mean_s(model, run, sequences)
    for _ in range(ROUNDS):
        decoding = (run.output_tokens - 1.0) * mean
        ttft = mean / 2.0 + own
        target = run.rate_rps * decoding if run.rate_rps else run.concurrency * decoding / (decoding + ttft)
        sequences += DAMPING * (max(target, 0.1) - sequences)
        mean, own = iteration_mean_s(model, run, sequences)
    return mean, mean / 2.0 + own
