from pathlib import Path

import pytest
import torch
from datafiles import write_imdb

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import load_benchmark
from kepsvgp.data.sets import imdb
from kepsvgp.data.text import tokens
from kepsvgp.errors import UserError

pytest.importorskip("tokenizers")
REVIEWS = 20


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    write_imdb(tmp_path, REVIEWS)
    return DataConfig(name="imdb", root=tmp_path, max_length=12)


def parts(benchmark):
    return benchmark.train, benchmark.val, benchmark.test


def test_official_split_keeps_the_test_set(config: DataConfig) -> None:
    benchmark = imdb.load(config, reviews=REVIEWS)

    assert [len(part) for part in parts(benchmark)] == [36, 4, 40]
    for part, source in zip(parts(benchmark), ("train", "train", "test"), strict=True):
        for position in range(len(part)):
            kind = ("neg", "pos")[part.labels[position]]
            assert part.raw(position).startswith(f"{source} {kind} ")
            assert "<br" not in part.raw(position)
    assert int(benchmark.train.lengths.max()) == 12
    assert len(set(benchmark.test.labels[:10].tolist())) == 2


def test_paper_split_pools_and_splits_again(config: DataConfig) -> None:
    pooled = config.model_copy(update={"split": "paper"})

    benchmark = imdb.load(pooled, reviews=REVIEWS)

    # 35K/5K/10K of 50K
    assert [len(part) for part in parts(benchmark)] == [56, 8, 16]
    rows = torch.cat([part.rows for part in parts(benchmark)]).sort().values
    assert torch.equal(rows, torch.arange(80))
    sources = {benchmark.test.raw(position).split()[0] for position in range(16)}
    assert sources == {"train", "test"}
    assert "pooled" in benchmark.notes[0].text


def test_second_load_tokenises_nothing(config: DataConfig, monkeypatch) -> None:
    first = imdb.load(config, reviews=REVIEWS)
    tokenize, sizes = tokens.tokenize, []
    monkeypatch.setattr(
        tokens,
        "tokenize",
        lambda tool, texts, *rest: sizes.append(len(texts)) or tokenize(tool, texts, *rest),
    )
    again = imdb.load(config, reviews=REVIEWS)
    # none but what the checker of types makes of a foreign set
    assert 4 * REVIEWS not in sizes

    assert torch.equal(first.train.tokens.flat, again.train.tokens.flat)
    assert first.split_record() == again.split_record()


def test_limit_reads_only_the_reviews_it_needs(config: DataConfig, monkeypatch) -> None:
    read = []
    monkeypatch.setattr(imdb, "clean", lambda review: read.append(review) or review)
    limited = config.model_copy(update={"train_limit": 3, "val_limit": 2, "test_limit": 4})

    imdb.load(limited, reviews=REVIEWS)

    # the checker of types looks into some of them a second time
    assert len(set(read)) == 9


def test_changed_review_is_tokenised_again(config: DataConfig, tmp_path: Path) -> None:
    before = imdb.load(config, reviews=REVIEWS).test
    path = tmp_path / "aclImdb/test/neg/6_2.txt"
    path.write_text("something else altogether")

    after = imdb.load(config, reviews=REVIEWS).test

    assert not torch.equal(before.tokens.flat, after.tokens.flat)


def test_incomplete_or_swapped_folders_are_refused(config: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "aclImdb/test/pos/3_10.txt").rename(tmp_path / "aclImdb/test/pos/3_10.bak")
    with pytest.raises(UserError, match="pos must hold 20 reviews; it has 19"):
        imdb.load(config, reviews=REVIEWS)
    (tmp_path / "aclImdb/test/pos").rename(tmp_path / "aclImdb/test/x")
    with pytest.raises(UserError, match=r"pos must exist.*data fetch imdb"):
        imdb.load(config, reviews=REVIEWS)
    (tmp_path / "aclImdb/test/neg").rename(tmp_path / "aclImdb/test/pos")
    (tmp_path / "aclImdb/test/x").rename(tmp_path / "aclImdb/test/neg")
    with pytest.raises(UserError, match=r"neg must hold the negative reviews.*stars"):
        imdb.load(config, reviews=REVIEWS)


@pytest.mark.realdata
def test_real_imdb_has_the_official_sizes(data_root: Path) -> None:
    reviews = imdb.list_reviews(data_root)

    assert len(reviews) == 50_000
    assert sum(review.label for review in reviews) == 25_000
    # the smallest useful part of it, so that the test reads little
    config = DataConfig(name="imdb", root=data_root, train_limit=8, val_limit=4, test_limit=4)
    benchmark = load_benchmark(config)
    assert [len(part) for part in parts(benchmark)] == [8, 4, 4]
    assert int(benchmark.train.lengths.max()) <= 512
