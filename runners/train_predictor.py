"""Trains a predictor of output lengths on conversations, and tests it.

    python -m runners.train_predictor data=sharegpt.json predictor.encoder=distilbert predictor.synonyms=synonyms.tsv
    python -m runners.train_predictor data=sharegpt.json predictor=mu_serve predictor.encoder=bert tokenizer=llama-2

`data` has ShareGPT's form (`envs.workload.conversations`); the prompt is the user's first turn, the target is the
length of the answer to it. `predictor.encoder` and `tokenizer` are folders saved by the `transformers` package; nothing
is downloaded. Without an encoder a tiny random one is used, to test the pipeline.

Writes `checkpoint/`, `metrics.json` (the metrics of PreServe's Table 2 on the test part, milliseconds per prediction),
`predictions.parquet` (the test part, one row per conversation) and `workload.parquet`: the test part as requests with a
column `predicted_tokens`, Poisson arrivals at 1 request/s. To simulate with these predictions:

    python -m runners.simulate workload=file workload.path=RUN/workload.parquet workload.rate_rps=8

Environments that observe predicted lengths read that column with `env.prediction.name=column`. For other
conversations: `python -m runners.traces convert path=other.json predictor=RUN out=FILE.parquet`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from serving_gym.agents.checkpoint import replacing
from serving_gym.baselines.length_prediction.config import PredictorConfig
from serving_gym.baselines.length_prediction.evaluation import milliseconds_per_prediction, random_split
from serving_gym.baselines.length_prediction.registry import make_predictor
from serving_gym.envs.workload.conversations import (
    Conversations,
    TokenCounter,
    answer_tokens,
    conversation_workload,
    load_conversations,
)
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.predictions import TABLE_2, accuracy
from serving_gym.runners.command_line.cli import command, use_one_thread
from serving_gym.runners.configuration.predictor_config import TrainPredictorConfig, register_predictors
from serving_gym.runners.reporting.output import write_json, write_parquet
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table

CHECKPOINT, METRICS, PREDICTIONS, WORKLOAD = (
    "checkpoint",
    "metrics.json",
    "predictions.parquet",
    "workload.parquet",
)

register_predictors()


@command("train_predictor", TrainPredictorConfig)
def main(config: TrainPredictorConfig, out: Path) -> None:
    """Runs the command."""
    predictor = make_predictor(config.predictor_config)
    counter = TokenCounter(config.tokenizer)
    conversations = load_conversations(config.data, config.limit)
    lengths = answer_tokens(conversations, counter)
    train, test = random_split(len(conversations), config.test_share, config.seed)
    for note in _notes(config.predictor_config, counter):
        print(f"note: {note}", file=sys.stderr)
    use_one_thread()
    with progress_bar(0, f"train {predictor.config.name}", "step") as bar:
        prompts = conversations.rows(train).prompts
        predictor.fit(prompts, lengths[train], config.seed, lambda *step: _show(bar, *step))
    tested = conversations.rows(test)
    predicted = predictor.predict(tested.prompts)
    with replacing(out / CHECKPOINT) as folder:
        predictor.save(folder)
    workload = conversation_workload(tested, counter, predicted)
    write_trace(workload, out / WORKLOAD)
    frame = pd.DataFrame(
        {
            "id": tested.ids,
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "predicted_tokens": predicted,
        }
    )
    write_parquet(out / PREDICTIONS, frame)
    found = accuracy(predicted, lengths[test])
    metrics = {
        "predictor": predictor.config.name,
        **found,
        "ms_per_prediction": milliseconds_per_prediction(predictor, tested.prompts),
        "constant": _constant(lengths, train, test),
        "published": _published(predictor.config.name),
        "data": _data(config, conversations, counter) | {"train": len(train), "test": len(test)},
        "fit": predictor.notes,
        "seed": config.seed,
    }
    write_json(out / METRICS, metrics)
    _print(metrics)
    print_results_in(out)


def _show(bar: tqdm[Any], step: int, steps: int, loss: float) -> None:
    bar.total = steps
    bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
    bar.update()


def _notes(config: PredictorConfig, counter: TokenCounter) -> list[str]:
    """Caveats of the results."""
    notes = []
    if config.encoder is None:
        notes.append(
            "without predictor.encoder a tiny random encoder is trained, which shows that the machinery runs: its "
            "figures say nothing about the predictor"
        )
    if getattr(config, "synonyms", "") is None:
        notes.append("without predictor.synonyms rare lengths are filled up with plain copies")
    return [*notes, f"lengths are counted in {counter.description}"]


def _constant(
    lengths: NDArray[np.int32], train: NDArray[np.int64], test: NDArray[np.int64]
) -> dict[str, float]:
    """Metrics of predicting the median training length for every conversation."""
    median = float(np.median(lengths[train]))
    return {"tokens": median, **accuracy(np.full(len(test), median), lengths[test])}


def _published(name: str) -> dict[str, float]:
    """The predictor's row of Table 2."""
    row = TABLE_2[name]
    return {"mae": row.mae, **dict(zip(("acc_25", "acc_50", "acc_100"), row.within, strict=True))}


def _data(
    config: TrainPredictorConfig, conversations: Conversations, counter: TokenCounter
) -> dict[str, Any]:
    return {
        "file": config.data,
        "conversations": len(conversations),
        "left_out": conversations.left_out,
        "lengths_in": counter.description,
    }


def _print(metrics: dict[str, Any]) -> None:
    figures = ("mae", "acc_25", "acc_50", "acc_100")
    constant, published = metrics["constant"], metrics["published"]
    rows = [
        (metrics["predictor"], *(metrics[figure] for figure in figures), metrics["ms_per_prediction"]),
        (f"always {constant['tokens']:g}", *(constant[figure] for figure in figures), None),
        ("published, on ShareGPT", *(published[figure] for figure in figures), None),
    ]
    data = metrics["data"]
    title = f"{data['test']} conversations of {Path(data['file']).name} not trained on; {data['train']} trained on"
    print_table(title, ("predictor", *figures, "ms"), rows)


if __name__ == "__main__":
    sys.exit(main(None))
