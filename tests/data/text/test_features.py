import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from datafiles import write_encoder
from torch.testing import assert_close

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.text import features, tokens
from kepsvgp.data.text.prepare import _tools, cutter, prepare, reader
from kepsvgp.errors import UserError

pytest.importorskip("transformers")
TEXTS = ["the cat sat", "a dog ran on the mat and on", "cat", "the mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    return write_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


def test_features_are_the_hidden_layers_of_each_sentence_alone(folder, tmp_path) -> None:
    encoder = features.find_encoder(str(folder))
    ragged = tokens.tokenize(encoder.tokenizer, TEXTS, 20)

    kept = features.contextual_features(encoder, ragged, tmp_path / "kept.npy")

    assert kept.shape == (len(ragged.flat), 3, 16)
    assert kept.dtype == torch.float16
    model = features.load_model(encoder)
    for number in range(len(TEXTS)):
        first, last = ragged.offsets[number : number + 2].tolist()
        ids = ragged.flat[first:last].long()[None]
        with torch.no_grad():
            layers = model(input_ids=ids, output_hidden_states=True).hidden_states
        expected = torch.cat(layers).swapaxes(0, 1)
        # half precision has eleven bits
        assert_close(kept[first:last].float(), expected, atol=2e-3, rtol=2e-3)
    assert_close(features.features_of(encoder, ragged), kept)


def test_features_are_computed_once_and_never_half_written(folder, tmp_path, monkeypatch) -> None:
    encoder = features.find_encoder(str(folder))
    ragged = tokens.tokenize(encoder.tokenizer, TEXTS, 20)
    path = tmp_path / "kept.npy"
    monkeypatch.setattr(features, "BATCH_TOKENS", 8)
    whole = features._encode

    def dies(*arguments):
        iteration = whole(*arguments)
        yield next(iteration)
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "_encode", dies)
    with pytest.raises(KeyboardInterrupt):
        features.contextual_features(encoder, ragged, path)
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(features, "_encode", whole)
    first = features.contextual_features(encoder, ragged, path)
    # the second time needs no model
    monkeypatch.setattr(features, "load_model", None)
    assert torch.equal(features.contextual_features(encoder, ragged, path), first)


def test_encoder_and_its_tokens_are_on_the_device_that_is_asked_for(folder, monkeypatch) -> None:
    def find_device(wanted: str, *, is_binding: bool) -> torch.device:
        # one that is absent is no reason not to read a run
        assert not is_binding
        return torch.device(wanted)

    sent = []

    def to_device(inputs, device: torch.device):
        sent.append(device)
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "find_device", find_device)
    monkeypatch.setattr(features, "to_device", to_device)
    config = DataConfig(name="csv", path=Path("x"), encoder=str(folder), device="meta")
    _, encoder = _tools(config)
    assert encoder is not None

    assert {p.device for p in features.load_model(encoder).parameters()} == {torch.device("meta")}
    with pytest.raises(KeyboardInterrupt):
        features.features_of(encoder, tokens.tokenize(encoder.tokenizer, TEXTS, 20))
    assert sent == [torch.device("meta")]


def test_encoder_key_changes_with_the_weights(folder, tmp_path) -> None:
    torch.manual_seed(1)
    other = write_encoder(tmp_path / "other")

    keys = [features.find_encoder(str(name)).key for name in (folder, folder, other)]

    assert keys[0] == keys[1] != keys[2]


def test_encoder_in_several_files_is_known_by_their_index_too(folder, tmp_path) -> None:
    whole = features.load_model(features.find_encoder(str(folder)))
    shards = tmp_path / "shards"
    shutil.copytree(folder, shards)
    (shards / "model.safetensors").unlink()
    whole.save_pretrained(shards, max_shard_size="5KB")
    complete = features.find_encoder(str(shards))
    assert_close(features.load_model(complete).state_dict(), whole.state_dict())

    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"].pop("encoder.layer.1.output.dense.weight")
    index.write_text(json.dumps(content))

    assert index in features.encoder_files(str(shards))
    assert features.find_encoder(str(shards)).key != complete.key


