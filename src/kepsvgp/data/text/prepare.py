"""From texts to examples: tokens, features if an encoder is named, and their caches."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.examples import Ragged, TextExamples
from kepsvgp.data.text import tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kepsvgp.data.text.features import Encoder


class Texts(NamedTuple):
    """Examples of all given texts, and the size of the vocabulary they are written in."""

    examples: TextExamples
    vocabulary_size: int


def prepare(
    config: DataConfig,
    texts: Sequence[str],
    labels: Int[Tensor, " example"],
    rows: Int[Tensor, " example"],
    *,
    fingerprint: object,
) -> Texts:
    """Examples of these texts; tokens and features are kept on disk.

    Args:
        config: Maximal length, vocabulary and encoder.
        texts: Read only if their tokens are not on disk yet.
        labels: Their classes.
        rows: Their places in the publisher's order.
        fingerprint: What the names of the kept files depend on: the texts, or something as
            good as them that is cheaper to get.
    """
    tokenizer, encoder = _tools(config)
    folder = store.generated(store.data_root(config.root))
    vocabulary = tokenizer.to_str()
    name = store.key(tokens.VERSION, vocabulary, config.max_length, fingerprint)
    ragged = tokens.cached_tokens(
        folder / f"{config.name}-tokens-{name}.safetensors",
        lambda: tokens.tokenize(tokenizer, texts, config.max_length),
    )
    features = None
    if encoder is not None:
        from kepsvgp.data.text.features import contextual_features

        path = folder / f"{config.name}-features-{store.key(name, encoder.key)}.npy"
        features = contextual_features(encoder, ragged, path)
    pad = tokens.padding_id(tokenizer)
    places = torch.arange(len(labels))
    examples = TextExamples(labels, rows, places, ragged, texts, features, pad)
    return Texts(examples, tokenizer.get_vocab_size())


def reader(config: DataConfig) -> Callable[[Sequence[str]], TextExamples]:
    """Makes examples of new texts without a class; tokenizer and encoder are loaded once."""
    tokenizer, encoder = _tools(config)
    pad = tokens.padding_id(tokenizer)
    compute: Callable[[Ragged], Tensor] | None = None
    if encoder is not None:
        from kepsvgp.data.text.features import features_of, load_model

        compute = partial(features_of, encoder, model=load_model(encoder))

    def read(texts: Sequence[str]) -> TextExamples:
        ragged = tokens.tokenize(tokenizer, texts, config.max_length)
        features = None if compute is None else compute(ragged)
        places, labels = torch.arange(len(texts)), torch.full((len(texts),), -1)
        return TextExamples(labels, places, places, ragged, texts, features, pad)

    return read


def cutter(config: DataConfig) -> Callable[[str], str]:
    """Cuts texts to what is read of them, in any thread: with a tokenizer of its own."""
    tokenizer = tokens.load_tokenizer(tool_files(config)[-1])
    count = tokens.counter(tokenizer, config.max_length)
    return partial(tokens.shortened, max_length=config.max_length, count=count)


def tool_files(config: DataConfig) -> list[Path]:
    """The files outside the data that decide what becomes of a text."""
    if config.encoder is None:
        return [tokens.vocabulary_file(config.vocabulary)]
    from kepsvgp.data.text.features import encoder_files

    files = encoder_files(config.encoder)
    return [*files, tokens.vocabulary_file(files[0].parent)]


def _tools(config: DataConfig) -> "tuple[Tokenizer, Encoder | None]":
    if config.encoder is None:
        return tokens.load_tokenizer(config.vocabulary), None
    from kepsvgp.data.text.features import find_encoder

    encoder = find_encoder(config.encoder, config.device)
    return encoder.tokenizer, encoder
