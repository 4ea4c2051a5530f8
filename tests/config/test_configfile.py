import tomllib
from pathlib import Path

import pytest

from kepsvgp.config.comparison import differences
from kepsvgp.config.file import dump_config, load_config, parse_config
from kepsvgp.config.plugins import TRAINED
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.models import ImageShape, TextShape, build_model

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('method = "msp"\n[train]\nepochs = 3\n[model.kep]\nrank = 4\n')
    return path


def test_config_reads_files_and_overrides(file) -> None:
    config = load_config(file, ["train.lr=2e-4", "data.name=cola", "seed=3", "model.kep.rank=7"])

    assert (config.method, config.seed, config.data.name) == ("msp", 3, "cola")
    assert (config.train.epochs, config.train.lr, config.model.kep.rank) == (3, 2e-4, 7)


@pytest.mark.parametrize("name", ["2024", "2024-05-01", "1_000", "true", "a b"])
def test_folders_may_be_called_what_toml_takes_for_something_else(name) -> None:
    changes = ["data.name=images", f"data.path={name}", f"data.root={name}", f'data.path="{name}"']
    config = load_config("digits-small", changes)
    assert (config.data.path, config.data.root) == (Path(name), Path(name))


def test_config_survives_its_own_dump() -> None:
    config = parse_config({"seed": 5, "data": {"name": "cola", "encoder": "minilm"}})

    assert parse_config(tomllib.loads(dump_config(config))) == config


def test_data_are_made_where_the_run_trains() -> None:
    config = RunConfig.model_validate({"train": {"device": "cuda:1"}})

    assert config.data.device == "cuda:1"
    assert "data.device" not in config.identity()
    assert RunConfig.model_validate(config.model_dump()) == config


def test_config_dump_is_complete() -> None:
    values = tomllib.loads(dump_config(RunConfig()))

    assert values["train"]["weight_decay"] == 0.0
    assert values["model"]["kep"]["projection"] == "dual"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lrr=1", r"train\.lrr is no known key\. Did you mean lr"),
        ("tarin.lr=1", r"tarin is no known key\. Did you mean train"),
        ("model.kep.rnak=1", r"model\.kep\.rnak is no known key\. Did you mean rank"),
        ("train.lr=fast", r"train\.lr: .*valid number.*got 'fast'"),
        ("train.epochs=0", r"train\.epochs: .*greater than 0; got 0"),
        ("train.epochs=2.5", r"train\.epochs: .*integer.*got 2\.5"),
        ("method=magic", r"method: .*kep.*got 'magic'"),
        ("data.name=digit", r"data\.name: .*got 'digit'.*Did you mean digits"),
        ("model.kpe.rank=1", r"model\.kpe is no known key\. Did you mean kep"),
        ("model.kep_layers=some", r"model\.kep_layers: .*got 'some'"),
        ("model.num_heads=5", r"model\.dim must be divisible by num_heads=5; got 384"),
        ("model.kep_layers=9", r"model\.kep_layers must be at most depth=7; got 9"),
        ("train.min_lr=1", r"train\.min_lr must be at most lr=0\.001; got 1"),
        ("train.device=GPU", r"train\.device: .*got 'GPU'"),
        ("method=temperature", r"method: .*trained must be one of msp, kep.*got 'temperature'"),
        ("train.accumulate=3", r"train\.batch_size must be divisible by accumulate=3; got 128"),
        ("data.path=x", r"data\.path is for name='images' or 'csv' only"),
        ("train", r"must read section\.key=value; got 'train'"),
        ("method.x=1", r"method is no section"),
    ],
)
def test_config_mistake_is_named_by_its_field(file, override, message) -> None:
    with pytest.raises(UserError, match=message):
        load_config(file, [override])


def test_config_refuses_concatenation_over_texts(file) -> None:
    with pytest.raises(UserError, match=r"model\.kep\.merge must be 'add' for texts.*got 'concat'"):
        load_config(file, ["method=kep", "data.name=imdb", "model.kep.merge=concat"])


def test_config_refuses_texts_without_embeddings_and_encoder(file) -> None:
    with pytest.raises(UserError, match=r"model\.embedding_dim=0 must go with a data\.encoder"):
        load_config(file, ["data.name=imdb", "model.embedding_dim=0"])

    settings = ["data.name=imdb", "data.encoder=minilm", "model.embedding_dim=0"]
    assert load_config(file, settings).model.embedding_dim == 0


def test_config_names_every_mistake_at_once(file) -> None:
    with pytest.raises(UserError, match=r"seed: .*; train\.lrr ") as caught:
        load_config(file, ["train.lrr=1", "seed=-1"])

    assert "\n" not in str(caught.value)


def test_config_that_is_no_toml_is_refused(tmp_path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("train = [")

    with pytest.raises(UserError, match=r"broken\.toml must hold valid TOML"):
        load_config(broken)


def test_config_that_is_missing_is_refused() -> None:
    with pytest.raises(UserError, match="there is no nowhere"):
        load_config("nowhere")


def test_differences_name_fields_but_not_versions() -> None:
    one = parse_config({"seed": 1, "versions": {"torch": "1"}})
    other = parse_config({"seed": 2, "train": {"lr": 0.5}})

    assert differences(one, other) == ["seed", "train.lr"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_is_valid(path) -> None:
    load_config(path)
    assert load_config(path.stem) == load_config(path)


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_serves_every_method(path, method) -> None:
    config = load_config(path, [f"method={method}"])
    # as MiniLM's features come
    featured = TextShape(60, feature_layers=7, feature_dim=384)
    texts = TextShape(60) if config.data.encoder is None else featured
    shape = texts if config.data.name in ("imdb", "cola") else ImageShape(3, 32, 32)
    build_model(config.model, shape, 2, method)


def test_mistake_in_an_override_names_the_override() -> None:
    with pytest.raises(UserError, match=r"digits-small.toml with methd=kep: methd is no known key"):
        load_config("digits-small", ["methd=kep"])