def test_encoder_is_known_by_the_adapter_that_loads_with_it(folder, tmp_path) -> None:
    peft = pytest.importorskip("peft")
    adapted = tmp_path / "adapted"
    shutil.copytree(folder, adapted)
    settings = peft.LoraConfig(target_modules=["query"], init_lora_weights=False)
    model = features.load_model(features.find_encoder(str(folder)))
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    shutil.copy(tmp_path / "adapter" / "adapter_model.safetensors", adapted)
    plain = features.find_encoder(str(adapted))

    config = shutil.copy(tmp_path / "adapter" / "adapter_config.json", adapted)

    assert Path(config) in features.encoder_files(str(adapted))
    assert features.find_encoder(str(adapted)).key != plain.key


def test_encoder_without_some_weights_is_refused_and_without_a_pooler_taken(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_encoder(tmp_path / "partial")
    encoder = features.find_encoder(str(folder))
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("pooler")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    features.load_model(encoder)

    lost = "encoder.layer.1.output.dense.weight"
    kept.pop(lost)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=f"all its weights; it lacks {lost}"):
        features.load_model(encoder)


def test_positions_that_begin_behind_the_padding_are_not_counted(tmp_path) -> None:
    from transformers import RobertaConfig, RobertaModel

    folder = write_encoder(tmp_path / "roberta")
    config = RobertaConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=18, pad_token_id=1,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)
    encoder = features.find_encoder(str(folder))

    whole = tokens.tokenize(encoder.tokenizer, ["cat " * 100], 16)
    assert len(features.features_of(encoder, whole)) == 16
    for length in (17, 18):
        longer = tokens.tokenize(encoder.tokenizer, ["cat " * 100], length)
        with pytest.raises(UserError, match=f"not exceed the 16 positions .* of {length}"):
            features.features_of(encoder, longer)


def test_features_that_cannot_be_made_are_refused(folder, tmp_path, monkeypatch) -> None:
    encoder = features.find_encoder(str(folder))
    ragged = tokens.tokenize(encoder.tokenizer, TEXTS, 20)
    features.contextual_features(encoder, ragged, tmp_path / "kept.npy")
    fewer = tokens.tokenize(encoder.tokenizer, ["cat"], 20)
    with pytest.raises(UserError, match=r"kept\.npy must be a float16 array for 3 tokens"):
        features.contextual_features(encoder, fewer, tmp_path / "kept.npy")
    longer = tokens.tokenize(encoder.tokenizer, ["cat " * 100], 64)
    with pytest.raises(UserError, match="max_length must not exceed the 32 positions"):
        features.contextual_features(encoder, longer, tmp_path / "longer.npy")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(UserError, match="GB are free"):
        features.contextual_features(encoder, ragged, tmp_path / "other.npy")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"must have a config\.json"):
        features.find_encoder(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="encoder must be 'minilm', a folder"):
        features.find_encoder("nobody/no such model")


def test_new_texts_get_the_same_inputs_as_kept_ones(folder, tmp_path) -> None:
    config = DataConfig(name="csv", path=Path("x"), root=tmp_path, encoder=str(folder))
    labels, rows = torch.zeros(len(TEXTS), dtype=torch.long), torch.arange(len(TEXTS))

    kept = prepare(config, TEXTS, labels, rows, fingerprint=TEXTS).examples
    new = reader(config)(TEXTS)

    for name, value in kept.inputs(rows).items():
        assert torch.equal(new.inputs(rows)[name], value)
    assert (new.labels == -1).all()


def test_new_texts_are_cut_to_what_is_read_of_them(folder) -> None:
    config = DataConfig(name="csv", path=Path("x"), encoder=str(folder), max_length=20)
    text = " " * 5_000 + "the cat sat " * 9_000

    cut = cutter(config)(text)

    assert len(cut) < len(text) / 2
    whole, found = reader(config)([text]), reader(config)([cut])
    assert torch.equal(whole.tokens.flat, found.tokens.flat)
    assert len(found.tokens.flat) == 20


def test_code_beside_an_encoder_is_neither_run_nor_asked_for(folder, tmp_path, monkeypatch) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(folder, strange)
    config = json.loads((strange / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (strange / "config.json").write_text(json.dumps(config))
    trace = tmp_path / "it-ran"
    (strange / "own.py").write_text(f"open({str(trace)!r}, 'w')\nclass Own: ...\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))

    with pytest.raises(UserError, match="strange must be a Hugging Face encoder"):
        features.load_model(features.find_encoder(str(strange)))
    assert not trace.exists()
