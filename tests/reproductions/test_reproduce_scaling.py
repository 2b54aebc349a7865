"""The scaling halves of SageServe's and PreServe's evaluations: rules for the load, and how figures become claims."""

from types import SimpleNamespace

import numpy as np
import pytest

from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.preserve import scaling as preserve
from serving_gym.runners.reproduction.sageserve import peaks
from serving_gym.runners.reproduction.sageserve import scaling as sageserve
from serving_gym.runners.reproduction.sageserve.scaling_study import (
    CHIRON,
    FEWEST,
    LT_UA,
    MOST,
    REACTIVE,
    SILOED,
    Outcome,
    ScalingStudy,
    Setting,
    instance_hours,
    kv_blocks,
)


def records(arrival_s, e2e_s, tokens, class_id=None):
    """Requests whose first token comes half-way; infinite: it never ends."""
    arrival, latency = np.array(arrival_s, float), np.array(e2e_s, float)
    return SimpleNamespace(
        arrival_s=arrival,
        e2e_s=latency,
        ttft_s=latency / 2,
        output_tokens=np.array(tokens),
        class_id=np.zeros(len(arrival), int) if class_id is None else np.array(class_id),
    )


def config(**words):
    return ReproduceConfig(out="unused", paper="sageserve", **words)


def test_outcomes_look_at_interactive_requests():
    """Of 1, 2, ..., 20 s the 95th percentile is 19.05; the half of it is the TTFT; NIW of 1000 s does not count."""
    outcome = Outcome(
        1.0,
        0.0,
        records(range(21), [*range(1, 21), 1000.0], np.ones(21), [0] * 10 + [1] * 10 + [2]),
        0.0,
    )
    assert outcome.e2e_s == pytest.approx(19.05)
    assert outcome.ttft_s() == pytest.approx(19.05 / 2)
    assert outcome.ttft_s((4.0, 5.0)) == pytest.approx(2.5)


def test_heads_of_grouped_queries_are_all_kept():
    """Llama-2-70B has 64 heads and 8 of keys and values, Bloom as many of each."""
    from serving_gym.calibration.hardware import get_gpu
    from serving_gym.calibration.memory import num_blocks
    from serving_gym.calibration.models import get_model

    for model, factor in (("llama-2-70b", 8), ("bloom-176b", 1)):
        whole = num_blocks(get_model(model), get_gpu("H100"), 8, memory_utilization=0.9)
        assert kv_blocks(model, "H100") == whole // factor


def test_the_load_is_the_largest_that_the_paper_s_hours_cover():
    study, setting = ScalingStudy(config(), None), Setting(hours=3 * 91.5)
    peaks = study.hourly_peaks_tps(setting)
    load = study.requests_per_week(setting, 7000.0)
    assert instance_hours(load * 0.999 * peaks / 7000) <= 91.5 < instance_hours(load * 1.01 * peaks / 7000)
    assert study.requests_per_week(setting, 14_000.0) == pytest.approx(2 * load, rel=1e-6)
    light = study.requests_per_week(Setting(hours=3 * 24.0 * FEWEST), 7000.0)
    assert instance_hours(light * peaks / 7000) == 24 * FEWEST
    assert instance_hours(1e9 * peaks / 7000) == 24 * MOST


def test_errors_of_forecasts_at_the_peaks_of_hours():
    """Two hours of windows 4, 8, 6, 2 and 5, 5, 10, 1: the last values are 4 and 2, the oracle says 9."""
    before, came = np.full(60, 4.0), np.array([4.0, 8, 6, 2, 5, 5, 10, 1])
    last = peaks.peaks_of("last_value", before, came, np.zeros(8))
    assert last.forecast.tolist() == [4.0, 2.0]
    assert last.came.tolist() == [8.0, 10.0]
    assert (last.error, last.too_low) == (pytest.approx((0.5 + 0.8) / 2), 1.0)
    oracle = peaks.peaks_of("oracle", before, came, np.full(8, 9.0))
    assert (oracle.error, oracle.too_low) == (pytest.approx((0.125 + 0.1) / 2), 0.5)


def test_windows_are_those_of_the_requests_that_come():
    study, setting = ScalingStudy(config(requests=2000), None), Setting(span_h=(33.0, 2.5))
    study._capacity_tps["llama-2-70b", "H100", "splitwise", 1.0] = 50.0
    stream = study.stream(setting, 0, 7 * 86_400.0)
    before, came, expected = peaks.windows_of(stream)
    assert (len(before), len(came), len(expected)) == (672, 8, 8)
    rows = [stream.piece(number) for number in range(stream.num_pieces)]
    tokens = sum(
        int(piece.input_tokens[(piece.class_id < 2) & (piece.arrival_s < 7200.0)].sum()) for piece in rows
    )
    assert came.sum() == tokens > 0
    assert came.sum() == pytest.approx(expected.sum(), rel=0.2)
    claims = peaks.peak_forecasts(study, setting)
    assert len(claims) == 2 * len(peaks.FORECASTERS)
    assert all(np.isfinite(claim.ours) for claim in claims)
    assert peaks.peak_forecasts(study, Setting(span_h=(33.0, 0.5))) == []


