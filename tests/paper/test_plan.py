from pathlib import Path

import pytest

from kepsvgp.config.file import parse_config
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.paper.chosen import choose, find
from kepsvgp.paper.declarations import MethodRow
from kepsvgp.paper.plan import Evaluation, Task, make_plan, merged, plan_exhibit
from kepsvgp.paper.study import Study, run_name
from kepsvgp.paper.tables import FIGURES, TABLES


def normalised(given: RunConfig) -> RunConfig:
    return find_method(given.method).normalised(given)


@pytest.fixture
def study(tiny) -> Study:
    return Study(dataset="digits", seeds=2, file=tiny)


def tasks_of(exhibit: str, study: Study) -> tuple[Task, ...]:
    return make_plan([find(exhibit)], study.dataset, lambda *_: study).tasks


def first_task(exhibit: str, study: Study, row: int = 0) -> Task:
    planned = plan_exhibit(find(exhibit), study)
    return planned.tasks[planned.rows[row].key, 0]


def names(exhibit: str, study: Study) -> set[str]:
    return {task.name for task in tasks_of(exhibit, study)}


def config(**values) -> RunConfig:
    return parse_config(values)


def test_tables_share_runs(study) -> None:
    # MSP, KEP, SV-DKL and SGPA of table 1 are all that tables 2, 3, 4, 7, 8 need
    assert len(names("table1", study)) == 2 * 4
    for other in ("table2", "table3", "table4", "table7", "table8", "figure2", "figure5"):
        assert names(other, study) <= names("table1", study)
    # all layers, both branches, added: in table 5 and in figure 4
    assert names("table5", study) & names("figure4", study)
    everything = {name for e in (*TABLES, *FIGURES) for name in names(e.name, study)}
    # eight in table 9, whose weights of the KSVD loss are none of ours
    assert len(everything) == 2 * 17


def test_defaults_make_each_choice_once() -> None:
    for dataset in ("digits", "cola"):
        study = Study(dataset=dataset, profile="small", seeds=1)
        assert len(names("defaults", study)) == 12


OF_KEP = {
    "model": {"kep": {"rank": 3}, "kep_layers": "all"},
    "objective": {"ksvd_weight": 5.0, "kl_weight": 7.0},
}


@pytest.mark.parametrize(
    ("method", "change"),
    [
        *((method, OF_KEP) for method in ("msp", "sgpa", "svdkl")),
        ("msp", {"model": {"sgpa": {"num_inducing": 7}}}),
        # where data are and how a run is watched
        ("kep", {"data": {"root": "elsewhere"}, "versions": {"torch": "0"}}),
        ("kep", {"train": {"save_steps": 7, "tensorboard": True}}),
    ],
)
def test_run_name_does_not_depend_on_what_cannot_matter(method, change) -> None:
    plain, other = (normalised(config(method=method, **part)) for part in ({}, change))
    assert run_name(plain) == run_name(other)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"method": "msp"},
        {"model": {"kep": {"rank": 3}}},
        {"objective": {"ksvd_weight": 5.0}},
        {"train": {"lr": 3e-4}},
        {"data": {"train_limit": 9}},
        {"prediction": {"num_samples": 3}},
    ],
)
def test_run_name_depends_on_what_decides_a_run(change) -> None:
    assert run_name(normalised(config(**change))) != run_name(normalised(config()))


def test_merge_auto_is_one_run_with_what_it_means() -> None:
    for data, merge in (("digits", "concat"), ("cola", "add")):
        auto = normalised(config(data={"name": data}))
        named = normalised(config(data={"name": data}, model={"kep": {"merge": merge}}))
        assert auto == named


def test_svdkl_starts_from_the_softmax_run_of_its_seed(study) -> None:
    tasks = tasks_of("table1", study)
    svdkl = [task for task in tasks if task.config.method == "svdkl"]
    softmax = {task.config.seed: task.name for task in tasks if task.config.method == "msp"}
    assert len(svdkl) == 2
    for task in svdkl:
        assert task.after == (softmax[task.config.seed],)
        assert task.config.model.svdkl.softmax_run == Path(softmax[task.config.seed])
        # what it starts from stands before it
        order = [t.name for t in tasks]
        assert order.index(task.after[0]) < order.index(task.name)


