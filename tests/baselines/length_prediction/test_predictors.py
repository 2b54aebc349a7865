"""Predictors from text, on a tiny encoder: they learn, train what they should, and come back from disk."""

import json
import sys

import numpy as np
import pytest
import torch

from serving_gym.baselines.length_prediction.encoder import BERT, DISTILBERT, build_tokenizer, make_encoder
from serving_gym.baselines.length_prediction.evaluation import milliseconds_per_prediction, random_split
from serving_gym.baselines.length_prediction.registry import (
    PREDICTORS,
    load_predictor,
    make_predictor,
    predictor_config_class,
)
from serving_gym.baselines.length_prediction.tokens import encode, pad
from serving_gym.baselines.mu_serve.config import MuServePredictorConfig
from serving_gym.baselines.mu_serve.predictor import MuServeLengthPredictor
from serving_gym.baselines.preserve.length_predictor.config import PreServePredictorConfig
from serving_gym.baselines.preserve.length_predictor.predictor import PreServeLengthPredictor
from serving_gym.envs.workload.predictions import accuracy
from tests.baselines.length_prediction.corpus import LENGTHS, corpus

SMALL = {"learning_rate": 3e-3, "max_tokens": 48}
CONFIGS = {
    "preserve": PreServePredictorConfig(**SMALL, num_prompt_tokens=4, head_width=32, epochs=8),
    "mu_serve": MuServePredictorConfig(**SMALL, epochs=8, tuned_epochs=6),
}


@pytest.fixture(scope="module")
def data():
    """Training and test parts: (prompts, lengths) each."""
    prompts, lengths = corpus(500)
    train, test = random_split(500, 0.3, 0)
    return tuple(([prompts[row] for row in part], lengths[part]) for part in (train, test))


@pytest.fixture(scope="module", params=CONFIGS)
def fitted(request, data):
    """A trained predictor of each kind."""
    return make_predictor(CONFIGS[request.param]).fit(*data[0], seed=1)


def test_split_is_random_and_7_to_3():
    train, test = random_split(1000, 0.3, 0)
    assert (len(train), len(test)) == (700, 300)
    assert sorted([*train, *test]) == list(range(1000))
    assert (np.diff(test) > 0).all()
    assert 100 < (test < 500).sum() < 200
    assert random_split(1000, 0.3, 0)[1].tolist() == test.tolist() != random_split(1000, 0.3, 1)[1].tolist()
    assert [len(part) for part in random_split(2, 0.01, 0)] == [1, 1]
    with pytest.raises(ValueError, match="at least 2 conversations"):
        random_split(1, 0.3, 0)


def test_training_beats_every_constant(fitted, data):
    (_, train_lengths), (prompts, lengths) = data
    predicted = fitted.predict(prompts)
    assert predicted.dtype == np.int32
    found = accuracy(predicted, lengths)
    best = {  # of all constants, each at its best for the figure
        "mae": accuracy(np.full(len(lengths), np.median(train_lengths)), lengths)["mae"],
        "acc_100": max(
            accuracy(np.full(len(lengths), value), lengths)["acc_100"] for value in LENGTHS.values()
        ),
    }
    assert found["mae"] < 0.7 * best["mae"]
    assert found["acc_100"] > 1.2 * best["acc_100"]


def test_a_prediction_does_not_depend_on_its_company(fitted, data):
    prompts = data[1][0][:20]
    together = fitted.predict([*prompts, "word " * 3000])[:20]
    alone = [int(fitted.predict([prompt])[0]) for prompt in prompts]
    assert np.abs(together - alone).max() <= 1  # rounding of a float32 sum in another order
    assert len(set(alone)) > 1


