"""Encoders of the BERT family with their tokenizers: from a folder, or tiny and random.

Nothing is ever downloaded: a folder is read with `local_files_only`, and the tiny encoder is built from its settings,
its vocabulary from the texts at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from serving_gym.baselines.length_prediction.config import PredictorConfig
from serving_gym.envs.workload.conversations import load_tokenizer

BERT, DISTILBERT = "bert", "distilbert"
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_POSITIONS = 512


def transformers() -> Any:
    """The package, imported when it is needed.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import transformers as package
    except ImportError as error:
        raise ValueError(
            "predicting lengths from text needs the package 'transformers': pip install 'serving-gym[text]'"
        ) from error
    return package


def make_encoder(family: str, config: PredictorConfig, texts: Sequence[str]) -> tuple[nn.Module, Any]:
    """Encoder and tokenizer that a predictor starts from.

    Args:
        family: "bert" or "distilbert"; what the folder must hold, where there is one.
        config: says which folder, or how large the tiny encoder is.
        texts: from which the tiny encoder's vocabulary is built.

    Raises:
        ValueError: the folder does not hold an encoder of that family with a tokenizer.
    """
    if config.encoder is None:
        tokenizer = build_tokenizer(texts, config.tiny_vocabulary)
        return tiny_encoder(family, config, len(tokenizer), tokenizer.pad_token_id), tokenizer
    return read_encoder(family, config.encoder, config.max_tokens)


def read_encoder(family: str, folder: str | Path, max_tokens: int) -> tuple[nn.Module, Any]:
    """A pretrained encoder and its tokenizer.

    Args:
        family: "bert" or "distilbert".
        folder: as `save_pretrained` of the `transformers` package writes it.
        max_tokens: what it must be able to read.

    Raises:
        ValueError: there is no such folder, or it holds something else.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"predictor.encoder must be a folder with a saved encoder, {str(folder)!r} is none")
    package = transformers()
    from safetensors import SafetensorError

    package.utils.logging.disable_progress_bar()  # it would run into the one of the command
    try:
        settings = package.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        if settings.model_type != family:
            raise ValueError(f"it holds a model of type {settings.model_type!r}, not {family!r}")
        if settings.max_position_embeddings < max_tokens:
            positions = settings.max_position_embeddings
            raise ValueError(f"it reads {positions} tokens, fewer than predictor.max_tokens={max_tokens}")
        tokenizer = load_tokenizer(folder)
        encoder = package.AutoModel.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"predictor.encoder {str(folder)!r} cannot be read: {reason}") from error
    if len(tokenizer) > settings.vocab_size:
        raise ValueError(
            f"predictor.encoder {str(folder)!r} holds a tokenizer of {len(tokenizer)} entries, its encoder knows "
            f"{settings.vocab_size}"
        )
    return encoder.float(), tokenizer


def encoder_from_settings(settings: dict[str, Any]) -> nn.Module:
    """An encoder with random weights from what `encoder.config.to_dict()` gave."""
    package = transformers()
    config = package.AutoConfig.for_model(**settings)
    encoder: nn.Module = package.AutoModel.from_config(config)
    return encoder


def tiny_encoder(family: str, config: PredictorConfig, vocabulary: int, pad_id: int) -> nn.Module:
    """A random encoder that a CPU trains in seconds; two heads, feed-forward layers of twice its width."""
    package, width = transformers(), config.tiny_width
    if width % 2:
        raise ValueError(f"predictor.tiny_width must be even, got {width}")
    common = {"vocab_size": vocabulary, "pad_token_id": pad_id, "max_position_embeddings": _POSITIONS}
    encoder: nn.Module
    if family == DISTILBERT:
        encoder = package.DistilBertModel(
            package.DistilBertConfig(
                **common, dim=width, n_layers=config.tiny_layers, n_heads=2, hidden_dim=2 * width
            )
        )
    else:
        encoder = package.BertModel(
            package.BertConfig(
                **common,
                hidden_size=width,
                num_hidden_layers=config.tiny_layers,
                num_attention_heads=2,
                intermediate_size=2 * width,
            )
        )
    return encoder


def build_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A WordPiece tokenizer as BERT's (lower case) that knows the characters and the most frequent words of some texts.

    Args:
        texts: any.
        vocabulary: most entries; the characters get at most half of them. Words are counted here and ties broken by
            alphabet, because the trainers of the `tokenizers` package order ties differently in every call.
    """
    package = transformers()
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(
        word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    letters: Counter[str] = Counter()
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    alphabet = _most_frequent(letters)[: vocabulary // 4]
    pieces = [*_SPECIAL.values(), *alphabet, *(f"##{letter}" for letter in alphabet), *_most_frequent(words)]
    entries = list(dict.fromkeys(pieces))[:vocabulary]
    model = models.WordPiece(
        {piece: number for number, piece in enumerate(entries)}, unk_token=_SPECIAL["unk"]
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    return package.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_POSITIONS,
        **{f"{name}_token": token for name, token in _SPECIAL.items()},
    )


def _most_frequent(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda entry: (-counts[entry], entry))
