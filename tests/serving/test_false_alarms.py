"""False alarms of runs, simulated: how often familiar inputs are taken for foreign."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from methods.cases import CONFIG
from torch.testing import assert_close

from kepsvgp.attention.novelty import last_attention
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, batches
from kepsvgp.data.examples import Ragged, TextExamples
from kepsvgp.inference.prediction import answer, predict_batches
from kepsvgp.methods.afterwards import show_familiar
from kepsvgp.models import TextShape, build_model
from kepsvgp.serving.saved import SavedModel

VAL, REPEATS, ALPHA = 40, 80, 0.1


def test_runs_keep_their_rate_of_false_alarms() -> None:
    torch.manual_seed(0)
    # texts whose novelty depends on their length, by which batches are sorted
    lengths = torch.randint(1, 20, (1000,)).tolist()
    texts = [torch.randint(1, 17, (n,)).tolist() for n in lengths]
    places = torch.arange(len(texts))
    pool = TextExamples(places % 3, places, tokens=Ragged.of(texts), texts=(), places=places)
    train, rest = pool.subset(places[:60]), pool.subset(places[60:])
    model = build_model(CONFIG, TextShape(17), 3, "msp").eval()
    config = RunConfig(method="msp")
    empty = Benchmark("made", "text", ("a", "b", "c"), train, rest, rest, seed=0)

    rates = []
    for seed in range(REPEATS):
        order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))
        val, new = rest.subset(order[:VAL]), rest.subset(order[VAL : 5 * VAL])
        show_familiar(model, config, replace(empty, val=val), batches(train, 64, bucket=True))
        answered, asked = (predict_batches(model, batches(part, 200)) for part in (val, new))
        saved = SavedModel(
            Path("nowhere"), "text", empty.classes, model,
            *[partial(next, iter(()))] * 3, calibrate=partial(lambda found: found, answered),
        )  # fmt: skip
        rule = saved.abstainer(None, 0.95, ALPHA)
        rates.append(rule.foreign(asked).double().mean())
        # the rule has other examples than those that gave the scale
        assert rule.size == 30
        parts = answer(model, val.inputs(torch.arange(0, VAL, 4)), 1, None).parts
        layer = last_attention(model)
        assert parts is not None
        assert layer is not None
        assert layer.novelty is not None
        assert_close(layer.novelty.center, parts.mean(dim=0))

    # of n exchangeable examples the rule has ⌊(n + 1) α⌋ / (n + 1) foreign on average
    expected = int((0.75 * VAL + 1) * ALPHA) / (0.75 * VAL + 1)
    found = torch.stack(rates)
    error = found.std() / REPEATS**0.5
    assert abs(found.mean() - expected) < 3 * error
    assert found.mean() <= ALPHA + 3 * error