def test_the_same_seed_gives_the_same_predictor_and_leaves_torch_as_it_was(fitted, data):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    again = make_predictor(fitted.config).fit(*data[0], seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(again.predict(data[1][0]), fitted.predict(data[1][0]))


def test_save_and_load(fitted, data, tmp_path):
    fitted.save(tmp_path / "run" / "checkpoint")
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint"):
        loaded = load_predictor(folder, device="cpu")
        assert np.array_equal(loaded.predict(data[1][0]), fitted.predict(data[1][0]))
        assert (loaded.notes, loaded.scale) == (fitted.notes, fitted.scale)
    assert loaded.notes["untrained_encoder"] is True
    assert milliseconds_per_prediction(loaded, data[1][0][:3]) > 0


def test_steps_are_heard(data):
    heard = []
    config = MuServePredictorConfig(**SMALL, epochs=2, batch_size=100)
    make_predictor(config).fit(*data[0], on_step=lambda *step: heard.append(step))
    assert [step[:2] for step in heard] == [
        (number, 8) for number in range(1, 9)
    ]  # 350 prompts: 4 batches a pass
    assert all(np.isfinite(loss) for *_, loss in heard)


class Recording:
    """Mixed into a predictor: the network before each pass."""

    def begin_epoch(self, epoch):
        super().begin_epoch(epoch)
        self.__dict__.setdefault("states", []).append(
            {name: value.clone() for name, value in self.network.state_dict().items()}
        )


class RecordingPreServe(Recording, PreServeLengthPredictor):
    pass


class RecordingMuServe(Recording, MuServeLengthPredictor):
    pass


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_preserve_trains_last_layer_head_and_prompts_and_nothing_else(data):
    predictor = RecordingPreServe(
        PreServePredictorConfig(**SMALL, tiny_layers=3, epochs=2, num_prompt_tokens=5)
    )
    predictor.fit(*data[0])
    state = predictor.network.state_dict()
    moved = changed(predictor.states[0], state)
    learnable = {
        name for name in state if name.startswith(("encoder.transformer.layer.2.", "head.", "prompts"))
    }
    # The bias of a key shifts all scores of a query alike, so that softmax, and with it the loss, ignores it.
    assert learnable - moved <= {"encoder.transformer.layer.2.attention.k_lin.bias"}
    assert moved <= learnable
    assert {"prompts", "head.0.weight", "head.2.bias"} <= moved
    assert state["prompts"].shape == (5, 32)
    words = predictor.states[0]["encoder.embeddings.word_embeddings.weight"]
    assert all((words == prompt).all(dim=1).any() for prompt in predictor.states[0]["prompts"])


def test_mu_serve_freezes_bert_when_its_passes_are_over(data):
    predictor = RecordingMuServe(MuServePredictorConfig(**SMALL, epochs=3, tuned_epochs=2))
    predictor.fit(*data[0])
    before, _, frozen = predictor.states
    tuned = changed(before, frozen)
    assert {
        "encoder.embeddings.word_embeddings.weight",
        "encoder.encoder.layer.0.output.dense.weight",
    } <= tuned
    last = changed(frozen, predictor.network.state_dict())
    assert last == {name for name in before if name.startswith("head.")}


def test_mu_serve_predicts_medians_and_weighs_rare_buckets_more(data):
    predictor = make_predictor(CONFIGS["mu_serve"]).fit(*data[0])
    assert set(predictor.predict(data[1][0])) <= {round(median) for median in predictor.buckets.medians}
    # Two buckets of 3 and 1 training samples, and logits that favour neither but for the first row, worth ln 4 - ln 3.
    predictor.scale = {"edges": [10.0], "medians": [5.0, 20.0], "counts": [3, 1]}
    logits = torch.tensor([[np.log(3.0), 0.0], [0.0, 0.0]])
    expected = (np.log(4 / 3) / 3 + np.log(2)) / (1 / 3 + 1)
    assert float(predictor.loss(logits, torch.tensor([4.0, 10.0]))) == pytest.approx(expected, rel=1e-6)
    assert predictor.lengths_of(logits).tolist() == [5.0, 5.0]


def test_preserve_loss_is_the_absolute_error():
    predictor = make_predictor(CONFIGS["preserve"])
    predictor.scale = predictor.learn_scale(np.array([100.0, 300.0]))
    output = torch.tensor([1.0, 2.0])
    assert predictor.lengths_of(output).tolist() == [200.0, 400.0]
    assert float(predictor.loss(output, torch.tensor([250.0, 100.0]))) == pytest.approx((50 + 300) / 2 / 200)


def test_prompt_tokens_follow_the_text_and_come_before_the_padding(data):
    predictor = make_predictor(CONFIGS["preserve"]).fit(data[0][0][:40], data[0][1][:40])
    network = predictor.network.eval()
    ids, mask = pad([[2, 30, 31, 3]], 0)
    wide, wide_mask = pad([[2, 30, 31, 3], [2, *range(10, 30), 3]], 0)
    with torch.inference_mode():
        alone = network(ids, mask)
        assert torch.allclose(network(wide, wide_mask)[0], alone[0], atol=1e-6)
        embedded = network.encoder.embeddings.word_embeddings(ids)
        joined = torch.cat([embedded, network.prompts[None]], dim=1)
        hidden = network.encoder(
            inputs_embeds=joined, attention_mask=torch.ones(1, joined.shape[1])
        ).last_hidden_state
        assert torch.allclose(network.head(hidden[:, 0])[:, 0], alone, atol=1e-6)


@pytest.fixture(scope="module")
def tokenizer():
    return make_encoder(DISTILBERT, CONFIGS["preserve"], corpus(50)[0])[1]


def test_the_tokenizer_built_on_the_spot(tokenizer):
    built = build_tokenizer(["Yes, yes no", "NO yes xy"], 100)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # Letters by the words they occur in (e, s and y three times and more), ties by alphabet; then words alike.
    letters = ["y", "e", "s", "n", "o", ",", "x"]
    expected = [*special, *letters, *("##" + letter for letter in letters), "yes", "no", "xy"]
    assert sorted(built.get_vocab(), key=built.get_vocab().get) == expected
    assert built.tokenize("YES nox ?") == ["yes", "no", "##x", "[UNK]"]
    assert len(build_tokenizer([chr(0x4E00 + number) for number in range(900)] + ["word"], 100)) == 100
    texts = corpus(50)[0]
    assert build_tokenizer(texts, 2000).get_vocab() == tokenizer.get_vocab()


def test_long_texts_keep_their_head_or_their_tail(tokenizer):
    text = " ".join(["yes"] * 3 + ["list"] * 3 + ["story"] * 3)
    words = {
        word: tokenizer.convert_tokens_to_ids(word) for word in ("yes", "list", "story", "[CLS]", "[SEP]")
    }
    assert tokenizer.unk_token_id not in words.values()
    named = {ids: word for word, ids in words.items()}

    def encoded(max_tokens, keep):
        return [named[ids] for ids in encode(tokenizer, [text], max_tokens, keep)[0]]

    assert encoded(6, "head") == ["[CLS]", "yes", "yes", "yes", "list", "[SEP]"]
    assert encoded(6, "tail") == ["[CLS]", "list", "story", "story", "story", "[SEP]"]
    for keep in ("head", "tail"):
        assert len(encoded(11, keep)) == len(encoded(50, keep)) == 11
    assert encode(tokenizer, [""], 6, "head") == [[tokenizer.cls_token_id, tokenizer.sep_token_id]]
    ids, mask = pad([[1, 2, 3], [4]], 9)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("name", "family", "other"), [("preserve", DISTILBERT, BERT), ("mu_serve", BERT, DISTILBERT)]
)
def test_an_encoder_from_a_folder(name, family, other, data, tmp_path):
    config_class = predictor_config_class(name)
    for kind in (family, other):
        encoder, tokenizer = make_encoder(kind, CONFIGS[name], data[0][0])
        encoder.save_pretrained(tmp_path / kind)
        tokenizer.save_pretrained(tmp_path / kind)
    predictor = make_predictor(config_class(**SMALL, encoder=str(tmp_path / family), epochs=1))
    predictor.fit(data[0][0][:60], data[0][1][:60])
    assert predictor.notes["untrained_encoder"] is False
    if name == "preserve":
        original = make_encoder(family, predictor.config, ())[0].embeddings.word_embeddings.weight
        assert torch.equal(predictor.network.encoder.embeddings.word_embeddings.weight, original)
    wrong = make_predictor(config_class(**SMALL, encoder=str(tmp_path / other)))
    with pytest.raises(ValueError, match=f"it holds a model of type '{other}', not '{family}'"):
        wrong.fit(*data[0])


