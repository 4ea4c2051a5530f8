from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import families
import jaxtyping
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.onnx._internal.exporter import _onnx_program
from torch.testing import assert_close

from kepsvgp import KEPAttention, convert, export, fit_novelty, predict
from kepsvgp.attention.base import stochastic_layers
from kepsvgp.config.sections import ModelConfig
from kepsvgp.errors import UserError
from kepsvgp.inference import export as deployment
from kepsvgp.inference.calls import logits_with_draws
from kepsvgp.methods.kep import KepConfig
from kepsvgp.models import ImageShape, TextShape, build_model

SMALL = ModelConfig(
    depth=2, dim=12, num_heads=2, mlp_dim=13, embedding_dim=12,
    kep=KepConfig(rank=3, posterior_scale=1.0),
)  # fmt: skip


SUFFIX = {"torch": "pt2", "onnx": "onnx"}


def text(batch: int, length: int) -> dict[str, Tensor]:
    lengths = torch.arange(batch).unsqueeze(1) % length + 1
    mask = torch.arange(length) < lengths
    return {"tokens": torch.randint(17, (batch, length)), "mask": mask}


def make(name: str, batch: int = 3, length: int = 7) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    if name == "vit":
        model, _ = families.make("vit")
        convert(model, rank=3, posterior_scale=1.0)
        return model, {"pixel_values": torch.randn(batch, 3, 10, 10)}
    if name == "bert":
        model, _ = families.make("bert")
        convert(model, [1], rank=3, posterior_scale=1.0)
        return model, families.text_batch([max(1, length - i) for i in range(batch)])
    if name == "own image":
        model = build_model(SMALL, ImageShape(3, 8, 8), 5, "kep")
        return model, torch.randn(batch, 3, 8, 8)
    model = build_model(SMALL, TextShape(vocab_size=17), 5, "kep")
    return model, text(batch, length)


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """No checks of shapes: while a graph is traced sizes are symbols, which they would fix."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("name", "format", "draws"),
    [
        *((name, "torch", "fixed") for name in ("vit", "bert", "own image", "own text")),
        *((name, "onnx", "fixed") for name in ("vit", "bert", "own image", "own text")),
        ("bert", "onnx", "input"),
        ("own text", "torch", "input"),
    ],
)
def test_graph_equals_the_model_at_other_sizes(
    name: str, format: Any, draws: Any, tmp_path: Path
) -> None:
    model, inputs = make(name)
    # the name says the format
    path = export(
        model, tmp_path / f"graph.{SUFFIX[format]}", inputs, draws=draws, num_samples=2,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    graph = load(path, format)

    for batch, length in ((1, 5), (4, 11), (2, 1)):
        _, other = make(name, batch, length)
        generator = torch.Generator().manual_seed(0)
        if draws == "fixed":
            expected = predict(model, other, num_samples=2, generator=generator)
            probs, aleatoric = graph(other)
            assert_close(probs, expected.probs, rtol=0, atol=1e-4)
            assert_close(aleatoric, expected.aleatoric, rtol=0, atol=1e-4)
        else:
            layers = stochastic_layers(model)
            u = [layer.draw(2, generator=generator).detach() for layer in layers]
            with torch.no_grad():
                held = dict(zip(layers, u, strict=True))
                logits = logits_with_draws(model.eval(), other, held, mirrored=True)
            assert_close(graph(other, u)[0], logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("format", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["bert", "own image"])
def test_graph_has_the_novelty_that_was_fitted(name: str, format: str, tmp_path: Path) -> None:
    model, inputs = make(name)
    fit_novelty(model, [make(name, 20)[1] for _ in range(3)], calibration=[make(name, 21)[1]])
    path = export(
        model, tmp_path / f"graph.{SUFFIX[format]}", inputs, num_samples=2,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    _, other = make(name, 5, 4)
    expected = predict(model, other, num_samples=2, generator=torch.Generator().manual_seed(0))
    _, _, novelty, p_value = load(path, format)(other)
    assert_close(novelty, expected.novelty, rtol=1e-3, atol=1e-3)
    assert_close(p_value, expected.novelty_p, rtol=0, atol=0.07)


def test_compiled_models_have_the_same_novelty() -> None:
    model, inputs = make("own text", 13)
    fit_novelty(model, [make("own text", 13)[1] for _ in range(3)])
    found = [
        predict(each, inputs, generator=torch.Generator().manual_seed(0)).novelty
        for each in (model, torch.compile(model, backend="eager"))
    ]
    assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def load(path: Path, format: str) -> Callable[..., list[Tensor]]:
    """The graph as a function of inputs and, where it takes them, draws."""
    if format == "torch":
        module = torch.export.load(path).module()

        def call_torch(inputs: Any, draws: list[Tensor] | None = None) -> list[Tensor]:
            outputs = module(inputs=inputs) if draws is None else module(inputs=inputs, draws=draws)
            return list(outputs) if isinstance(outputs, tuple) else [outputs]

        return call_torch
    session = onnxruntime.InferenceSession(path)

    def call_onnx(inputs: Any, draws: list[Tensor] | None = None) -> list[Tensor]:
        named = inputs if isinstance(inputs, dict) else {"input": inputs}
        named = named | {f"draws_{i}": u for i, u in enumerate(draws or [])}
        feed = {each.name: named[each.name].numpy() for each in session.get_inputs()}
        return [torch.as_tensor(value) for value in session.run(None, feed)]

    return call_onnx


def test_export_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model, inputs = make("bert")
    model.train()

    export(model, tmp_path / "graph.pt2", inputs, num_samples=2)

    assert model.training
    assert all(layer._held_draws is None for layer in stochastic_layers(model))


def test_export_of_a_single_example_still_has_a_free_batch(tmp_path: Path) -> None:
    model, inputs = make("own image", batch=1)

    path = export(model, tmp_path / "graph.pt2", inputs, num_samples=2)

    assert load(path, "torch")(torch.randn(4, 3, 8, 8))[0].shape == (4, 5)


def test_export_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 4)
    with pytest.raises(UserError, match="must have a KEP layer"):
        export(torch.nn.Linear(4, 4), tmp_path / "graph", x)
    with pytest.raises(UserError, match="noise='joint'"):
        export(KEPAttention(4, 1, noise="token"), tmp_path / "graph", x)
    for name, format in (("graph.onnx", "torch"), ("graph.PT2", "onnx")):
        with pytest.raises(UserError, match="must fit the name of the file"):
            export(KEPAttention(4, 1), tmp_path / name, x, format=format)
    assert not list(tmp_path.iterdir())


def test_export_takes_the_format_that_is_said_where_the_name_says_none(tmp_path: Path) -> None:
    model, inputs = make("own image")

    one = export(model, tmp_path / "one", inputs, num_samples=2)
    two = export(model, tmp_path / "two.bin", inputs, format="onnx", num_samples=2)

    for path, format in ((one, "torch"), (two, "onnx")):
        assert load(path, format)(inputs)[0].shape == (3, 5)


class OfIds(torch.nn.Module):
    """Token ids, with or without their number, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(17, 4), torch.nn.Linear(4, 2)
        self.attention = KEPAttention(4, 1, rank=2, posterior_scale=1.0)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        pooled = self.attention(self.embed(ids)).mean(dim=1)
        return self.head(pooled if lengths is None else pooled * lengths.unsqueeze(1))


