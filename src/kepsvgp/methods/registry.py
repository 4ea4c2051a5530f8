"""Methods by name: which trains what, what is fitted on top, and where a run keeps it.

A trained method is what `RunConfig.method` says. A post-hoc method is fitted to a checkpoint of
a run with its training and validation data, and kept in the run folder; results of, say,
temperature scaling are called `temperature` on a softmax run and `kep+temperature` on a KEP
run.
"""

import hashlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console

from kepsvgp.config.comparison import other_inputs
from kepsvgp.config.sections import Method, RunConfig
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.data.progress import track
from kepsvgp.errors import UserError
from kepsvgp.files import read_json, write_json
from kepsvgp.inference.prediction import Predictor
from kepsvgp.methods import ensemble, kfllla, mc_dropout, msp, sngp, svdkl, temperature
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import Checkpoint
from kepsvgp.training.loop import train

PostHoc = Literal["temperature", "mc_dropout", "kfllla", "ensemble"]


def train_method(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Trains the method that the configuration names into a run folder; see `training.train`."""
    check_installed(config.method)
    match config.method:
        case "svdkl":
            return svdkl.fit(config, benchmark, out, resume=resume, console=console)
        case "sngp":
            return sngp.fit(config, benchmark, out, resume=resume, console=console)
        case _:
            return train(config, benchmark, out, resume=resume, console=console)


def split_name(name: str) -> tuple[Method | None, PostHoc | None]:
    """The trained and the post-hoc method in a name such as `kep`, `kfllla` or `kep+kfllla`."""
    base, plus, top = name.rpartition("+")
    if name in get_args(Method):
        return _one_of(name, Method), None
    if top in get_args(PostHoc) and (base in get_args(Method) or not plus):
        return _one_of(base, Method) if plus else None, _one_of(top, PostHoc)
    raise UserError(
        f"a method must be one of {', '.join(get_args(Method))}, or one of "
        f"{', '.join(get_args(PostHoc))}, alone or after a trained one as in kep+temperature; "
        f"got {name!r}."
    )


def result_name(base: Method, posthoc: PostHoc | None) -> str:
    """What results of a method are called: post-hoc methods on softmax runs by their own name."""
    if posthoc is None:
        return base
    return posthoc if base == "msp" else f"{base}+{posthoc}"


def check_installed(name: str) -> None:
    """Raises a `UserError` that names the extra if a method's library is missing."""
    for part in split_name(name):
        library, package, extra = _LIBRARIES.get(part or "", ("", "", ""))
        if library and not _is_there(library):
            raise UserError(
                f"method {part!r} must have {package}, which is not installed. "
                f"Run `pip install 'kepsvgp[{extra}]'`."
            )


# module, name and extra of what a method needs beyond the core
_LIBRARIES = {
    "svdkl": ("gpytorch", "GPyTorch", "gp"),
    "kfllla": ("laplace", "laplace-torch", "laplace"),
}


def _is_there(library: str) -> bool:
    # None stands for a module that is known not to be importable
    return sys.modules.get(library, library) is not None and find_spec(library) is not None


def get_method(
    name: str,
    run: RunFolder,
    benchmark: Benchmark,
    checkpoint: Checkpoint,
    *,
    members: Sequence[RunFolder] = (),
    device: torch.device | None = None,
    console: Console | None = None,
) -> Predictor:
    """A method on a checkpoint of a run: loaded where it is fitted already, else fitted and saved.

    Args:
        name: A trained method, which must be the run's, or a post-hoc one.
        run: The run that the method is fitted to.
        benchmark: The data of the run; its test set is never looked at.
        checkpoint: Which weights of the run.
        members: The other runs of an ensemble.
        device: Where to predict.
        console: Where progress is shown; None for nowhere.
    """
    check_installed(name)
    config = run.config()
    base, posthoc = split_name(name)
    if base not in (None, config.method):
        raise UserError(
            f"method {name!r} must be asked of a run of {base!r}; {run.path} is one of "
            f"{config.method!r}."
        )
    if posthoc == "ensemble":
        _check_members([run, *members])
    direct = _direct(run, checkpoint, device)
    if posthoc is None:
        return direct
    folder = run.method_folder(f"{checkpoint}/{posthoc}")
    stamp = _stamp([run, *members], checkpoint)
    if _is_current(folder, stamp):
        return _load(posthoc, folder, direct, members, checkpoint, device)
    # what another ensemble or other weights said is no longer the method's
    run.forget_method(checkpoint, result_name(config.method, posthoc))
    fitted = _fit(posthoc, run, benchmark, direct, members, checkpoint, device, console)
    fitted.save(folder)
    # last, as it says that the rest is there
    write_json(folder / "fitted.json", stamp)
    return fitted


def _fit(
    posthoc: PostHoc,
    run: RunFolder,
    benchmark: Benchmark,
    direct: msp.Direct,
    members: Sequence[RunFolder],
    checkpoint: Checkpoint,
    device: torch.device | None,
    console: Console | None,
) -> Any:
    config = run.config()

    def shown(examples: Examples, what: str) -> Any:
        loader = batches(examples, config.prediction.batch_size, bucket=True)
        if console is None:
            return loader
        return track(loader, f"{posthoc}: {what}", total=len(loader), console=console)

    match posthoc:
        case "temperature":
            val = shown(benchmark.val, "validation set")
            return temperature.fit(direct, val, seed=config.seed, device=device)
        case "mc_dropout":
            return mc_dropout.fit(direct.model, num_samples=direct.num_samples)
        case "kfllla":
            return kfllla.fit(
                kfllla.checked(direct.model),
                shown(benchmark.train, "training set"),
                shown(benchmark.val, "validation set"),
                num_samples=direct.num_samples,
                seed=config.seed,
                device=device,
            )
        case "ensemble":
            runs = [run, *members]
            direct_members = [direct, *(_direct(m, checkpoint, device) for m in members)]
            return ensemble.fit(direct_members, [str(r.path) for r in runs])


def _load(
    posthoc: PostHoc,
    folder: Path,
    direct: msp.Direct,
    members: Sequence[RunFolder],
    checkpoint: Checkpoint,
    device: torch.device | None,
) -> Any:
    match posthoc:
        case "temperature":
            return temperature.load(folder, direct)
        case "mc_dropout":
            return mc_dropout.load(folder, direct.model)
        case "kfllla":
            return kfllla.load(folder, kfllla.checked(direct.model))
        case "ensemble":
            others = [_direct(member, checkpoint, device) for member in members]
            return ensemble.load(folder, [direct, *others])


def _direct(run: RunFolder, checkpoint: Checkpoint, device: torch.device | None) -> msp.Direct:
    prediction = run.config().prediction
    model = run.model(checkpoint).to(device)
    return msp.fit(model, num_samples=prediction.num_samples, average=prediction.average)


def _check_members(runs: Sequence[RunFolder]) -> None:
    """Refuses members that do not answer the same question, and one that is there twice."""
    first, *others = runs
    method, record = first.config().method, first.record()
    seen = {first.identity() or str(first.path.resolve()): first.path}
    for run in others:
        mine = run.config().method
        if mine != method:
            raise UserError(
                f"members of an ensemble must be runs of one method; {run.path} is one of "
                f"{mine!r} and {first.path} of {method!r}."
            )
        name = run.identity() or str(run.path.resolve())
        if name in seen:
            raise UserError(
                f"members of an ensemble must be different runs; {run.path} is the same as "
                f"{seen[name]}. Train another seed, or leave it out."
            )
        seen[name] = run.path
        theirs = run.record()
        same_inputs = all(theirs[key] == record[key] for key in ("task", "classes", "input"))
        same_name = theirs["splits"].get("name") == record["splits"].get("name")
        same_rows = is_same_split(record["splits"], theirs["splits"])
        if not (same_inputs and same_name and same_rows):
            raise UserError(
                f"members of an ensemble must be trained on the same data, split alike; "
                f"{run.path} was trained on other data than {first.path}. Leave it out."
            )
        other = other_inputs(first.config(), run.config())
        if other:
            raise UserError(
                f"members of an ensemble must take the same inputs; {', '.join(other)} of "
                f"{run.path} differ from those of {first.path}. Leave it out."
            )


def _stamp(runs: Sequence[RunFolder], checkpoint: Checkpoint) -> dict[str, Any]:
    """What a fitted method depends on: the weights of its runs, and how they are asked."""
    return {
        "weights": [
            hashlib.sha256(run.weights_file(checkpoint).read_bytes()).hexdigest() for run in runs
        ],
        "prediction": runs[0].config().prediction.model_dump(),
    }


def _is_current(folder: Path, stamp: dict[str, Any]) -> bool:
    path = folder / "fitted.json"
    return path.exists() and read_json(path) == stamp


def _one_of(name: str, kind: Any) -> Any:
    assert name in get_args(kind)
    return name