def test_an_encoder_that_does_not_fit_says_so(data, tmp_path):
    encoder, tokenizer = make_encoder(DISTILBERT, CONFIGS["preserve"], data[0][0])
    encoder.save_pretrained(tmp_path)
    predictor = make_predictor(PreServePredictorConfig(encoder=str(tmp_path)))
    with pytest.raises(ValueError, match=r"cannot be read: tokenizer .* it has none of tokenizer.json"):
        predictor.fit(*data[0])
    tokenizer.add_tokens([f"more{number}" for number in range(3)])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds a tokenizer of \d+ entries, its encoder knows \d+"):
        predictor.fit(*data[0])
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps({**settings, "max_position_embeddings": 64}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"it reads 64 tokens, fewer than predictor.max_tokens=512"):
        predictor.fit(*data[0])
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"predictor.encoder .* cannot be read"):
        predictor.fit(*data[0])


def test_bad_input_gives_one_sentence(tmp_path, monkeypatch):
    config = CONFIGS["preserve"]
    fresh = make_predictor(config)
    with pytest.raises(ValueError, match="predictor 'preserve' has not been fitted"):
        fresh.predict(["hello"])
    with pytest.raises(
        ValueError, match="fit needs at least one prompt and a length for each, got 2 prompts and 1"
    ):
        fresh.fit(["a", "b"], [1])
    with pytest.raises(ValueError, match="fit needs at least one prompt"):
        fresh.fit([], [])
    nowhere = PreServePredictorConfig(encoder=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"predictor.encoder must be a folder with a saved encoder"):
        make_predictor(nowhere).fit(["a"], [1])
    with pytest.raises(ValueError, match=r"predictor.encoder .* cannot be read"):
        make_predictor(PreServePredictorConfig(encoder=str(tmp_path))).fit(["a"], [1])
    with pytest.raises(ValueError, match="tiny_width must be even"):
        make_predictor(PreServePredictorConfig(tiny_width=5)).fit(["a"], [1])
    with pytest.raises(ValueError, match=r"table of synonyms .* does not exist"):
        make_predictor(PreServePredictorConfig(synonyms=str(tmp_path / "none"))).fit(["a"], [1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="PyTorch sees no CUDA device"):
        make_predictor(PreServePredictorConfig(device="cuda"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'serving-gym\[text\]'"):
        fresh.fit(["a"], [1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_prompt_tokens": 0}, "predictor.num_prompt_tokens must be at least 1, got 0"),
        ({"num_prompt_tokens": 510}, "predictor.num_prompt_tokens must be at most 509"),
        ({"fill_share": 1.5}, r"predictor.fill_share must lie in \[0, 1\], got 1.5"),
        ({"max_tokens": 513}, r"predictor.max_tokens must lie in \[8, 512\]"),
        ({"learning_rate": 0.0}, "predictor.learning_rate must be positive"),
        ({"epochs": 0}, "predictor.epochs must be at least 1"),
        ({"tiny_vocabulary": 10}, "predictor.tiny_vocabulary must be at least 100"),
        ({"device": "gpu"}, "unknown predictor.device 'gpu'"),
    ],
)
def test_bad_settings_give_one_sentence(words, message):
    with pytest.raises(ValueError, match=message):
        PreServePredictorConfig(**words)


def test_what_is_no_checkpoint_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"no length predictor in .*: predictor.json is missing"):
        load_predictor(tmp_path)
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "does not describe a length predictor"),
        (json.dumps({"config": {"name": "preserve"}, "format": 9}), "has format 9, this version reads 1"),
        (json.dumps({"config": {"name": "pia"}, "format": 1}), "unknown predictor 'pia'"),
        (
            json.dumps({"config": {"name": "preserve", "epoch": 1}, "format": 1}),
            "unknown predictor setting 'epoch'",
        ),
    ):
        (tmp_path / "predictor.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load_predictor(tmp_path)
    with pytest.raises(ValueError, match="unknown predictor 'oracle'"):
        predictor_config_class("oracle")
    assert set(PREDICTORS) == set(CONFIGS)