def test_claims_say_what_was_saved(monkeypatch):
    """Half of the hours, a fifth of the start-up time."""
    monkeypatch.setattr(sageserve, "peak_forecasts", lambda study, setting: [])
    hours = {REACTIVE: (100.0, 1.0), LT_UA: (50.0, 0.2), CHIRON: (300.0, 1.0)}
    study = ScalingStudy(config(quick=True), None)
    for policy in sageserve.HOURS:
        instance_h, starting_h = hours.get(policy, (80.0, 0.5))
        study._known[policy, sageserve.PEAK_DAY] = Outcome(
            instance_h, starting_h, records([0.0, 0.0], [1.0, 1.0], [1, 1], [0, 1]), 0.1
        )
    found = {claim.claim: claim for claim in sageserve.peak_day(study)}
    saved = found["Llama-2, peak day, LT-UA: instance-hours saved against Reactive"]
    assert (saved.ours, saved.holds) == (pytest.approx(0.5), True)
    assert saved.paper_value == pytest.approx(1 - 277.5 / 362.25)
    waste = found["Llama-2, peak day: start-up time that LT-UA saves against Reactive"]
    assert (waste.ours, waste.holds) == (pytest.approx(0.8), True)
    assert found["Llama-2, peak day: Chiron's instance-hours over Reactive's"].ours == pytest.approx(3.0)
    assert found["Llama-2, peak day, LT-UA: P95 TTFT of IW-F over its SLA of 1 s"].holds
    assert len(found) == len(sageserve.HOURS) * 7 + 6 + 1 + 2 + 1


def test_siloed_requests_do_not_wait_in_the_queue_manager():
    assert not sageserve.pooled("bloom-176b", SILOED).hold
    assert sageserve.pooled("bloom-176b", REACTIVE).hold
    assert sageserve.pooled("llama-3.2-3b", REACTIVE).hours < sageserve.pooled("llama-2-70b", REACTIVE).hours


@pytest.mark.full
def test_a_short_day():
    lines: list[str] = []
    bar = SimpleNamespace(
        set_postfix_str=lambda text, refresh: None,
        update=lambda step: None,
        write=lambda line, file: lines.append(line),
    )
    study = ScalingStudy(config(quick=True, requests=2000), bar)
    setting = Setting(params=(("noise", 0.0),))
    outcomes = {policy: study.outcome(policy, setting) for policy in (REACTIVE, LT_UA, CHIRON)}
    counts = {len(outcome.records.arrival_s) for outcome in outcomes.values()}
    assert len(counts) == 1
    assert counts.pop() > 1000
    assert outcomes[CHIRON].instance_h > outcomes[REACTIVE].instance_h
    assert [line.split(":")[0] for line in lines] == [
        f"llama-2-70b, H100, {policy}, seed 0" for policy in outcomes
    ]
    assert all(f"{outcomes[LT_UA].instance_h:.1f} instance-hours" in line for line in lines[1:2])


def test_peaks_of_preserve_by_hand():
    """Means of 0.2 and 0.5 s a token in two of the first three 5 minutes; three of four requests above 0.2 s."""
    some = records([0.0, 10.0, 600.0, 650.0], [1.0, 3.0, 5.0, 5.0], [10, 10, 10, 10])
    assert preserve.peak_s(some) == pytest.approx(0.5)
    assert preserve.slow_share(some) == pytest.approx(0.75)
    assert preserve.peak_s(records([0.0], [np.inf], [10])) == np.inf


def test_claims_of_preserve_compare_peaks():
    study = preserve.Scalers(config(quick=True), None)
    for scaler in (*preserve.SCALERS, preserve.WITHOUT_ERRORS):
        peak, hours = {"PreServe": (0.2, 10.0), "Llumnix": (0.4, 12.0)}.get(scaler, (0.3, 20.0))
        study._known[scaler, "conv"] = preserve.Result(peak, hours, 0.0)
    found = {claim.claim: claim for claim in preserve.claims(study)}
    gain = found["peak normalised latency: gain of PreServe over Llumnix, the best of the others"]
    assert (gain.ours, gain.holds) == (pytest.approx(0.5), True)
    assert found["PreServe: instance-hours saved against eight instances"].ours == pytest.approx(0.5)
    assert found["Llumnix: instance-hours saved against eight instances"].holds is False
