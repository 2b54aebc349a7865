"""A predictor of output lengths from text: fitting, predicting, saving and loading."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from serving_gym.baselines.length_prediction.config import PredictorConfig, build_config
from serving_gym.baselines.length_prediction.encoder import encoder_from_settings, make_encoder
from serving_gym.baselines.length_prediction.tokens import encode, pad
from serving_gym.envs.workload.conversations import load_tokenizer
from serving_gym.envs.workload.predictions import LONGEST_TOKENS
from serving_gym.envs.workload.seeding import seed_sequence, stream

DESCRIPTION, WEIGHTS, TOKENIZER = "predictor.json", "weights.pt", "tokenizer"
FORMAT = 1
_PREDICTED_AT_ONCE = 64

Config = TypeVar("Config", bound=PredictorConfig)


class LengthPredictor(ABC, Generic[Config]):
    """Learns output lengths from prompts; a subclass is one paper's predictor.

    Args:
        config: its settings.

    Attributes:
        config: its settings.
        notes: what happened in fitting, for reports.
        scale: what was read off the training lengths.
    """

    config_class: ClassVar[type[PredictorConfig]]
    family: ClassVar[str]  # of the encoder
    keep: ClassVar[str]  # which end of a prompt is kept that is longer than the encoder reads

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = _device(config.device)
        self.notes: dict[str, Any] = {}
        self.scale: dict[str, Any] = {}
        self._network: nn.Module | None = None
        self._tokenizer: Any = None

    @abstractmethod
    def learn_scale(self, lengths: NDArray[np.float64]) -> dict[str, Any]:
        """What is read off the training lengths (N,), tokens, before training: plain values, saved with the weights."""

    @abstractmethod
    def make_network(self, encoder: nn.Module, scale: dict[str, Any]) -> nn.Module:
        """The network around an encoder: from ids and mask, each (B, T), to what `loss` and `lengths_of` read."""

    @abstractmethod
    def loss(self, output: Tensor, lengths: Tensor) -> Tensor:
        """Loss of a batch, a scalar; `lengths` are the true ones, (B,), tokens, float."""

    @abstractmethod
    def lengths_of(self, output: Tensor) -> Tensor:
        """Predicted lengths, (B,), tokens, from what the network gave."""

    def augmented(
        self, prompts: Sequence[str], lengths: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Training data after preparation; none by default."""
        return list(prompts), lengths

    def begin_epoch(self, epoch: int) -> None:
        """Called before every pass, counted from 0."""

    @property
    def network(self) -> nn.Module:
        """The trained network.

        Raises:
            ValueError: there is none yet.
        """
        if self._network is None:
            raise ValueError(f"predictor {self.config.name!r} has not been fitted")
        return self._network

    def fit(
        self,
        prompts: Sequence[str],
        lengths: ArrayLike,
        seed: int = 0,
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
    ) -> Self:
        """Trains on prompts and the lengths of their answers.

        Args:
            prompts: (N,).
            lengths: (N,), tokens, at least 1.
            seed: of everything random; the same seed on the same machine gives the same predictor.
            on_step: hears after every gradient step its number from 1, how many there will be, and its loss.

        Raises:
            ValueError: no prompts, or another number of lengths.
        """
        given = np.asarray(lengths, dtype=np.float64)
        if len(prompts) == 0 or given.shape != (len(prompts),):
            counts = f"got {len(prompts)} prompts and {given.size} lengths"
            raise ValueError(f"fit needs at least one prompt and a length for each, {counts}")
        texts, targets = self.augmented(prompts, given, stream(seed, self.config.name, "augmentation"))
        self.notes |= {"trained_on": len(texts), "untrained_encoder": self.config.encoder is None}
        with _seeded(seed, self.config.name, self.device):
            encoder, self._tokenizer = make_encoder(self.family, self.config, texts)
            self.scale = self.learn_scale(given)
            self._network = self.make_network(encoder, self.scale).to(self.device)
            rows = encode(self._tokenizer, texts, self.max_text_tokens, self.keep)
            self._train(
                rows,
                torch.tensor(targets, dtype=torch.float32),
                stream(seed, self.config.name, "batches"),
                on_step,
            )
        return self

    def predict(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Predicted output lengths, (N,), tokens, from 1 to 4096."""
        network = self.network.eval()
        rows = encode(self._tokenizer, prompts, self.max_text_tokens, self.keep)
        order = np.argsort([len(row) for row in rows], kind="stable")  # little padding in each batch
        predicted = np.empty(len(rows), dtype=np.float64)
        with torch.inference_mode():
            for first in range(0, len(rows), _PREDICTED_AT_ONCE):
                chosen = order[first : first + _PREDICTED_AT_ONCE]
                ids, mask = self._batch(rows, chosen)
                predicted[chosen] = self.lengths_of(network(ids, mask)).double().cpu().numpy()
        return np.clip(np.rint(predicted), 1, LONGEST_TOKENS).astype(np.int32)

    def save(self, folder: Path) -> None:
        """Writes settings, weights and tokenizer, all that `load` needs."""
        network = self.network
        folder.mkdir(parents=True, exist_ok=True)
        description = {
            "format": FORMAT,
            "config": asdict(self.config),
            "scale": self.scale,
            "encoder": network.encoder.config.to_dict(),  # type: ignore[union-attr, operator]
            "notes": self.notes,
        }
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        torch.save({name: value.cpu() for name, value in network.state_dict().items()}, folder / WEIGHTS)
        self._tokenizer.save_pretrained(str(folder / TOKENIZER))

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], device: str) -> Self:
        """Reads what `save` wrote.

        Args:
            folder: the checkpoint.
            description: what it says of itself.
            device: "cpu", "cuda" or "auto".
        """
        config = build_config(cls.config_class, {**description["config"], "device": device})
        predictor = cls(config)  # type: ignore[arg-type]
        predictor.scale, predictor.notes = description["scale"], description["notes"]
        with _seeded(0, config.name, predictor.device):
            encoder = encoder_from_settings(description["encoder"])
            network = predictor.make_network(encoder, predictor.scale)
        network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True, map_location="cpu"))
        predictor._network = network.to(predictor.device)
        predictor._tokenizer = load_tokenizer(folder / TOKENIZER)
        return predictor

    @property
    def max_text_tokens(self) -> int:
        """Tokens of a text that the encoder reads, [CLS] and [SEP] included."""
        return self.config.max_tokens

    def _train(
        self,
        rows: list[list[int]],
        targets: Tensor,
        rng: np.random.Generator,
        on_step: Callable[[int, int, float], None],
    ) -> None:
        """AdamW over shuffled batches, the learning rate falling linearly to 0."""
        config, network = self.config, self.network
        per_epoch = -(-len(rows) // config.batch_size)
        steps = config.epochs * per_epoch
        optimizer = torch.optim.AdamW(
            [p for p in network.parameters() if p.requires_grad], lr=config.learning_rate
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / steps)
        step = 0
        for epoch in range(config.epochs):
            network.train()
            self.begin_epoch(epoch)
            order = rng.permutation(len(rows))
            for first in range(0, len(rows), config.batch_size):
                chosen = order[first : first + config.batch_size]
                ids, mask = self._batch(rows, chosen)
                loss = self.loss(network(ids, mask), targets[chosen].to(self.device))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                step += 1
                on_step(step, steps, float(loss.detach()))

    def _batch(self, rows: Sequence[Sequence[int]], chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        ids, mask = pad([rows[row] for row in chosen], self._tokenizer.pad_token_id)
        return ids.to(self.device), mask.to(self.device)


def read_description(folder: Path) -> dict[str, Any]:
    """What a predictor's checkpoint says of itself.

    Raises:
        ValueError: the folder is not such a checkpoint, or one of another version.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise ValueError(f"no length predictor in {str(folder)!r}: {DESCRIPTION} is missing")
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise ValueError(f"{str(path)!r} does not describe a length predictor")
    if description.get("format") != FORMAT:
        raise ValueError(
            f"{str(path)!r} has format {description.get('format')!r}, this version reads {FORMAT}"
        )
    return description


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("predictor.device is 'cuda', but PyTorch sees no CUDA device")
    return torch.device(name)


@contextmanager
def _seeded(seed: int, name: str, device: torch.device) -> Iterator[None]:
    """PyTorch's generators, seeded inside and left as they were: initial weights and dropout draw from them alone."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(seed_sequence(seed, name, "weights").generate_state(1)[0]))
        yield
