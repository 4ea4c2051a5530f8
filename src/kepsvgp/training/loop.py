"""The training loop, written out from top to bottom.

Everything random is a function of the seed and of where the run stands: the weights of the
seed, the order of the examples of the seed and the epoch, dropout and draws of the seed, the
step and the process. So a run that was killed continues as if nothing had happened, and what
it must remember is its weights, the optimizer's moments and its position.

`accelerate launch` or `torchrun` run it in many processes: each takes its share of every batch,
and gradients are averaged. The batch size of the configuration is that of all together.
"""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object, send_to_device
from jaxtyping import Float
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Adam

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig, TrainConfig
from kepsvgp.data import Batch, Benchmark, Examples, batches
from kepsvgp.data.progress import Display, clock, named
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import call
from kepsvgp.metrics import accuracy, mcc, nll
from kepsvgp.models.blocks import Classifier
from kepsvgp.ops.denormals import flushed_denormals
from kepsvgp.ops.noise import kept_random_state
from kepsvgp.runs.evaluation import predict_examples
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import input_shape, make_record
from kepsvgp.runs.weights import Checkpoint
from kepsvgp.training.objective import LossTerms, objective
from kepsvgp.training.processes import make_accelerator, mean_over_processes
from kepsvgp.training.state import STATE, Position, load_position, load_tensors, save_state
from kepsvgp.training.steps import derive_seed, global_batch_size, learning_rate, micro_batches
from kepsvgp.training.tensorboard import Write, check_board, open_board

# steps between two looks at the loss, each of which an accelerator has to be waited for
TERM_STEPS = 10


@dataclass(frozen=True)
class SecondStep:
    """A training that goes on from another.

    Attributes:
        schedule: Settings of the loop in the place of `config.train`.
        initial: Weights to start from, for some of the model; the others are those of the seed.
        network_lr: Share of the learning rate that all but the head has.
    """

    schedule: TrainConfig
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    network_lr: float = 1.0


@dataclass(frozen=True)
class _Session:
    """What stays the same from the first step to the last."""

    config: RunConfig
    benchmark: Benchmark
    run: RunFolder
    accelerator: Accelerator
    model: nn.Module
    """The model as the processes share it."""
    plain: nn.Module
    """The same model without any wrapper, whose weights are saved."""
    optimizer: AcceleratedOptimizer
    batch_size: int
    steps_per_epoch: int
    kl_weight: float
    write_board: Write
    display: Display

    @property
    def is_main(self) -> bool:
        return self.accelerator.is_main_process


def train(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
    second: SecondStep | None = None,
    finish: bool = True,
) -> RunFolder:
    """Trains the network of `config.method` into a run folder.

    Nothing is written before the configuration, the data and the model are known to fit.

    Args:
        config: What to train.
        benchmark: The data that `config.data` names.
        out: The run folder; it must be new, unless the run in it is resumed.
        resume: Continue the run in `out` from its last saved state, if it has one.
        console: Where progress is shown; None for nowhere.
        second: What is different in a second step, whose configuration is that of the whole.
        finish: Whether the last epoch is the end of the training; else the caller says when it is.
    """
    run, second = RunFolder(out), second or SecondStep(config.train)
    with kept_random_state(), flushed_denormals(), ExitStack() as stack:
        session, position = _begin(
            config, benchmark, run, second, resume=resume, console=console, stack=stack
        )
        while not position.done:
            _train_epoch(session, position)
            _finish_epoch(session, position)
        if finish and session.is_main:
            run.finish()
        session.accelerator.wait_for_everyone()
        return run


def _begin(
    whole: RunConfig,
    benchmark: Benchmark,
    run: RunFolder,
    second: SecondStep,
    *,
    resume: bool,
    console: Console | None,
    stack: ExitStack,
) -> tuple[_Session, Position]:
    """A session in a run folder that is held as long as the stack, and where it stands."""
    method, config = find_method(whole.method), whole.model_copy(update={"train": second.schedule})
    check_board(enabled=config.train.tensorboard)
    accelerator, num_train = make_accelerator(config.train), len(benchmark.train)
    is_main = accelerator.is_main_process
    batch_size = global_batch_size(config.train, num_train, accelerator.num_processes)
    if console is not None and is_main:
        _tell_shorter_warmup(config.train, console)
    torch.manual_seed(derive_seed(config.seed, "weights"))
    plain = method.network(config.model, input_shape(benchmark), len(benchmark.classes))
    plain.load_state_dict(second.initial, strict=False)
    groups, decay = _parameter_groups(plain, second.network_lr), config.train.weight_decay
    adam = Adam(groups, lr=config.train.lr, weight_decay=decay, fused=True)
    model, optimizer = accelerator.prepare(plain, adam)
    if is_main:
        size = sum(parameter.numel() for parameter in plain.parameters())
        record = make_record(benchmark, parameters=size, epochs=config.train.epochs)
        stack.enter_context(run.opened(whole, record, resume=resume))
    accelerator.wait_for_everyone()
    position = _restored(run, plain, adam, accelerator)
    is_shown = is_main and not position.done
    steps = num_train // batch_size
    total, done = config.train.epochs * steps, position.epoch * steps + position.batch
    display = Display(console if is_shown else None, "training", total=total, done=done)
    folder, is_board = run.path / "tensorboard", is_shown and config.train.tensorboard
    board = open_board(folder, enabled=is_board, start=position.epoch)
    session = _Session(
        config, benchmark, run, accelerator, model, plain, optimizer, batch_size, steps,
        method.kl_weight(config, num_train),
        stack.enter_context(board), stack.enter_context(display),
    )  # fmt: skip
    return session, position


