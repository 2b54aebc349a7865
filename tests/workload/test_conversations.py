"""Conversations in ShareGPT's form, and the workload that they make."""

import json

import numpy as np
import pytest

from serving_gym.envs.workload.conversations import (
    TokenCounter,
    answer_tokens,
    conversation_workload,
    holds_conversations,
    load_conversations,
)
from serving_gym.envs.workload.registry import WorkloadSpec, make_workload


def turn(speaker, text):
    return {"from": speaker, "value": text}


ENTRIES = [
    {
        "id": "plain",
        "conversations": [turn("human", "hi"), turn("gpt", "well, hello!"), turn("human", "again")],
    },
    {"id": "empty", "conversations": []},
    {"id": "model first", "conversations": [turn("gpt", "so"), turn("human", "what?"), turn("gpt", "that")]},
    {
        "id": "system",
        "conversations": [turn("system", "be brief"), turn("User", "a b"), turn("Assistant", "c")],
    },
    {"conversations": [turn("human", "one"), turn("human", "two"), turn("chatgpt", "three")]},
    {"id": "no answer", "conversations": [turn("human", "anyone?")]},
    {"id": "blank", "conversations": [turn("human", "x"), turn("gpt", "  "), turn("gpt", "y")]},
    {"id": "odd", "conversations": [None, {"value": "?"}, turn("human", None), turn("gpt", "z")]},
    {"id": "only model", "conversations": [turn("gpt", "z")]},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(ENTRIES), encoding="utf-8")
    return path


def test_first_exchange_of_each_conversation(file):
    found = load_conversations(file)
    assert found.ids == ("plain", "model first", "system", "4", "blank")
    assert found.prompts == ("hi", "what?", "a b", "one", "x")
    assert found.answers == ("well, hello!", "that", "c", "three", "y")
    assert found.left_out == {"no turn of the user": 3, "no answer": 1}
    assert (found.name, len(found)) == ("sharegpt", 5)
    assert load_conversations(file, limit=2).ids == ("plain", "model first")
    some = found.rows(np.array([3, 0]))
    assert (some.ids, some.prompts, some.answers) == (
        ("4", "plain"),
        ("one", "hi"),
        ("three", "well, hello!"),
    )


def test_words_and_punctuation_marks_are_counted(file):
    counter = TokenCounter()
    assert counter(["well, hello!", "", "don't a_b 3.5"]).tolist() == [4, 1, 7]
    assert answer_tokens(load_conversations(file), counter).tolist() == [4, 1, 1, 1, 1]
    assert counter([]).tolist() == []


def test_tokens_of_a_tokenizer_are_counted(file, tmp_path):
    from serving_gym.baselines.length_prediction.encoder import build_tokenizer

    build_tokenizer(["well hello that"] * 5, 100).save_pretrained(tmp_path / "llm")
    counter = TokenCounter(tmp_path / "llm")
    assert counter.description == "tokens of llm"
    assert counter(["well hello", "that"] * 600).tolist() == [2, 1] * 600  # no [CLS], no [SEP]
    with pytest.raises(ValueError, match="tokenizer must be a folder with a saved tokenizer"):
        TokenCounter(tmp_path / "none")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer .*bare' cannot be read"):
        TokenCounter(tmp_path / "bare")


def test_workload_of_conversations(tmp_path):
    lengths = [*range(1, 600), 5000]
    entries = [{"conversations": [turn("human", "a " * n), turn("gpt", "b " * n)]} for n in lengths]
    path = tmp_path / "many.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    found = load_conversations(path)
    workload = conversation_workload(found, TokenCounter(), np.arange(1, 601, dtype=np.int32))
    assert workload.input_tokens.tolist() == lengths
    assert workload.output_tokens.tolist() == [*range(1, 600), 4096]
    assert set(workload.max_output_tokens) == {4096}
    assert workload.predicted_tokens.tolist() == list(range(1, 601))
    assert workload.arrival_s[0] == 0.0
    figures = workload.summary()
    assert figures["rate_rps"] == pytest.approx(1.0, abs=0.1)
    assert figures["interarrival_cv"] == pytest.approx(1.0, abs=0.1)
    assert workload.equals(conversation_workload(found, TokenCounter(), workload.predicted_tokens))
    assert conversation_workload(found.rows(range(3)), TokenCounter()).predicted_tokens is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ('{"a": 1}', "must be a JSON list of conversations, not dict"),
        ("[]", "none of its 0 entries has a prompt and an answer"),
        ('[{"conversations": []}]', "none of its 1 entries"),
        ("[7]", "entry 0 has no list 'conversations'"),
        ('[{"conversations": []}, {"items": []}]', "entry 1 has no list 'conversations'"),
    ],
)
def test_malformed_files_give_one_sentence(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_conversations(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="do not exist"):
        load_conversations(tmp_path / "none.json")


def test_a_file_of_conversations_is_told_apart_and_shown_its_way(file, tmp_path):
    assert holds_conversations(file)
    file.write_bytes(b"\xef\xbb\xbf\n " + file.read_bytes())
    assert holds_conversations(file)
    fitted = tmp_path / "fitted.json"
    fitted.write_text("{}", encoding="utf-8")
    assert not holds_conversations(fitted)
    assert not holds_conversations(tmp_path / "none.json")
    assert not holds_conversations("")
    with pytest.raises(ValueError, match=r"python -m runners.traces convert path="):
        make_workload(WorkloadSpec(name="file", path=str(file)), 0)
