"""A plan in an output root: what is left of it, and how long that may take."""

from collections.abc import Sequence
from pathlib import Path

from kepsvgp.errors import UserError
from kepsvgp.paper.costs import Costs, Estimate
from kepsvgp.paper.plan import Plan, PlannedExhibit, Task, Timing
from kepsvgp.paper.records import Left, OutputRoot, left_of

# trained models that a report page can show side by side
MOST_REPORTED = 8


class Sweep:
    """The work of a plan; every run folder is read once before it, and once after each job."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.root = plan, OutputRoot(out)
        self.left = {task.name: left_of(task, self.root.run(task.name)) for task in plan.tasks}
        self._by_name = {task.name: task for task in plan.tasks}
        self._costs: Costs | None = None

    @property
    def tasks_left(self) -> list[Task]:
        """The tasks that are not done."""
        return [task for task in self.plan.tasks if self.left[task.name] != Left()]

    @property
    def timings_left(self) -> list[Timing]:
        """The stopwatch measurements that are not there."""
        return [t for t in self.plan.timings if not self.root.timing_file(t).exists()]

    def ended(self, name: str) -> None:
        """Reads what a job has made of its run."""
        if name in self._by_name:
            task = self._by_name[name]
            self.left[name] = left_of(task, self.root.run(name))
            self._count(name)

    def estimate(self, *, jobs: int = 1) -> Estimate:
        """Time for what is left; what runs have cost is not read where nothing is."""
        left = [(task, self.left[task.name]) for task in self.tasks_left]
        if left and self._costs is None:
            self._costs = Costs(task.config for task, _ in left)
            for name in self.root.run_names():
                self._count(name)
        return Estimate(0.0, 0) if self._costs is None else self._costs.estimate(left, jobs=jobs)

    def _count(self, name: str) -> None:
        run, task = self.root.run(name), self._by_name.get(name)
        try:
            if self._costs is not None and run.folder.config_file.exists():
                self._costs.add(run.folder.config() if task is None else task.config, run)
        except UserError:
            # its process says what is wrong; one of another version is no reason to stop
            return


def reported_runs(wanted: Sequence[PlannedExhibit], sweep: Sweep) -> list[Path]:
    """Finished runs that a report compares: all, or those of no variants if there are too many."""
    plain: dict[Path, None] = {}
    every: dict[Path, None] = {}
    for planned in wanted:
        for row in planned.rows:
            for seed in planned.seeds:
                task = planned.tasks[row.key, seed]
                if task.evaluations and _is_done(task, sweep.left[task.name]):
                    path = sweep.root.path / task.name
                    every[path] = None
                    if not row.settings:
                        plain[path] = None
    seeds = max((planned.study.seeds for planned in wanted), default=1)
    return list(plain if plain and len(every) > MOST_REPORTED * seeds else every)


def _is_done(task: Task, left: Left) -> bool:
    """Whether nothing is left of one table's share of a run."""
    looked = task.inspected is None or not left.inspection
    return not left.epochs and looked and not set(task.evaluations) & set(left.evaluations)
