"""A small world in which one word of the prompt decides how long the answer is."""

import json

import numpy as np

WORDS = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeo"]
LENGTHS = {"yes": 10, "list": 120, "essay": 400, "story": 800}
SHARES = (0.4, 0.3, 0.2, 0.1)


def corpus(rows, seed=0):
    """Prompts and lengths, tokens: a keyword among filler, its length within 10 %."""
    rng = np.random.default_rng(seed)
    prompts, lengths = [], []
    for _ in range(rows):
        keyword = list(LENGTHS)[rng.choice(4, p=SHARES)]
        words = list(rng.choice(WORDS, rng.integers(4, 20)))
        words.insert(rng.integers(len(words) + 1), keyword)
        prompts.append(" ".join(words))
        lengths.append(round(LENGTHS[keyword] * rng.uniform(0.9, 1.1)))
    return prompts, np.array(lengths)


def write_sharegpt(path, rows, seed=0):
    """The same as a file in ShareGPT's form, with two entries that hold no exchange."""
    prompts, lengths = corpus(rows, seed)
    entries = [
        {
            "id": f"c{number}",
            "conversations": [
                {"from": "human", "value": prompt},
                {"from": "gpt", "value": "word " * length},
            ],
        }
        for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    entries.insert(3, {"id": "empty", "conversations": []})
    entries.insert(9, {"id": "half", "conversations": [{"from": "human", "value": "hello?"}]})
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path
