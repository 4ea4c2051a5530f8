"""The paper's experimental appendix against the configurations, setting by setting."""

import math
import re
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from kepsvgp.config.file import load_config
from kepsvgp.config.sections import ObjectiveConfig
from kepsvgp.data.benchmark import random_split
from kepsvgp.data.sets import cola, imdb
from kepsvgp.errors import UserError
from kepsvgp.models import ImageShape, build_model
from kepsvgp.paper.chosen import find
from kepsvgp.paper.study import Study
from kepsvgp.training.steps import learning_rate
from tools.tables import APPENDIX, BESIDE, PROGRAM

DATASETS = ("cifar10", "cifar100", "imdb", "cola")


def differing(config: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name, value in wanted.items() if config[name] != value}


@pytest.mark.parametrize("variant", ["text", "program", "ours"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_numbers_of_the_appendix_are_those_of_the_variants(dataset: str, variant: str) -> None:
    config = load_config(dataset, variant=variant).identity()

    differing_names = set(differing(config, APPENDIX[dataset]))
    # the paper's η weighs J², and ours another loss
    assert differing_names == ({"objective.ksvd_weight"} if variant == "ours" else set())


@pytest.mark.parametrize("dataset", BESIDE)
def test_splits_have_the_sizes_of_the_appendix(dataset: str) -> None:
    def sizes_of(variant: str) -> list[int]:
        data = load_config(dataset, variant=variant).data
        split = {
            "cifar10": lambda: random_split(50_000, val=5_000, seed=data.seed),
            "imdb": lambda: imdb._split(data, imdb.REVIEWS),
            "cola": lambda: cola._split(data, *accumulate(cola.Sizes()[:2])),
        }[dataset]()
        # CIFAR's test set is a file of its own
        return [len(split.train), len(split.val), len(split.test) or 10_000]

    sizes = sizes_of("text")
    if dataset == "cola":
        sizes = [sizes[0] + sizes[1], sizes[1], sizes[2], *sizes_of("program")]
    else:
        assert sizes_of("program") == sizes

    assert [
        int(n) for n in re.findall(r"\d+", BESIDE[dataset]["examples"].replace(",", ""))
    ] == sizes


def test_rest_of_the_appendix_is_as_the_page_says() -> None:
    images = build_model(load_config("cifar10").model, ImageShape(3, 32, 32), 10)

    assert BESIDE["cifar10"]["tokens"].startswith(f"{len(images.positions)},")
    assert find("table4").paper_settings["cifar10"][0] == "model.depth=5"
    for dataset in ("imdb", "cola"):
        depth = load_config(dataset).model.depth
        assert f"{depth}" == BESIDE[dataset]["depth in tables 4 and 8"]
        assert dataset not in find("table4").paper_settings
    assert Study(dataset="imdb").seeds == int(BESIDE["imdb"]["seeds, members of an ensemble"])


@pytest.mark.parametrize("dataset", DATASETS)
def test_program_has_the_settings_of_the_authors_scripts(dataset: str) -> None:
    config = load_config(dataset, variant="program").identity()

    assert differing(config, PROGRAM["all"] | PROGRAM[dataset]) == {}


def test_both_cifars_share_their_settings() -> None:
    # the page has one column for them
    for variant in ("text", "program", "ours"):
        ten, hundred = (load_config(d, variant=variant).identity() for d in DATASETS[:2])
        assert [name for name in ten if ten[name] != hundred[name]] == ["data.name"]


def test_variants_leave_the_budget_of_a_profile_alone() -> None:
    budget = ("data.train_limit", "data.val_limit", "train.epochs", "train.lr", "model.dim")
    for name in ("digits-small", "cifar10-small", "imdb-small", "cola-small"):
        ours = load_config(name).identity()
        for variant in ("text", "program"):
            theirs = load_config(name, variant=variant).identity()
            assert differing(theirs, {key: ours[key] for key in budget}) == {}


def test_cosine_of_the_program_is_cut_off_by_the_end_of_training() -> None:
    program, text = (load_config("imdb", variant=v).train for v in ("program", "text"))
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=program.lr)
    cosine = CosineAnnealingLR(optimizer, T_max=program.epochs, eta_min=program.min_lr)

    # one step an epoch, as the program has its rates
    for step in range(5, 20):
        assert math.isclose(learning_rate(step, 1, program), cosine.get_last_lr()[0])
        optimizer.step()
        cosine.step()
    assert math.isclose(learning_rate(19, 1, text), text.min_lr)
    shorter = load_config("imdb", ["train.epochs=7"], variant="program")
    assert shorter.train.decay_epochs == 7


def test_what_is_asked_for_wins_over_the_variant() -> None:
    asked = ["model.kep.noise=joint", "method=msp"]

    config = load_config("cola", asked, variant="program")

    assert config.model.model_dump()["kep"]["noise"] == "joint"
    # the authors decay softmax models less
    assert config.train.weight_decay == 1e-5
    assert load_config("cola", variant="program").train.weight_decay == 5e-5


@pytest.mark.parametrize(("method", "average"), [("kep", "logits"), ("sgpa", "probs")])
def test_program_averages_logits_of_its_own_method_alone(method: str, average: str) -> None:
    for dataset in ("digits", *DATASETS):
        config = load_config(dataset, [f"method={method}"], variant="program")
        assert config.prediction.average == average


def test_whole_kl_is_a_rule_and_no_number() -> None:
    objective = ObjectiveConfig(kl_weight="whole")

    assert [objective.kl_weight_for(size) for size in (7, 7_696)] == [7, 7_696]
    assert ObjectiveConfig(kl_weight=3).kl_weight_for(7_696) == 3


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(UserError, match=r"text, program, ours; got 'programme'.*mean program"):
        load_config("digits", variant="programme")