@pytest.mark.parametrize("format", ["torch", "onnx"])
@pytest.mark.parametrize("has_lengths", [True, False])
def test_length_of_token_ids_is_free(format, has_lengths: bool, tmp_path: Path) -> None:
    def inputs(batch: int, length: int) -> Any:
        ids = torch.randint(17, (batch, length))
        return {"ids": ids, "lengths": torch.arange(batch)} if has_lengths else ids

    model = OfIds()
    path = tmp_path / f"graph.{SUFFIX[format]}"
    export(model, path, inputs(3, 6), num_samples=2, generator=torch.Generator().manual_seed(0))

    longer = inputs(4, 9)
    expected = predict(model, longer, num_samples=2, generator=torch.Generator().manual_seed(0))
    assert_close(load(path, format)(longer)[0], expected.probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_model_of_one_length_is_exported(format, tmp_path: Path) -> None:
    class OfOneLength(OfIds):
        def forward(self, ids: Tensor) -> Tensor:
            tokens = self.embed(ids) + torch.linspace(0, 1, 24).view(6, 4)
            return self.head(self.attention(tokens).mean(dim=1))

    path = tmp_path / f"graph.{SUFFIX[format]}"
    export(OfOneLength(), path, torch.randint(17, (3, 6)), num_samples=2)

    assert load(path, format)(torch.randint(17, (5, 6)))[0].shape == (5, 2)


def test_export_tells_mistakes(tmp_path: Path) -> None:
    model, ids = OfIds(), torch.randint(17, (3, 6))
    with pytest.raises(UserError, match="dynamic must name the axes of input; got ids"):
        export(model, tmp_path / "graph.pt2", ids, dynamic={"ids": {0: "batch"}})
    with pytest.raises(UserError, match="num_samples must be at least 1"):
        export(model, tmp_path / "graph.pt2", ids, num_samples=0)


def test_weights_of_a_large_model_come_along(tmp_path: Path, monkeypatch) -> None:
    """torch gives weights above 1.5 GB a file of their own; here above a kilobyte."""
    monkeypatch.setattr(_onnx_program, "_LARGE_MODEL_THRESHOLD", 1000)
    model, inputs = make("own image")
    for _ in range(2):
        path = export(model, tmp_path / "out" / "graph.onnx", inputs, num_samples=2)

        assert {file.name for file in path.parent.iterdir()} == {"graph.onnx", "graph.onnx.data"}
        assert load(path, "onnx")(inputs)[0].shape == (3, 5)
    link = tmp_path / "graph.onnx"
    link.symlink_to(path)
    export(model, link, inputs, num_samples=2)
    assert load(path, "onnx")(inputs)[0].shape == (3, 5)
    assert {file.name for file in tmp_path.iterdir()} == {"graph.onnx", "out"}


@pytest.mark.parametrize(("dtype", "is_close"), [(torch.float32, False), (torch.bfloat16, True)])
def test_graphs_may_differ_by_the_rounding_of_their_numbers(dtype, is_close: bool) -> None:
    graph = torch.nn.Linear(2, 2).to(dtype)
    expected, actual = torch.zeros(3), torch.full((3,), 1e-3)

    if is_close:
        deployment._check_equal(graph, expected, actual)
        actual += 0.1
    with pytest.raises(RuntimeError, match="differs from the model"):
        deployment._check_equal(graph, expected, actual)
