import pytest
from pydantic import ValidationError

from kepsvgp.config.sections import DataConfig


def test_data_config_reads_none_from_a_word() -> None:
    config = DataConfig(name="cola", encoder="none", train_limit="none")  # pyright: ignore

    assert config.encoder is None
    assert config.train_limit is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "mnist"}, "name"),
        ({"nmae": "digits"}, "nmae"),
        ({"name": "csv"}, "path must say"),
        ({"name": "cola", "path": "x.csv"}, "path is for"),
        ({"name": "cola", "split": "paper"}, "split='paper'"),
        ({"name": "cifar10", "encoder": "minilm"}, "encoder is for text"),
        ({"name": "cola", "encoder": "minilm", "vocabulary": "v.txt"}, "has its own"),
        ({"train_limit": 0}, "train_limit"),
        ({"name": "csv", "path": "x", "val_fraction": 0.5, "test_fraction": 0.6}, "leave"),
    ],
)
def test_data_config_refuses(settings, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(**settings)
