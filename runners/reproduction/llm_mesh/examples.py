"""Worked numbers of sections 3.1, 5 and 6: what follows from an equation, a calibration or the roofline alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from serving_gym.baselines.llm_mesh.headroom import headroom_s
from serving_gym.baselines.llm_mesh.node_view import quantify_setting
from serving_gym.calibration.transitions import kv_resize_s
from serving_gym.envs.interface.sharing import SharingSetting
from serving_gym.envs.machines.shared_nodes import TESTBED, SharingSpec
from serving_gym.envs.simulator.sharing.build import build_setting
from serving_gym.runners.reproduction.claims import INPUT, WORKED_EXAMPLE, Claim, above, at_most, near, shown
from serving_gym.runners.reproduction.llm_mesh.study import ENGINE, ROOFLINE, SIZES, make_claim

_SHORTEST, _LONGEST = 128, 4096  # prompts whose TTFT figure 1 is read for, tokens
TTFT_S, TPOT_S = 2.0, 0.25
_MET = at_most(1.0, 0.0, least=0.0)
ALL_SIZES = {**SIZES, "22B": "codestral-22b"}  # of section 3.1


def claims() -> list[Claim]:
    """All of them."""
    return [*_headroom(), *_profiling(), *_resizing(), *_roofline()]


def _headroom() -> list[Claim]:
    after = headroom_s(np.array([0.0]), np.array([1.9]), TPOT_S, np.array([1]), 0.05)
    return [
        make_claim(
            "5.1, figure 5",
            "headroom after an iteration",
            2.1,
            float(after[0]),
            "s",
            near(2.1, 1e-9),
            kind=WORKED_EXAMPLE,
        )
    ]


def _profiling() -> list[Claim]:
    profile = quantify_setting(_setting(), max_batch=256)
    samples = profile.prefill_s[0].size + profile.decode_s[0].size
    return [
        make_claim(
            "5.2",
            "samples to quantify a model on a kind of node",
            None,
            float(samples),
            "samples",
            shown('the text says "only a few hundred"'),
        )
    ]


def _resizing() -> list[Claim]:
    stated = ((16, 0.3), (64, 1.9))
    return [
        make_claim(
            "6.2, figure 8",
            f"resizing a KV cache from 32 to {size} GB",
            paper_s,
            kv_resize_s(32e9, size * 1e9),
            "s",
            near(paper_s),
            note="The world's costs are laid through both figures.",
            kind=INPUT,
        )
        for size, paper_s in stated
    ]


@lru_cache(maxsize=1)
def _setting() -> SharingSetting:
    """CPU nodes alone."""
    return build_setting(
        SharingSpec(nodes=TESTBED[:1], engine=ENGINE),
        tuple(f"{size}#0" for size in ALL_SIZES.values()),
        211.0,
    )[0]


def _decode_s(size: str, batch: int, tokens: int) -> float:
    setting = _setting()
    return setting.iteration_s(
        setting.kinds.index("cpu"), setting.sizes.index(ALL_SIZES[size]), batch, tokens
    )


def _roofline() -> list[Claim]:
    """The facts of section 3.1 that its text gives."""
    setting = _setting()
    cpu = setting.kinds.index("cpu")
    rows = [
        make_claim(
            "3.1, figure 2",
            "7B on CPU, 1k tokens: TPOT of 16 requests over that of one",
            1.69,
            _decode_s("7B", 16, 1024) / _decode_s("7B", 1, 1024),
            "x",
            near(1.69),
            note=ROOFLINE,
            kind=INPUT,
        ),
        make_claim(
            "3.1, figure 3",
            "13B on CPU, 32 requests: TPOT at 2k tokens over that at 512",
            2.0,
            _decode_s("13B", 32, 2048) / _decode_s("13B", 32, 512),
            "x",
            near(2.0),
            note=ROOFLINE,
        ),
        make_claim(
            "3.1, figure 3",
            "13B on CPU, 32 requests at 2k tokens: TPOT over its SLO",
            None,
            _decode_s("13B", 32, 2048) / TPOT_S,
            "x",
            above(1.0),
            note=f'"The latter already violates the SLO." {ROOFLINE}',
        ),
    ]
    lengths = np.arange(_SHORTEST, _LONGEST + 1)
    for size, rule in (("7B", _MET), ("13B", _MET), ("22B", above(1.0))):
        ttft_s = setting.prefill_s[cpu, setting.sizes.index(ALL_SIZES[size])][lengths]
        rows.append(
            make_claim(
                "3.1, figure 1",
                f"{size} on CPU: prefill over the TTFT SLO, worst of {_SHORTEST} to {_LONGEST} tokens",
                None,
                float((ttft_s / np.maximum(TTFT_S, lengths / 512)).max()),
                "x",
                rule,
                note=f'"It surprisingly achieved the SLO on both the 7B and 13B models. However, it failed on the '
                f'larger 22B model as the input length increased." The roofline was laid between these. {ROOFLINE}',
                kind=INPUT,
            )
        )
    return rows
