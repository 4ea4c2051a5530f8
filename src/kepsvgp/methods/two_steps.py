"""Methods whose training goes on from a run of another method, given or trained beside it."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark
from kepsvgp.methods.afterwards import train_then
from kepsvgp.methods.base import Method
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import make_record
from kepsvgp.training.loop import SecondStep


class TwoSteps(Method):
    """A method with a first step, which is a run of its own, `<out>-<beside>`, used again later."""

    first: ClassVar[type[Method]]
    beside: ClassVar[str]
    """How its folder ends; `<beside>_run` is the setting that names one that is there already."""

    @abstractmethod
    def second_step(self, config: RunConfig, benchmark: Benchmark, first: RunFolder) -> SecondStep:
        """What its training starts from."""

    def check_first(self, first: RunFolder, config: RunConfig, benchmark: Benchmark) -> None:
        """Refuses a run that was given and cannot be the first step."""
        self.first().check_runs([first])

    def given(self, config: RunConfig) -> Path | None:
        """The run of the first step, if it is there already."""
        return getattr(self.settings(config.model), f"{self.beside}_run")

    def first_step(self, config: RunConfig) -> RunConfig | None:
        """A run of the first method, unless one is given."""
        return None if self.given(config) is not None else config.of_method(self.first.name)

    def after(self, config: RunConfig, first: Path) -> RunConfig:
        """The same with the run that was trained."""
        own = self.settings(config.model).model_copy(update={f"{self.beside}_run": first})
        model = config.model.model_copy(update={self.name: own})
        return config.model_copy(update={"model": model})

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains both steps, or the second alone where the first is given."""
        self.check_installed()
        resume, console = options.get("resume", False), options.get("console")
        RunFolder(out).check_place(config, make_record(benchmark), resume=resume)
        step = self.first_step(config)
        if step is not None:
            beside = Path(f"{out}-{self.beside}")
            first = self.first().train(step, benchmark, beside, resume=True, console=console)
        else:
            first = RunFolder(self.given(config) or out)
            self.check_first(first, config, benchmark)
        second = self.second_step(config, benchmark, first)
        return train_then(None, config, benchmark, out, **options, second=second)