def test_merged_tasks_have_all_evaluations_once() -> None:
    first, second, third = (
        Evaluation("kep", "score", "test"),
        Evaluation("kep", "score", "shift"),
        Evaluation("kep+temperature", "score", "test"),
    )
    tasks = [
        Task(name="a", config=config(), evaluations=(first, second)),
        Task(name="b", config=config(), evaluations=(first,)),
        Task(name="a", config=config(), evaluations=(third, first), inspected="last"),
    ]

    both = merged(tasks)

    assert [task.name for task in both] == ["a", "b"]
    assert both[0].evaluations == (first, second, third)
    assert both[0].inspected == "last"
    assert both[1].inspected is None


def test_task_survives_json(study) -> None:
    for task in tasks_of("table7", study):
        assert Task.model_validate_json(task.model_dump_json()) == task


def test_variants_win_over_overrides_and_overrides_over_the_file(study) -> None:
    changed = study.model_copy(
        update={"overrides": ("train.epochs=1", "objective.ksvd_weight=7", "model.dim=24")}
    )
    task = first_task("table9", changed, row=1)
    assert task.config.objective.ksvd_weight == 1
    assert task.config.train.epochs == 1
    assert task.config.model.dim == 24
    assert task.config.model.num_heads == 2


def test_places_are_those_of_the_folder_that_the_sweep_was_started_in(
    study, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = study.model_copy(update={"overrides": ("data.root=mine", "data.vocabulary=words")})
    task = first_task("table1", changed)
    assert (task.config.data.root, task.config.data.vocabulary) == (
        tmp_path / "mine",
        tmp_path / "words",
    )


def test_paper_architectures_are_those_of_table_4_alone(tiny) -> None:
    assert first_task("table4", Study(dataset="digits", file=tiny)).config.model.depth == 2
    assert first_task("table1", Study(dataset="cifar10")).config.model.depth == 7


@pytest.mark.parametrize("variant", ["text", "program", "ours"])
@pytest.mark.parametrize(("dataset", "depth"), [("cifar10", 5), ("cifar100", 6)])
def test_tables_4_and_8_have_the_settings_of_sgpa_s_program(dataset, depth, variant) -> None:
    for exhibit in ("table4", "table8"):
        planned = plan_exhibit(find(exhibit), Study(dataset=dataset, variant=variant))
        for row in planned.rows:
            theirs = planned.tasks[row.key, 0].config.identity()
            assert {name: theirs[name] for name in OF_SGPA} == OF_SGPA
            assert theirs["model.depth"] == depth
        notes = " ".join(planned.exhibit.paper_notes[dataset])
        assert "Adam that begins anew" in notes
        assert ("depth alone is published" in notes) == (dataset == "cifar100")


OF_SGPA = {
    "model.dim": 128,
    "model.num_heads": 4,
    "model.mlp_dim": 128,
    "data.normalisation": "exact",
    "train.augment": False,
    "train.epochs": 500,
    "train.lr": 5e-4,
    "train.weight_decay": 0,
    "train.schedule": "linear",
    "train.decay_epochs": 480,
}


@pytest.mark.parametrize(
    ("exhibit", "dataset", "told"),
    [
        ("table2", "imdb", "shifted test sets"),
        ("table3", "cola", "out-of-distribution"),
        ("table6", "imdb", "concatenation"),
        ("figure3", "imdb", "out-of-distribution"),
    ],
)
def test_a_data_set_without_what_a_table_is_about_is_refused(exhibit, dataset, told) -> None:
    with pytest.raises(UserError, match=told):
        tasks_of(exhibit, Study(dataset=dataset))


def test_a_configuration_of_another_data_set_is_refused(tiny) -> None:
    with pytest.raises(UserError, match="must be that of the configuration, digits"):
        Study(dataset="cola", file=tiny).config(MethodRow("msp", "MSP", "msp"))


def test_rows_can_be_chosen_and_added() -> None:
    table = choose(["table1"], ["kep", "sngp", "kepsvgp.methods.primal:Primal"])[0]
    assert [row.key for row in table.rows] == ["kep", "sngp", "primal"]
    with pytest.raises(UserError, match="--rows must be among"):
        choose(["table1"], ["kepp"])
    with pytest.raises(UserError, match="must leave table6 a row"):
        choose(["table6"], ["msp"])


def test_tables_are_made_for_all_data_sets_of_the_paper_by_default() -> None:
    plan = make_plan(choose(["table4", "figure2"]), None, lambda _, name: Study(dataset=name))
    datasets = [planned.study.dataset for planned in plan.exhibits]
    assert datasets == ["cifar10", "cifar100", "imdb", "cola", "cifar10"]
