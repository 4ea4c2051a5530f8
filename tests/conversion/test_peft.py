"""LoRA of PEFT before and after conversion: what is converted, trained and saved."""

from pathlib import Path
from typing import Any

import families
import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

from kepsvgp import (
    KEPTrainer,
    convert,
    load_pretrained,
    loss,
    parameter_groups,
    predict,
    save_pretrained,
)
from kepsvgp.attention.base import stochastic_layers
from kepsvgp.conversion import new_parameters
from kepsvgp.conversion.maps import find_maps
from kepsvgp.errors import UserError

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")
MAPS = {"bert": ["query", "key"], "gpt2": ["c_attn"], "vit": ["q_proj", "k_proj"]}


def wrapped(model: nn.Module, name: str, **options: Any) -> Any:
    config = peft.LoraConfig(
        r=2, lora_alpha=32, target_modules=MAPS[name], init_lora_weights=False, **options
    )
    return peft.get_peft_model(model, config).eval()


def answers(model: nn.Module, batch: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return predict(model, batch, num_samples=3, generator=generator).probs


@pytest.mark.parametrize("order", ["before", "after", "after, with the pair"])
@pytest.mark.parametrize("name", MAPS)
def test_adapted_models_save_and_load_merged_or_not(name: str, order: str, tmp_path: Path) -> None:
    model, batch = families.loud(name)
    options: Any = {"modules_to_save": ["kep"]} if order == "after, with the pair" else {}
    model = wrapped(model, name) if order == "before" else convert(model)
    adapted: Any = model if order == "before" else wrapped(model, name, **options)
    before = adapted(**batch).logits
    if order == "before":
        convert(adapted)
    assert torch.equal(adapted(**batch).logits, before)
    assert len(stochastic_layers(adapted)) == 1
    families.spread(adapted)

    drawn = answers(adapted, batch)

    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    save_pretrained(adapted, tmp_path / "whole")
    assert_close(answers(load_pretrained(tmp_path / "whole"), batch), drawn)
    with pytest.raises(UserError, match="merge_and_unload"):
        adapted.get_base_model().save_pretrained(tmp_path / "inside")
    merged = adapted.merge_and_unload()
    assert_close(answers(merged, batch), drawn)
    merged.save_pretrained(tmp_path / "merged")
    assert_close(answers(load_pretrained(tmp_path / "merged"), batch), drawn)


@pytest.mark.parametrize("name", MAPS)
def test_maps_are_found_with_their_adapters(name: str) -> None:
    model, _ = families.make(name)
    adapted = wrapped(model, name)
    parts = [part for part in adapted.modules() if find_maps(part) is not None]
    found = [find_maps(part) for part in parts]
    inner = adapted.merge_and_unload()
    merged = [maps for maps in map(find_maps, inner.modules()) if maps is not None]
    assert len(found) == len(merged) == families.LAYERS
    for first, second in zip(found, merged, strict=True):
        assert_close(first.query.weight, second.query.weight)
        assert_close(first.key.weight, second.key.weight)


@pytest.mark.parametrize("with_pair", [True, False])
def test_what_is_trained_is_right_and_said(with_pair: bool, tmp_path: Path) -> None:
    model, batch = families.make("bert")
    options: Any = {"modules_to_save": ["kep"]} if with_pair else {}
    adapted = wrapped(convert(model), "bert", **options)
    labels = torch.tensor([0, 2, 1, 0])
    rows = [{k: v[i] for k, v in batch.items()} | {"labels": labels[i]} for i in range(4)]
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_steps=1,
        learning_rate=1e-2,
    )  # fmt: skip
    trainer = KEPTrainer(adapted, args, train_dataset=rows)
    before = [p.detach().clone() for p in new_parameters(adapted)]
    if not with_pair:
        with pytest.warns(UserWarning, match=r"modules_to_save=\['kep'\]"):
            parameter_groups(adapted, lr=1e-3, new_lr=1e-2)
        with pytest.warns(UserWarning, match=r"modules_to_save=\['kep'\]"):
            trainer.train()
    else:
        trainer.train()
        *_, new = parameter_groups(adapted, lr=1e-3, new_lr=1e-2)
        assert set(new["params"]) == new_parameters(adapted)
    moved = [
        not torch.equal(p, old) for p, old in zip(new_parameters(adapted), before, strict=True)
    ]
    assert all(moved) if with_pair else not any(moved)
    adapted.train()
    terms = loss(adapted(**batch), labels, adapted, num_train=4)
    assert terms.kl.requires_grad == with_pair


def test_adapter_alone_is_saved_for_its_base(tmp_path: Path) -> None:
    model, batch = families.make("bert")
    convert(model, posterior_scale=2.0).save_pretrained(tmp_path / "base")
    adapted = wrapped(load_pretrained(tmp_path / "base"), "bert", modules_to_save=["kep"])
    families.spread(adapted)
    adapted.save_pretrained(str(tmp_path / "adapter"))

    base = load_pretrained(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()

    assert torch.equal(answers(again, batch), answers(adapted, batch))
    # nor is it said to be of a model that never had a pair
    assert not again.peft_config["default"].base_model_name_or_path
