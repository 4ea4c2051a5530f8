from functools import partial
from pathlib import Path

import families
import pytest
import torch
import transformers
from families import CLASSES, IMAGE, TEXT
from torch.testing import assert_close

import kepsvgp
from kepsvgp import loss, predict
from kepsvgp.conversion import converted_layers, load_pretrained, save_pretrained
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder

# the paper's layer in the place of the module
convert = partial(kepsvgp.convert, mean="zero")

ALL = (*TEXT, *IMAGE)


@pytest.mark.parametrize("name", ALL)
def test_conversion_keeps_the_trained_maps(name: str) -> None:
    model, _ = families.make(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}

    convert(model, rank=2)

    after = model.state_dict()
    shared = before.keys() & after.keys()
    assert len(before.keys() - after.keys()) in (6, 8)  # q, k, v and, inside the module, o
    for key in shared:
        assert_close(after[key], before[key], rtol=0, atol=0)
    (layer,) = converted_layers(model).values()
    query = next(v for k, v in before.items() if ".2." in k and _is_query(k))
    assert_close(layer.kep.to_qk.weight[: families.WIDTH], query, rtol=0, atol=0)


def _is_query(key: str) -> bool:
    return key.endswith(("query.weight", "q_lin.weight", "q_proj.weight"))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", TEXT)
