import math
from dataclasses import replace
from pathlib import Path

import pytest

from serving_gym.runners.measuring.composition import ContradictionError, Step, steps_of
from serving_gym.runners.measuring.drive import Sent
from serving_gym.runners.measuring.loads import Limits, Load, designed_loads, held_out
from serving_gym.runners.measuring.log import Iteration, IterationLog, check_log, parse_line

LINE = (
    "1795194734.486981 INFO Engine 000: Iteration({index}): {ctx} context requests, {ctx_tokens} context tokens, "
    "{gen} generation requests, {gen} generation tokens, iteration elapsed time: 2.78 ms{end}, "
    "CPU KV cache usage: 0.2%"
)


def line(index: int = 7, ctx: int = 1, ctx_tokens: int = 4, gen: int = 3, end: str = "") -> str:
    return LINE.format(index=index, ctx=ctx, ctx_tokens=ctx_tokens, gen=gen, end=end)


def test_a_line_of_vllm_0_32() -> None:
    assert parse_line(line()) == Iteration(7, 1795194734.486981, 1, 4, 3, pytest.approx(0.00278))
    assert parse_line(line(end=" (dummy)")) is None
    assert parse_line(line().replace("3 generation tokens", "6 generation tokens")).again == 3


def test_a_line_of_vllm_0_24() -> None:
    text = (
        "(EngineCore pid=898) 1795710474.541289 INFO Iteration(2): 0 context requests, 0 context tokens, "
        "1 generation requests, 1 generation tokens, iteration elapsed time: 1.76 ms"
    )
    assert parse_line(text) == Iteration(2, 1795710474.541289, 0, 0, 1, pytest.approx(0.00176))
    with pytest.raises(ValueError, match="several engines"):
        parse_line(text.replace("Iteration(", "Engine 001: Iteration("))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line().replace("context tokens", "ctx tokens"), "cannot read the iteration log"),
        (line().replace("1795194734.486981", "11-20"), "must begin with seconds since the epoch"),
        (line().replace("Engine 000", "Engine 001"), "several engines"),
    ],
)
def test_lines_that_say_something_else(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_line(text)


def test_servers_that_cannot_be_measured() -> None:
    logged = [Iteration(0, 1.0, 1, 6, 0, 0.009), Iteration(1, 1.1, 0, 0, 1, 0.009)]
    check_log(logged, Path("vllm.log"))
    with pytest.raises(ValueError, match=r"vllm\.log says nothing of iterations"):
        check_log([], Path("vllm.log"))
    with pytest.raises(ValueError, match=r"vllm\.log holds speculative tokens"):
        check_log([*logged, replace(logged[1], again=3)], Path("vllm.log"))


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("starting\n" + line(0) + "\n" + line(1)[:40])
    log = IterationLog(path)
    assert [iteration.index for iteration in log.new_iterations()] == [0]
    with path.open("a") as file:
        file.write(line(1)[40:] + "\nother words\n")
    assert [iteration.index for iteration in log.new_iterations()] == [1]
    assert log.new_iterations() == []


def iterations(*rows: tuple[float, int, int, int]) -> list[Iteration]:
    """(stamp, prompts, prompt tokens, decoding) each; the wait is most of a 10 ms iteration."""
    return [Iteration(n, stamp, p, tokens, d, 0.009) for n, (stamp, p, tokens, d) in enumerate(rows)]


def test_two_prompts_in_chunks_and_their_decoding() -> None:
    # A budget of 10 tokens: prompts of 6 and 12, answers of 3 and 2.
    log = iterations((1.00, 2, 10, 0), (1.01, 1, 8, 1), (1.02, 0, 0, 2))
    first, *others = steps_of([Sent(6, 3), Sent(12, 2)], log)
    assert (first.prompt_tokens, math.isnan(first.seconds)) == (10, True)
    assert others == [
        Step(1, 7, 8, 4 * 8 + 8 * 9 // 2, pytest.approx(0.01)),
        Step(2, 8 + 13, 0, 0, pytest.approx(0.01)),
    ]


def test_an_idle_engine_hides_the_length_of_an_iteration() -> None:
    log = iterations((1.0, 1, 6, 0), (1.5, 1, 6, 0), (1.51, 1, 6, 0))
    steps = steps_of([Sent(6, 1)] * 3, log)
    assert [step.seconds for step in steps] == [
        pytest.approx(math.nan, nan_ok=True),
        pytest.approx(math.nan, nan_ok=True),
        pytest.approx(0.01),
    ]


@pytest.mark.parametrize(
    "log",
    [
        iterations((1.0, 1, 6, 0), (1.01, 0, 0, 2)),  # somebody else decodes
        iterations((1.0, 1, 9, 0)),  # somebody else's prompt
        iterations((1.0, 1, 6, 0)),  # the end is missing
        iterations((1.0, 1, 6, 0), (1.01, 1, 3, 0)),  # a preemption
        [*iterations((1.0, 1, 6, 0)), Iteration(1, 1.01, 0, 0, 1, 0.009, 7)],  # what it computes anew
    ],
)
def test_contradictions(log: list[Iteration]) -> None:
    with pytest.raises(ContradictionError):
        steps_of([Sent(6, 3)], log)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(16, 512, 2048, 16352),
        Limits(256, 8192, 131072, 400_000),
        Limits(2, 64, 128, 512),
        Limits(1, 32, 64, 64),
    ],
)
def test_every_load_fits_the_engine(limits: Limits) -> None:
    loads = designed_loads(limits)
    assert len({load.name for load in loads}) == len(loads)
    for load in loads:
        assert 0 < load.decoding + load.injected <= limits.max_num_seqs or load.decoding < limits.max_num_seqs
        assert max(load.prompt + load.output, load.injected_prompt + 1) <= limits.max_model_len
        at_once = load.decoding * (load.prompt + load.output) + load.injected_prompt
        assert at_once <= limits.kv_tokens
    assert {bool(load.decoding) for load in loads} == {True, False}


def test_a_quarter_of_the_configurations_is_held_out() -> None:
    loads = designed_loads(Limits(16, 512, 2048, 16352))
    share = sum(held_out(number) for number in range(len(loads))) / len(loads)
    assert 0.2 < share < 0.3
    assert Load(4, 64, 10, 2, 100).name == "decode 4x64 + prefill 100"
    assert Load(4, 64, 10).name == "decode 4x64"
    assert Load(injected=2, injected_prompt=100).name == "prefill 100"


@pytest.mark.parametrize(
    ("said", "asynchronous"),
    [
        (["starting"], None),
        (["Asynchronous scheduling is enabled."], True),
        (
            ["Asynchronous scheduling is enabled.", "Asynchronous scheduling is disabled."],
            False,
        ),  # started anew
    ],
)
def test_a_log_says_whether_its_last_server_schedules_asynchronously(
    tmp_path: Path, said: list[str], asynchronous: bool | None
) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join([*said, line(0), ""]))
    assert IterationLog(path).schedules_async() is asynchronous