def _restored(run: RunFolder, model: nn.Module, adam: Adam, accelerator: Accelerator) -> Position:
    """Where a run stands, with its weights and moments given back if there is more to train."""
    position = load_position(run) or Position()
    if position.history and accelerator.is_main_process:
        # the state is written first, so after a crash the history may lag behind it
        run.write_history(position.history)
    if position.done:
        return position
    if accelerator.is_main_process:
        run.forget_results()
    if (run.path / STATE).exists():
        load_tensors(run, model, adam)
        if accelerator.scaler is not None and position.scaler is not None:
            accelerator.scaler.load_state_dict(position.scaler)
    return position


def _tell_shorter_warmup(config: TrainConfig, console: Console) -> None:
    if config.warmup < config.warmup_epochs:
        console.print(
            f"the warm-up is shortened from {config.warmup_epochs:g} to {config.warmup:g} of "
            f"{config.epochs} epochs",
            highlight=False,
        )


def _parameter_groups(model: Classifier, network_lr: float) -> list[dict[str, Any]]:
    """All parameters, with the share of the learning rate that they have."""
    head = set(model.head.parameters())
    network = [parameter for parameter in model.parameters() if parameter not in head]
    return [
        {"params": network, "share": network_lr},
        {"params": list(model.head.parameters()), "share": 1.0},
    ]


def _train_epoch(session: _Session, position: Position) -> None:
    """The batches of one epoch that are still to do."""
    config, accelerator = session.config, session.accelerator
    rank, world = accelerator.process_index, accelerator.num_processes
    order = torch.Generator().manual_seed(derive_seed(config.seed, "order", position.epoch))
    loader = batches(
        session.benchmark.train,
        session.batch_size,
        shuffle=True,
        augment=session.benchmark.augment if config.train.augment else None,
        generator=order,
        drop_last=True,
        part=(rank, world),
        start=position.batch,
        pin=accelerator.device.type == "cuda",
    )
    start, seconds, waited = time.perf_counter(), position.seconds, position.waited
    session.model.train()
    pending: list[Tensor] = []
    for batch in loader:
        step = position.epoch * session.steps_per_epoch + position.batch
        rate = learning_rate(step, session.steps_per_epoch, config.train)
        for group in session.optimizer.param_groups:
            group["lr"] = rate * group["share"]

        # all the noise of this step follows from here
        torch.manual_seed(derive_seed(config.seed, "noise", step, rank))
        pending.append(_backward(session, _sent(batch, accelerator.device)))
        if config.train.clip_norm is not None:
            accelerator.clip_grad_norm_(session.model.parameters(), config.train.clip_norm)
        session.optimizer.step()
        session.optimizer.zero_grad()

        position.batch += 1
        every = config.train.save_steps
        is_saved = every and (step + 1) % every == 0 and position.batch < session.steps_per_epoch
        is_last = position.batch == session.steps_per_epoch
        if is_saved or is_last or len(pending) == TERM_STEPS:
            _count(session, position, pending)
            pending.clear()
        position.seconds = seconds + time.perf_counter() - start
        position.waited = waited + loader.waited
        if is_saved:
            _save(session, position)


def _sent(batch: Batch, device: torch.device) -> Batch:
    # from pinned memory, while the device is still at work on the last one
    return Batch(*send_to_device(tuple(batch), device, non_blocking=device.type == "cuda"))