def test_padding_does_not_change_the_prediction(name: str, implementation: str) -> None:
    model, _ = families.make(name)
    model.set_attn_implementation(implementation)
    convert(model, 2, rank=3, posterior_scale=1.0)
    short, long = families.text_batch([7, 3]), families.text_batch([7, 3], extra=4)

    first, second = (
        predict(model, batch, num_samples=3, generator=torch.Generator().manual_seed(0))
        for batch in (short, long)
    )

    assert_close(first.probs, second.probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_receives_a_gradient(name: str) -> None:
    model, batch = families.make(name)
    convert(model, 2, rank=3)
    model.train()

    terms = loss(model(**batch), torch.tensor([0, 1, 2, 0]), model, num_train=4, ksvd_weight=1.0)
    terms.total.backward()

    for layer in converted_layers(model).values():
        for parameter_name, parameter in layer.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", ALL)
def test_folder_restores_the_model(name: str, tmp_path: Path) -> None:
    model, batch = families.make(name)
    convert(model, [0, 2], rank=3, posterior_scale=1.0)
    save_pretrained(model, tmp_path)

    restored = load_pretrained(tmp_path)

    assert type(restored) is type(model)
    for first, second in zip(
        model.state_dict().items(), restored.state_dict().items(), strict=True
    ):
        assert first[0] == second[0]
        assert_close(first[1], second[1], rtol=0, atol=0)
    expected, actual = (
        predict(each, batch, num_samples=2, generator=torch.Generator().manual_seed(0))
        for each in (model, restored)
    )
    assert_close(actual.probs, expected.probs, rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_prediction_of_a_dict_batch_is_stochastic_and_whole(name: str) -> None:
    model, batch = families.make(name)
    convert(model, rank=3, posterior_scale=3.0)

    prediction = predict(model, batch, num_samples=5, keep_logits=True)

    assert prediction.probs.shape == (4, CLASSES)
    assert prediction.logits is not None
    assert prediction.logits.std(dim=0).min() > 0


@pytest.mark.parametrize("name", ALL)
def test_attention_weights_are_refused(name: str) -> None:
    model, batch = families.make(name)
    model.set_attn_implementation("eager")
    convert(model, rank=3)

    with pytest.raises(UserError, match="output_attentions must be off"):
        model(**batch, output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(UserError, match="output_attentions must be off"):
        model(**batch)


def test_hidden_states_are_still_recorded() -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)

    hidden = model(**batch, output_hidden_states=True).hidden_states

    assert len(hidden) == families.LAYERS + 1


def test_causal_model_is_refused() -> None:
    model, _ = families.make("bert", is_decoder=True)

    with pytest.raises(UserError, match="causal"):
        convert(model)


def test_a_mask_that_differs_by_token_is_refused() -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    causal = torch.ones(7, 7, dtype=torch.bool).tril().expand(4, 1, 7, 7)

    with pytest.raises(UserError, match="attention_mask must hide the same tokens"):
        model(input_ids=batch["input_ids"], attention_mask=causal)


def test_dtype_is_kept() -> None:
    model, batch = families.make("bert")
    model = model.double()

    convert(model, rank=3, calibration=[batch], warm_steps=3)

    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert predict(model, batch, num_samples=2).probs.isfinite().all()


def test_training_mode_is_kept() -> None:
    model, batch = families.make("bert")
    model.train()
    model.bert.embeddings.eval()

    convert(model, rank=3, calibration=[batch], warm_steps=1)

    assert not model.bert.embeddings.training
    assert all(layer.kep.training for layer in converted_layers(model).values())


def test_folder_keeps_processor_and_class_names(tmp_path: Path) -> None:
    class Processor:
        def save_pretrained(self, save_directory: str) -> None:
            (Path(save_directory) / "processor.json").write_text("{}")

    model, _ = families.make("bert")
    model.config.id2label = {0: "a", 1: "b", 2: "c"}
    convert(model, rank=3)

    save_pretrained(model, tmp_path, processor=Processor())

    assert (tmp_path / "processor.json").is_file()
    assert load_pretrained(tmp_path).config.id2label == {0: "a", 1: "b", 2: "c"}


def test_modules_that_are_called_otherwise_are_not_taken_for_ours() -> None:
    sizes = {"hidden_size": 12, "embedding_size": 12, "intra_bottleneck_size": 12}
    config = transformers.MobileBertConfig(
        vocab_size=31, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, **sizes
    )
    model = transformers.MobileBertForSequenceClassification(config)

    with pytest.raises(UserError, match="model must have self-attention of"):
        convert(model)


def test_several_sequences_in_one_row_are_refused() -> None:
    model, _ = families.make("bert")
    convert(model, rank=3)
    (layer,) = converted_layers(model).values()

    with pytest.raises(UserError, match="cu_seq_lens_q must be None"):
        layer(torch.randn(1, 7, families.WIDTH), cu_seq_lens_q=torch.tensor([0, 3, 7]))


def test_class_names_must_be_as_many_as_the_classes(tmp_path: Path) -> None:
    model, _ = families.make("bert")
    convert(model, rank=3)

    with pytest.raises(UserError, match="classes must be 3 names"):
        save_pretrained(model, tmp_path, classes=["good", "bad"])

    class Own(torch.nn.Module):
        """Keeps a configuration that knows nothing of its head."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = families.make("bert").model.bert
            self.config, self.head = self.backbone.config, torch.nn.Linear(families.WIDTH, 5)

    save_pretrained(convert(Own(), rank=3), tmp_path, classes=list("abcde"))


def test_only_classifiers_are_predicted_with() -> None:
    ids = {"input_ids": torch.randint(2, 31, (2, 5))}
    for overrides, message in (
        ({"num_labels": 1}, r"two classes or more; got \(2, 1\)"),
        ({"problem_type": "multi_label_classification"}, "problem_type is multi_label"),
        ({"return_dict": False}, "got a tuple"),
    ):
        model, _ = families.make("bert", **overrides)
        with pytest.raises(UserError, match=message):
            predict(convert(model, rank=3), ids, num_samples=2)
    bare = convert(families.make("bert").model.bert, rank=3)
    with pytest.raises(UserError, match="must return logits"):
        predict(bare, ids, num_samples=2)


class Interrupted:
    def save_pretrained(self, save_directory: str) -> None:
        (Path(save_directory) / "processor.json").write_text("{}")
        raise KeyboardInterrupt


def test_an_interrupted_save_leaves_the_old_model(tmp_path: Path) -> None:
    first, _ = families.make("bert")
    first.config.id2label = {0: "a", 1: "b", 2: "c"}
    save_pretrained(convert(first, rank=3), tmp_path)
    second, _ = families.make("bert")
    second.config.id2label = {0: "c", 1: "b", 2: "a"}

    with pytest.raises(KeyboardInterrupt):
        save_pretrained(convert(second, rank=3), tmp_path, processor=Interrupted())

    assert load_pretrained(tmp_path).config.id2label == {0: "a", 1: "b", 2: "c"}
    names = {"README.md", "config.json", "kepsvgp.json", "manifest.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_save_that_ends_between_weights_and_record_is_refused(tmp_path, monkeypatch) -> None:
    model, _ = families.make("bert")
    save_pretrained(convert(model, rank=3), tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckedFolder, "write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_pretrained(model, tmp_path)

    with pytest.raises(UserError, match="must"):
        load_pretrained(tmp_path)
