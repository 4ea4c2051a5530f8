"""What a table or a figure is: rows that name runs, columns that name numbers, and claims.

Nothing here trains or measures. `tables` and `figures` say with these words what the paper
shows, `plan` turns that into runs, and `cells` reads the numbers back.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kepsvgp.config.plugins import find_method, short_name
from kepsvgp.data.sets.foreign import distance
from kepsvgp.metrics.registry import METRICS

# data sets of the paper, and the one that needs no file; every table can be made for any of
# them that has what the table is about
DATASETS = ("digits", "cifar10", "cifar100", "imdb", "cola")
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imdb": "IMDB",
    "cola": "CoLA",
    "svhn": "SVHN",
    "lsun": "LSUN",
    "photographs": "photographs",
}
TEXTS = ("imdb", "cola")


def title_of(dataset: str) -> str:
    """What a data set is called."""
    return TITLES.get(dataset, short_name(dataset))


# the sets from elsewhere that each image set is told from
FOREIGN = {
    "digits": ("photographs",),
    "cifar10": ("svhn", "cifar100", "lsun"),
    "cifar100": ("svhn", "cifar10", "lsun"),
}
# data sets with shifted test sets
SHIFTED = ("digits", "cifar10", "cifar100", "cola")

NumberSource = Literal["test", "val", "shift", "ood", "time"]


@dataclass(frozen=True)
class MethodRow:
    """A method, or a variant of one, as a line of a table.

    Attributes:
        key: Its name in the published numbers.
        title: Its name in the output.
        trained: The method that is trained.
        posthoc: The post-hoc method that predicts with the trained model; none by default.
        settings: Overrides of the configuration that make the variant.
        is_ensemble: Whether the seeds are averaged into one prediction.
        datasets: The data sets of the paper that have this row; None for all. Data sets that
            the paper's table does not have get every row.
        group: Heading under which the row stands.
        score: What tells other data from the test set, a name of the registry's `OOD_SCORES`; the
            confidence by default.
        variant: The variant of the paper's that it is, where that is not the study's.
    """

    key: str
    title: str
    trained: str
    posthoc: str = ""
    settings: tuple[str, ...] = ()
    is_ensemble: bool = False
    datasets: tuple[str, ...] | None = None
    group: str = ""
    score: str = ""
    variant: str = ""

    @property
    def method(self) -> str:
        """The method's name in a run's results: post-hoc methods of softmax runs stand alone."""
        return find_method(f"{self.trained}+{self.posthoc}" if self.posthoc else self.trained).name


@dataclass(frozen=True)
class MetricColumn:
    """A number that every row has.

    Attributes:
        metric: Its metric, a name of the registry.
        source: Where it comes from: the test set, the validation set, the mean over all shifted
            sets, one set of other data, or a stopwatch.
        foreign: The set of other data, for the source `ood`.
    """

    metric: str
    source: NumberSource
    foreign: str = ""

    @property
    def key(self) -> str:
        """Its name in the published numbers."""
        return f"{self.metric}/{self.foreign}" if self.foreign else self.metric

    @property
    def title(self) -> str:
        """Its heading, with an arrow towards the better side."""
        metric = METRICS[self.metric]
        where = f" {TITLES[self.foreign]} ({distance(self.foreign)})" if self.foreign else ""
        return f"{metric.title}{where} {metric.arrow}"


class Pair(NamedTuple):
    """Two rows that the paper compares; its numbers say for each column which is better."""

    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A figure of the paper, and what a table has in common with it.

    Attributes:
        name: `table1` … `table9` and `figure2` … `figure5` as in the paper; others are ours.
        numbers: The table of the paper whose numbers stand beside; its own by default.
        config: The shipped configuration that its runs start from; the profile's by default.
        checkpoint: Which weights are measured; those that the run's rule selected by default.
        title: What it shows.
        datasets: The data sets that it is about.
        rows: The models in it, in order.
        splits: The sets on which the models of a figure are measured.
        needs: What a data set must have.
        paper_settings: Overrides by data set that belong to the paper's profile alone.
        paper_notes: What should be known about these, by data set.
        notes: What should be known about how the numbers are made.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    splits: tuple[str, ...] = ()
    needs: tuple[Literal["images", "shift", "ood"], ...] = ()
    paper_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    paper_notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    numbers: str = ""
    config: str = ""
    checkpoint: Literal["last", "score", "nll"] | None = None
    is_inspected: bool = False
    """Whether the runs' attention kernels are looked at."""

    def rows_for(self, dataset: str) -> tuple[MethodRow, ...]:
        """The rows of a data set."""
        if dataset not in self.datasets:
            return self.rows
        return tuple(r for r in self.rows if r.datasets is None or dataset in r.datasets)

    def title_for(self, dataset: str) -> str:
        """Number, if it is the paper's, subject and data set."""
        subject = f"{self.title}: {title_of(dataset)}"
        kind, number = self.name[:-1].capitalize(), self.name[-1]
        return f"{kind} {number}. {subject}" if self.is_published else subject

    @property
    def is_published(self) -> bool:
        """Whether the paper has it."""
        return self.name.startswith(("table", "figure"))

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The sets on which the models are measured; see `plan.Evaluation`."""
        return self.splits


@dataclass(frozen=True, kw_only=True)
class PaperTable(Exhibit):
    """A table of the paper, or one of ours.

    Attributes:
        metrics: Metrics of its columns; `score` is MCC for CoLA and accuracy elsewhere.
        source: Where the metrics come from, but for those of the stopwatch.
        pairs: The comparisons whose outcome the paper claims.
    """

    metrics: tuple[str, ...]
    source: NumberSource = "test"
    pairs: tuple[Pair, ...] = ()

    def columns_for(self, dataset: str) -> tuple[MetricColumn, ...]:
        """The columns of a data set."""
        if self.source == "ood":
            return tuple(
                MetricColumn(metric, "ood", name)
                for metric in self.metrics
                for name in FOREIGN[dataset]
            )
        return tuple(_column(metric, self.source, dataset) for metric in self.metrics)

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The set that its numbers are of; other data are told from the test set."""
        return ("test", "ood") if self.source == "ood" else (self.source,)

    @property
    def is_timed(self) -> bool:
        """Whether some column is measured with a stopwatch."""
        return any(_is_timed(metric) for metric in self.metrics)


def _column(metric: str, source: NumberSource, dataset: str) -> MetricColumn:
    if metric == "score":
        return MetricColumn("mcc" if dataset == "cola" else "accuracy", source)
    return MetricColumn(metric, "time" if _is_timed(metric) else source)


def _is_timed(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].needs == "stopwatch"
