"""PreServe, section 4.2: buckets of length filled up with perturbed copies."""

import re

import numpy as np
import pytest

from serving_gym.baselines.preserve.length_predictor.augmentation import augment, bucket_of
from serving_gym.baselines.preserve.length_predictor.synonyms import load_synonyms, perturbed

SYNONYMS = {word: (word.upper() + "X", word.upper() + "Y") for word in "abcdefghij"}
TEXT = " ".join("abcdefghij" * 4)  # 40 words, all with synonyms


def augmented(lengths, fill_share=0.25, num_buckets=4, synonyms=SYNONYMS, seed=0):
    prompts = [f"{TEXT} {number}" for number in range(len(lengths))]
    return prompts, augment(
        prompts,
        np.array(lengths, dtype=float),
        np.random.default_rng(seed),
        num_buckets=num_buckets,
        fill_share=fill_share,
        replaced_share=0.15,
        synonyms=synonyms,
    )


def test_buckets_divide_the_range_evenly():
    # From 10 to 50 tokens in 4: [10, 20), [20, 30), [30, 40), [40, 50].
    lengths = np.array([10.0, 19.9, 20.0, 29.0, 30.0, 40.0, 50.0])
    assert bucket_of(lengths, 4).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert bucket_of(np.array([7.0, 7.0]), 4).max() < 4


def test_worked_example():
    """Buckets of 14, 0, 3 and 4 samples: S = 14, mu S = 3.5, so only the third is filled, to 4."""
    lengths = [10] * 14 + [30, 31, 32] + [40, 45, 50, 50]
    prompts, (texts, targets) = augmented(lengths)
    assert texts[:21] == prompts
    assert targets[:21].tolist() == lengths
    assert len(texts) == len(targets) == 22
    assert np.bincount(bucket_of(targets, 4)).tolist() == [14, 0, 4, 4]
    source = int(texts[21].split()[-1])
    assert lengths[source] == targets[21] in (30, 31, 32)


def test_exactly_mu_times_the_largest_is_enough():
    _, (texts, targets) = augmented([10] * 16 + [30] * 4 + [50])
    assert np.bincount(bucket_of(targets, 4)).tolist() == [16, 0, 4, 4]
    assert len(texts) == 24
    _, (texts, _) = augmented([10] * 16 + [50], fill_share=0.0)
    assert len(texts) == 17


def test_a_share_of_one_makes_all_buckets_equal():
    lengths = np.random.default_rng(0).exponential(100, 400)
    _, (_, targets) = augmented(lengths, fill_share=1.0, num_buckets=10)
    counts = np.bincount(bucket_of(targets, 10))
    assert set(counts[counts > 0]) == {counts.max()}


def test_added_prompts_have_15_percent_of_their_words_replaced():
    lengths = [10] * 400 + [50]
    prompts, (texts, _) = augmented(lengths)
    assert len(texts) == 401 + 99
    for text in texts[401:]:
        pairs = list(zip(prompts[400].split(), text.split(), strict=True))
        changed = [(old, new) for old, new in pairs if old != new]
        assert len(changed) == 6  # of 41 words: 6.15
        assert all(new in SYNONYMS[old] for old, new in changed)
    assert len(set(texts[401:])) > 90
    assert augmented(lengths)[1][0] == texts
    assert augmented(lengths, seed=1)[1][0] != texts


def test_without_synonyms_copies_are_added():
    prompts, (texts, _) = augmented([10] * 8 + [50], synonyms={})
    assert texts[9:] == [prompts[8]]


def test_perturbation_leaves_everything_else_as_it_was():
    rng = np.random.default_rng(0)
    text = "Begin: the BIG,\tbig one —\n don't x-ray it!"
    synonyms = {"begin": ("set out",), "big": ("large",), "don't": ("never",), "x-ray": ("scan",)}
    assert perturbed(text, synonyms, 1.0, rng) == "Set out: the LARGE,\tlarge one —\n never scan it!"
    assert perturbed(text, synonyms, 0.0, rng) == text
    assert perturbed("", synonyms, 1.0, rng) == ""
    # A quarter of 8 words is 2, whichever of the five with synonyms.
    many = {perturbed(text, synonyms, 0.25, rng) for _ in range(200)}
    assert len(many) == 10
    # More words are wanted than have synonyms.
    assert perturbed("one two big", {"big": ("large",)}, 0.9, rng) == "one two large"


def test_every_synonym_is_drawn():
    rng = np.random.default_rng(0)
    drawn = {perturbed("big", {"big": ("large", "huge", "vast")}, 1.0, rng) for _ in range(100)}
    assert drawn == {"large", "huge", "vast"}


def test_table_of_synonyms(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text(
        "# a comment\n\nBig\tlarge, huge ,big,\nbegin\tset out\nbig\tvast,large\n", encoding="utf-8-sig"
    )
    assert load_synonyms(path) == {"big": ("large", "huge", "vast"), "begin": ("set out",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("big large", "line 1 must read WORD<TAB>SYNONYM,SYNONYM, it is 'big large'"),
        ("a\tb\nbig\t ,", "line 2 must read"),
        ("big\tBIG", "line 1 must read"),
        ("\tlarge", "line 1 must read"),
        ("# nothing\n", "holds no words"),
    ],
)
def test_a_bad_table_gives_one_sentence(tmp_path, text, message):
    path = tmp_path / "words.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        load_synonyms(path)


def test_a_missing_or_binary_table(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_synonyms(tmp_path / "none.tsv")
    (tmp_path / "b.tsv").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ValueError, match="is not a text file in UTF-8"):
        load_synonyms(tmp_path / "b.tsv")