def _count(session: _Session, position: Position, pending: list[Tensor]) -> None:
    """Fetches the terms of the last steps, adds them up and shows them."""
    first = position.batch - len(pending)
    for number, values in enumerate(torch.stack(pending).tolist(), start=first):
        terms = dict(zip(LossTerms._fields, values, strict=True))
        if not math.isfinite(terms["total"]):
            raise _diverged(terms, position.epoch, number, session.config.train)
        for name, value in terms.items():
            position.sums[name] = position.sums.get(name, 0.0) + value
        session.display.step(terms)


def _backward(session: _Session, batch: Batch) -> Float[Tensor, " term"]:
    """Gradients of the objective for one batch, and its terms, which stay on the device."""
    config, parts = session.config, session.config.train.accumulate
    terms = []
    for number, micro in enumerate(micro_batches(batch, parts)):
        is_last = number == parts - 1
        # processes exchange gradients once a step
        with nullcontext() if is_last else session.accelerator.no_sync(session.model):
            losses = objective(
                call(session.model, micro.inputs),
                micro.labels,
                session.model,
                num_train=len(session.benchmark.train),
                ksvd_weight=config.objective.ksvd_weight,
                kl_weight=session.kl_weight,
            )
            session.accelerator.backward(losses.total / parts)
        terms.append(torch.stack(losses).detach())
    return torch.stack(terms).mean(dim=0)


def _finish_epoch(session: _Session, position: Position) -> None:
    """Validates, keeps the best weights and saves where the run stands."""
    config, run = session.config, session.run
    start = time.perf_counter()
    values = validate(session.model, session.benchmark.val, config, session.accelerator)
    sums = mean_over_processes(position.sums, session.accelerator)
    steps = session.steps_per_epoch
    entry = {
        "epoch": position.epoch + 1,
        "lr": learning_rate((position.epoch + 1) * steps - 1, steps, config.train),
        "train": {name: value / steps for name, value in sums.items()},
        "val": values,
        "seconds": position.seconds,
        "data_wait": position.waited / position.seconds,
        "val_seconds": time.perf_counter() - start,
    }
    better: list[Checkpoint] = ["last"]
    # larger is better for both
    judged: dict[Checkpoint, float] = {"score": values[config.train.score], "nll": -values["nll"]}
    for name, value in judged.items():
        if name not in position.best or value > position.best[name]:
            position.best[name] = value
            better.append(name)
    position.history.append(entry)
    position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
    position.seconds = position.waited = 0.0
    position.done = position.epoch == config.train.epochs
    if session.is_main:
        weights = session.plain.state_dict()
        about = {"epoch": str(position.epoch)}
        for name in better:
            run.write_weights(name, weights, about)
        if config.train.select in better:
            run.write_weights(None, weights, about)
    _save(session, position)
    if session.is_main:
        run.write_history(position.history)
    session.write_board(entry)
    session.display.say(
        f"epoch {position.epoch}/{config.train.epochs}  {named(entry['train'])}  "
        f"val {named(values)}  {clock(entry['seconds'])}"
    )


def validate(
    model: nn.Module, examples: Examples, config: RunConfig, accelerator: Accelerator
) -> dict[str, float]:
    """Accuracy, MCC and NLL on a split that the processes share."""
    rank, world = accelerator.process_index, accelerator.num_processes
    positions = torch.arange(rank, len(examples), world)
    mine = []
    if len(positions) > 0:
        plain, own = accelerator.unwrap_model(model), examples.subset(positions)
        found = predict_examples(plain, own, config, accelerator.device).prediction
        mine = [(positions, found.probs)]
    parts = gather_object(mine) if world > 1 else mine
    order = torch.cat([where for where, _ in parts]).argsort()
    probs = torch.cat([probs for _, probs in parts])[order]
    return {
        "accuracy": accuracy(probs, examples.labels),
        "mcc": mcc(probs, examples.labels),
        "nll": nll(probs, examples.labels),
    }


def _save(session: _Session, position: Position) -> None:
    sums = mean_over_processes(position.sums, session.accelerator)
    if session.is_main:
        scaler = session.accelerator.scaler
        saved = Position(**{**vars(position), "sums": sums})
        saved.scaler = None if scaler is None else scaler.state_dict()
        adam = session.optimizer.optimizer
        save_state(session.run, saved, session.plain, adam)


def _diverged(terms: dict[str, float], epoch: int, batch: int, config: TrainConfig) -> UserError:
    values = ", ".join(f"{name}={value:g}" for name, value in terms.items())
    return UserError(
        f"the loss must be finite; in epoch {epoch + 1}, batch {batch + 1} it "
        f"is not ({values}). Lower train.lr={config.lr:g}, raise train.warmup_epochs="
        f"{config.warmup_epochs:g}, or set train.clip_norm={config.clip_norm or 1}."
    )
