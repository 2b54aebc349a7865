"""A profile from runs and a log, both of a small engine of known speed that is played here."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.calibration.coefficients import roofline_coefficients
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import read_profile
from serving_gym.runners import calibrate
from serving_gym.runners.measuring.composition import Step
from serving_gym.runners.measuring.drive import Sent
from serving_gym.runners.measuring.fit import errors_of, fit_coefficients
from serving_gym.runners.measuring.intervals import (
    DECODE_STEPS,
    LEAST_AFTER_UNKNOWN,
    Interval,
    Run,
    intervals_of,
    match_runs,
    split,
)
from serving_gym.runners.measuring.log import Iteration
from serving_gym.runners.measuring.traffic import LEAST_PROBES, PULL, fit_front_end

MODEL, GPU = get_model("llama-3.1-8b"), get_gpu("H100")
PRIOR = roofline_coefficients(GPU)
TRUE = replace(
    PRIOR, fixed_s=1.5e-3, sequence_s=1e-5, dense_bandwidth_ratio=0.6, kv_bandwidth_ratio=0.5, prefill_s=6e-4
)
LATENCY = LatencyModel(MODEL, GPU, 1, TRUE)
FRONT_END_S = 0.004
REQUEST_S = 2e-4  # of it for each request that decodes, where it schedules asynchronously
BUDGET = 2048  # tokens of an iteration


@dataclass
class Playing:
    arrival_s: float
    prompt: int
    output: int
    prefilled: int = 0
    generated: int = 0
    late_s: float = 0.0  # by which the client sees its tokens later
    first_token_s: float = math.nan
    finish_s: float = math.nan


def play(
    name: str,
    seed: int,
    number: int = 150,
    begin_s: float = 1e9,
    most: int = 256,
    asynchronous: bool = False,
) -> tuple[Run, list[Iteration], pd.DataFrame]:
    """Serves a run first come, first served; the client sees every token `FRONT_END_S` late."""
    rng = np.random.default_rng(seed)
    arrivals = begin_s + np.cumsum(rng.exponential(0.15, number))
    requests = [
        Playing(at, int(p), int(o))
        for at, p, o in zip(
            arrivals, rng.integers(20, 3000, number), rng.integers(1, 150, number), strict=True
        )
    ]
    now_s, log, began_s = begin_s, [], begin_s
    while any(request.generated < request.output for request in requests):
        waiting = [r for r in requests if r.arrival_s <= now_s and r.generated < r.output]
        known = [r for r in waiting if r.arrival_s <= began_s]
        here = (known if asynchronous and known else waiting)[:most]
        if not here:
            now_s = min(r.arrival_s for r in requests if r.arrival_s > now_s)
            continue
        decoding = [r for r in here if r.generated]
        left, chunks = BUDGET - len(decoding), []
        for request in here:
            length = min(request.prompt - request.prefilled, left)
            if length > 0:
                chunks.append((request.prefilled, length))
                request.prefilled += length
                left -= length
        context = sum(r.prompt + r.generated for r in decoding)
        took_s = LATENCY.iteration_s(len(decoding), context, chunks)
        began_s, now_s = now_s, now_s + took_s
        late_s = FRONT_END_S + asynchronous * REQUEST_S * len(decoding)
        for request in here:
            if request.prefilled == request.prompt:
                request.generated += 1
                if request.generated == 1:
                    request.first_token_s, request.late_s = now_s + late_s, late_s
                request.finish_s = now_s + request.late_s
        prompt_tokens = sum(length for _, length in chunks)
        log.append(Iteration(len(log), now_s, len(chunks), prompt_tokens, len(decoding), 0.9 * took_s))
    frame = pd.DataFrame(
        {
            "arrival_s": [r.arrival_s for r in requests],
            "input_tokens": [r.prompt for r in requests],
            "output_tokens": [r.output for r in requests],
            "generated_tokens": [r.generated for r in requests],
            "first_token_s": [r.first_token_s for r in requests],
            "finish_s": [r.finish_s for r in requests],
        }
    )
    run = Run(
        name,
        [Sent(r.prompt, r.output) for r in requests],
        [r.first_token_s - r.arrival_s for r in requests],
        [(r.finish_s - r.first_token_s) / (r.output - 1) if r.output > 1 else math.nan for r in requests],
    )
    return run, log, frame


@pytest.fixture(scope="module")
def played() -> tuple[list[Run], list[Iteration], list[pd.DataFrame]]:
    """Three runs; between the first two the engine served somebody else."""
    runs, log, frames = [], [], []
    for number, name in enumerate(("a", "somebody", "b", "c")):
        run, lines, frame = play(name, number, begin_s=1e9 + 1e4 * number)
        log += lines
        if name != "somebody":
            runs.append(run)
            frames.append(frame)
    return runs, log, frames


def test_runs_are_found_between_others_and_in_any_order(played) -> None:
    runs, log, _ = played
    unknown, _, _ = play("unknown", 99, 5)
    found, missing = match_runs(log, [runs[2], unknown, runs[0], runs[1]])
    assert [logged.run.name for logged in found] == ["c", "a", "b"]
    assert len(missing) == 1
    assert missing[0].startswith("unknown: iteration ")
    assert all(len(logged.story.prompts) == 150 for logged in found)


def test_the_same_run_twice_is_found_twice() -> None:
    run, lines, _ = play("a", 0, 20)
    found, missing = match_runs(
        [*lines, *lines], [run, replace(run, name="again"), replace(run, name="third")]
    )
    assert [logged.run.name for logged in found] == ["a", "again"]
    assert len(missing) == 1
    assert match_runs([], [run])[1] == ["a: no line of the log can be its first"]


def test_the_times_of_a_known_engine_are_found_again(played) -> None:
    runs, log, _ = played
    found, _ = match_runs(log, runs)
    fitted, kept_out = split([interval for logged in found for interval in intervals_of(logged.story.steps)])
    assert 0.15 < len(kept_out) / (len(fitted) + len(kept_out)) < 0.35
    latency = LatencyModel(MODEL, GPU, 1, fit_coefficients(MODEL, GPU, 1, PRIOR, PULL, fitted))
    errors, before = errors_of(latency, kept_out), errors_of(LatencyModel(MODEL, GPU, 1, PRIOR), kept_out)
    for kind in ("decode_stretch", "prefill_stretch"):
        assert errors[kind]["ape_p90"] < 0.01 < before[kind]["ape_median"]
    front_end = fit_front_end(latency, found, asynchronous=False)
    # At one load a constant and a share of an iteration are told apart poorly; what they make together is not.
    typical_s = float(np.nanmedian([each for run in runs for each in run.tpot_s]))
    together_s = front_end.fixed_s + front_end.pipeline_iterations * typical_s
    assert together_s == pytest.approx(FRONT_END_S, rel=0.15)


def test_what_asynchronous_scheduling_makes_wait_is_not_the_front_ends() -> None:
    run, log, _ = play("a", 5, 400, asynchronous=True)
    front_end = fit_front_end(LATENCY, match_runs(log, [run])[0], asynchronous=True)
    assert front_end.fixed_s == pytest.approx(FRONT_END_S, rel=0.2)
    assert front_end.request_s == pytest.approx(REQUEST_S, rel=0.3)
    assert front_end.pipeline_iterations == 0.0
    other = fit_front_end(LATENCY, match_runs(log, [run])[0], asynchronous=False)
    assert other.request_s == 0.0
    typical_s = float(np.nanmedian(run.tpot_s))
    assert other.fixed_s + other.pipeline_iterations * typical_s > FRONT_END_S + 0.9 * typical_s


def test_intervals_end_where_nothing_is_hidden() -> None:
    def step(prompt_tokens: int, seconds: float = 0.01) -> Step:
        return Step(2, 100, prompt_tokens, 0, seconds)

    decode, prompt, unknown = step(0), step(9), step(9, math.nan)
    assert [len(s.steps) for s in intervals_of([decode] * (DECODE_STEPS + 3))] == [DECODE_STEPS, 3]
    # The iterations before and after prompts go with them, also where other prompts follow at once.
    rows = [decode, decode, prompt, decode, prompt, decode, decode]
    assert [(s.kind, len(s.steps)) for s in intervals_of(rows)] == [
        ("decode_stretch", 1),
        ("prefill_stretch", 5),
        ("decode_stretch", 1),
    ]
    # What follows an iteration of unknown length begins at no certain moment.
    assert intervals_of([decode, unknown, decode, decode]) == [Interval((decode,)), Interval((decode,))]
    assert [s.kind for s in intervals_of([unknown, prompt, decode, decode])] == ["decode_stretch"]
    long = [unknown, *[prompt] * LEAST_AFTER_UNKNOWN, decode, decode]
    assert [len(s.steps) for s in intervals_of(long)] == [LEAST_AFTER_UNKNOWN + 1, 1]
    assert intervals_of([unknown]) == []


def test_too_few_requests_to_tell_the_front_end() -> None:
    run, log, _ = play("few", 1, LEAST_PROBES - 1)
    assert fit_front_end(LATENCY, match_runs(log, [run])[0], asynchronous=False) == Frontend()


def test_who_waits_for_room_says_nothing_of_the_front_end() -> None:
    run, log, _ = play("crowded", 3, 60, most=2)
    assert np.median(run.ttft_s) > 100 * FRONT_END_S
    assert fit_front_end(LATENCY, match_runs(log, [run])[0], asynchronous=False).fixed_s < 3 * FRONT_END_S


@pytest.fixture
def folders(played, tmp_path: Path) -> tuple[list[Path], Path]:
    """What `runners.simulate` would have written of the runs, and the log."""
    runs, log, frames = played
    folders = []
    for run, frame in zip(runs, frames, strict=True):
        folder = tmp_path / run.name
        folder.mkdir()
        shuffled = frame.sample(frac=1.0, random_state=0)  # records need not be in the order of arrival
        shuffled.to_parquet(folder / "requests.parquet", index=False)
        server = {"url": "http://127.0.0.1:1", "root": "meta/llama", "version": "0.32.0"}
        (folder / "summary.json").write_text(json.dumps({"servers": [server]}))
        folders.append(folder)
    lines = [
        f"{each.stamp_s:.6f} INFO Iteration({each.index}): {each.prompts} context requests, {each.prompt_tokens} "
        f"context tokens, {each.decoding} generation requests, {each.decoding} generation tokens, iteration elapsed "
        f"time: {1e3 * each.elapsed_s:.2f} ms"
        for each in log
    ]
    (tmp_path / "vllm.log").write_text("\n".join(["starting", *lines, ""]))
    return folders, tmp_path / "vllm.log"


def words(folders: list[Path], log: Path) -> list[str]:
    names = ",".join(map(str, folders))
    return [f"traffic=[{names}]", f"log={log}", "cluster=llama31_8b_h100_x8", f"out={log.parent / 'out'}"]


def test_the_command_writes_a_profile(folders, capsys: pytest.CaptureFixture[str]) -> None:
    (a, b, c), log = folders
    table = pd.read_parquet(c / "requests.parquet").assign(
        input_tokens=lambda frame: frame["input_tokens"] + 1
    )
    table.to_parquet(c / "requests.parquet", index=False)
    assert calibrate.main([*words([a, b, c], log), "engine=mine-1", "date=2026-01-31"]) == 0
    assert "not used: c: iteration " in capsys.readouterr().out
    profile = read_profile(log.parent / "out" / "llama-3.1-8b_h100_mine-1.yaml")
    assert (profile.model, profile.gpu, profile.source, profile.engine) == (MODEL, GPU, "measured", "mine-1")
    assert profile.provenance["runs"] == ["a", "b"]
    assert profile.provenance["requests"] == 300
    assert profile.provenance["engine"] == "vLLM 0.32.0"
    assert profile.provenance["pulled_towards"] == "llama-3.1-8b on H100, committed"
    assert profile.held_out["decode_stretch"]["ape_median"] < 0.01
    assert profile.latency_model(1).iteration_s(8, 8000) == pytest.approx(
        LATENCY.iteration_s(8, 8000), rel=0.02
    )
    assert json.loads((log.parent / "out" / "calibration.json").read_text())["provenance"]["runs"] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("said", "word", "asynchronous"),
    [
        ("", "", False),
        ("Asynchronous scheduling is enabled.", "", True),
        ("Asynchronous scheduling is enabled.", "cluster.async_scheduling=false", False),
        ("Asynchronous scheduling is disabled.", "", False),
        ("", "cluster.async_scheduling=true", True),
    ],
)
def test_a_profile_says_whether_the_server_scheduled_asynchronously(
    folders, said: str, word: str, asynchronous: bool
) -> None:
    (a, _, _), log = folders
    log.write_text(f"1.5 INFO {said}\n" + log.read_text())
    assert calibrate.main([*words([a], log), *([word] if word else [])]) == 0
    profile = read_profile(log.parent / "out" / "llama-3.1-8b_h100.yaml")
    assert profile.async_scheduling == asynchronous
    assert (profile.frontends[1].pipeline_iterations == 0.0) or not asynchronous


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("no_log", "log must name the file that the server's standard output goes to"),
        ("endpoints", "neither backend.launch nor backend.endpoints goes with it"),
        ("no_folder", "has no summary.json and requests.parquet"),
        ("no_server", "traffic must be runs on one real server"),
        ("other_server", "traffic must be of one server"),
        ("lost", "1 of 150 were not"),
        ("other_log", "tells of none of the runs"),
    ],
)
def test_mistakes(folders, spoil: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (a, b, _), log = folders
    line = words([a, b], log)
    if spoil == "no_log":
        line.remove(f"log={log}")
    elif spoil == "endpoints":
        line += ["backend=vllm", "backend.endpoints=[http://127.0.0.1:1]"]
    elif spoil == "no_folder":
        line[0] = f"traffic=[{log.parent / 'nowhere'}]"
    elif spoil == "no_server":
        (b / "summary.json").write_text("{}")
    elif spoil == "other_server":
        text = (b / "summary.json").read_text()
        (b / "summary.json").write_text(text.replace("0.32.0", "0.24.0"))
    elif spoil == "lost":
        frame = pd.read_parquet(a / "requests.parquet")
        frame.loc[3, "generated_tokens"] -= 1
        frame.to_parquet(a / "requests.parquet", index=False)
    elif spoil == "other_log":
        log.write_text("\n".join(log.read_text().splitlines()[:30]) + "\n")
    assert calibrate.main(line) == 2
    assert said in capsys.readouterr().err
