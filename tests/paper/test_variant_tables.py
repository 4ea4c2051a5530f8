"""A variant from the command line down to the runs, and up again to the table that names it."""

import json
import warnings

import pytest
from commands import call

from kepsvgp.metrics import UndefinedMetricWarning
from kepsvgp.paper.declarations import MethodRow
from kepsvgp.paper.records import OutputRoot
from kepsvgp.paper.request import plan_request
from kepsvgp.paper.study import Study
from kepsvgp.paper.work import perform

KEYS = ("model.kep.projection", "model.kep.noise", "objective.kl_weight", "prediction.average")
# the end of a table's name, its note, and how its runs of KEP-SVGP differ
VARIANTS = {
    "text": ("-text", "the paper's equations as printed", ("free", "joint", 1.0, "probs")),
    "program": (
        "-program",
        "what the authors' program does",
        ("landmark", "token", "whole", "logits"),
    ),
    "ours": ("", "this library's own choices", ("dual", "joint", 1.0, "probs")),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_table_of_a_variant_names_it_and_is_of_its_runs(tiny, tmp_path, variant) -> None:
    ending, words, wanted = VARIANTS[variant]
    what, out = ("table1", "train.epochs=1"), tmp_path / "out"
    plan = plan_request(what, config=tiny, rows=("msp", "kep"), seeds=1, variant=variant)
    with warnings.catch_warnings():
        # a model of one epoch may be always wrong
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for task in plan.tasks:
            assert perform(task, out) == {}

        # all is done but the table
        options = ("--config", tiny, "--rows", "msp,kep", "--seeds", 1, "--variant", variant)
        assert call("reproduce", *what, *options, "--resamples", 9, "--out", out) == 0

    tables = {path.stem for path in (out / "tables").iterdir()}
    assert tables == {f"table1-digits-tiny{ending}"}
    content = json.loads((out / "tables" / f"{tables.pop()}.json").read_text())
    assert f"Variant {variant}: {words}." in content["notes"]
    assert content["study"]["variant"] == variant
    assert {cell["row"] for cell in content["cells"] if cell["mean"] is not None} == {"msp", "kep"}
    runs = [OutputRoot(out).run(name).folder.config() for name in OutputRoot(out).run_names()]
    configs = {config.method: config.identity() for config in runs}
    assert len(runs) == len(configs) == 2
    assert tuple(configs["kep"][key] for key in KEYS) == wanted
    assert configs["msp"]["prediction.average"] == "probs"


def test_row_may_be_of_another_variant_than_its_study(tiny) -> None:
    study = Study(dataset="digits", file=tiny, variant="text")

    for row_variant, projection in (("", "free"), ("program", "landmark")):
        row = MethodRow("kep", "KEP-SVGP", "kep", variant=row_variant)
        assert study.config(row).identity()["model.kep.projection"] == projection
