import random
from pathlib import Path

import pytest
import torch
from datafiles import sentence, write_cola

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import load_benchmark
from kepsvgp.data.sets import cola
from kepsvgp.errors import UserError

pytest.importorskip("tokenizers")
SIZES = cola.Sizes(40, 7, 5)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    write_cola(tmp_path, SIZES)
    return DataConfig(name="cola", root=tmp_path, max_length=20)


def test_cola_has_its_parts_in_their_places(config: DataConfig) -> None:
    benchmark = cola.load(config, sizes=SIZES)

    assert [len(p) for p in (benchmark.train, benchmark.val, benchmark.test)] == [36, 4, 7]
    both = torch.cat([benchmark.train.rows, benchmark.val.rows]).sort().values
    assert torch.equal(both, torch.arange(40))
    for part in (benchmark.train, benchmark.val):
        for position, row in enumerate(part.rows.tolist()):
            assert part.raw(position) == sentence("in_domain_train", row)
            assert part.labels[position] == (1 if row % 3 else 0)
    assert benchmark.test.raw(2).startswith("The in_domain_dev")
    assert list(benchmark.shifts) == ["out_of_domain"]
    shift = benchmark.shifts["out_of_domain"]
    assert len(shift) == 5
    assert shift.raw(4).startswith("The out_of_domain_dev")
    assert benchmark.vocabulary_size == 30522


def test_cola_as_the_authors_split_it(config: DataConfig) -> None:
    pooled = config.model_copy(update={"split": "program"})

    benchmark = cola.load(pooled, sizes=SIZES)

    # 70, 10 and 20 in a hundred of 47, the first and the last rounded up
    parts = [benchmark.train, benchmark.val, benchmark.test]
    assert [len(part) for part in parts] == [33, 4, 10]
    # their shuffle, which is Python's own
    random.seed(config.seed)
    order = list(range(47))
    random.shuffle(order)
    assert torch.cat([part.rows for part in parts]).tolist() == order
    official = cola.load(config, sizes=SIZES)
    assert [note.text for note in benchmark.notes] != [note.text for note in official.notes]


def test_official_cola_has_1816_test_sentences_in_their_split(data_root: Path) -> None:
    config = DataConfig(name="cola", root=data_root, split="program")

    benchmark = load_benchmark(config)

    assert len(benchmark.train) + len(benchmark.val) == 7_262
    assert len(benchmark.test) == 1_816


def test_cola_limit_tokenises_only_what_is_used(config: DataConfig) -> None:
    limited = config.model_copy(update={"train_limit": 5, "val_limit": 2, "test_limit": 3})

    benchmark = cola.load(limited, sizes=SIZES)

    assert [len(p) for p in (benchmark.train, benchmark.val, benchmark.test)] == [5, 2, 3]
    assert len(benchmark.train.tokens.lengths) == 5 + 2 + 3 + 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:300], r"in_domain_train\.tsv must be"),
        (lambda content: content.rsplit(b"\n", 2)[0], "it has 39"),
        (lambda content: b"one column\n" + content, "line 1 is not"),
        (lambda content: content.replace(b"\t1\t", b"\t2\t", 1), "line 2 is not"),
        (lambda content: b"\xff\xfe" + content, "not UTF-8"),
    ],
)
def test_damaged_cola_is_refused_by_name(config, tmp_path, damage, message) -> None:
    path = tmp_path / "cola_public/raw/in_domain_train.tsv"
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(UserError, match=message):
        cola.load(config, sizes=SIZES)


@pytest.mark.realdata
def test_real_cola_has_the_published_sizes(data_root: Path) -> None:
    benchmark = load_benchmark(DataConfig(name="cola", root=data_root))

    sizes = [len(p) for p in (benchmark.train, benchmark.val, benchmark.test)]
    assert sizes == [7696, 855, 527]
    assert len(benchmark.shifts["out_of_domain"]) == 516
    everything = torch.cat([benchmark.train.labels, benchmark.val.labels])
    # seven in ten sentences are acceptable, as its authors say
    assert abs(everything.double().mean() - 0.704) < 0.001
    assert int(benchmark.train.lengths.max()) < 60
