import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from kepsvgp import Prediction, convert
from kepsvgp.errors import UserError

with warnings.catch_warnings():
    # lightning's own imports use what is deprecated elsewhere
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning")
    from kepsvgp.integrations.lightning import KEPModule

pytestmark = pytest.mark.filterwarnings("ignore")
LABELS = torch.tensor([0, 1, 2, 0])


def trainer(folder: Path, **options: Any) -> "lightning.Trainer":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip


def micro_batches(batch: dict[str, torch.Tensor], size: int) -> DataLoader:
    whole = batch | {"labels": LABELS}
    parts = [{k: v[i : i + size] for k, v in whole.items()} for i in range(0, 4, size)]
    return DataLoader(parts, batch_size=None)


@pytest.mark.parametrize("as_mapping", [True, False])
def test_module_trains_validates_and_predicts(as_mapping: bool, tmp_path: Path) -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    module = KEPModule(model, num_train=4, lr=1e-3, new_lr=1e-2)
    before = {key: value.clone() for key, value in model.state_dict().items() if "kep" in key}
    batches = (
        micro_batches(batch, 2) if as_mapping else DataLoader([(batch, LABELS)], batch_size=None)
    )

    loop = trainer(tmp_path, max_steps=3)
    loop.fit(module, batches, batches)
    metrics = loop.callback_metrics
    predictions = loop.predict(module, batches)

    assert all((model.state_dict()[key] != old).any() for key, old in before.items())
    assert {"train/total", "train/kl", "val/nll", "val/accuracy"} <= metrics.keys()
    assert len(Prediction.concatenate([Prediction(**fields) for fields in predictions])) == 4
    assert module.configure_optimizers().param_groups[1]["lr"] == 1e-2


def test_accumulation_of_micro_batches_takes_the_same_step(tmp_path: Path) -> None:
    class Plain(KEPModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    outcomes = []
    for size, steps in ((4, 1), (2, 2)):
        model, batch = families.make(
            "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        convert(model, rank=3, posterior_scale=1e-7)
        module = Plain(model, num_train=4, ksvd_weight=0.0)
        loop = trainer(tmp_path, max_steps=1, accumulate_grad_batches=steps)
        loop.fit(module, micro_batches(batch, size))
        outcomes.append({name: p.detach().clone() for name, p in model.named_parameters()})

    for name, value in outcomes[0].items():
        assert_close(outcomes[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_predicts_without_labels(tmp_path: Path) -> None:
    model, batch = families.make("vit")
    convert(model, rank=3)
    module = KEPModule(model, num_train=4)
    images = batch["pixel_values"]
    loop = trainer(tmp_path)
    expected = loop.predict(module, DataLoader(TensorDataset(images, LABELS), batch_size=2))

    for examples in (images, TensorDataset(images), [{"pixel_values": each} for each in images]):
        found = loop.predict(module, DataLoader(examples, batch_size=2))
        assert_close([part["probs"] for part in found], [part["probs"] for part in expected])

    with pytest.raises(UserError, match="without labels"):
        module.training_step(images, 0)


@pytest.mark.slow
def test_processes_validate_on_all_examples() -> None:
    def measured(devices: int) -> dict[str, float]:
        script = Path(__file__).with_name("validate_in_processes.py")
        done = subprocess.run(
            [sys.executable, str(script), str(devices)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        )
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("measured")]
        return json.loads(line.removeprefix("measured"))

    alone, together = measured(1), measured(2)
    assert together == pytest.approx(alone, rel=1e-5)
