import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.attention import KEPAttention, SoftmaxAttention, fixed_draws
from kepsvgp.config.file import load_config
from kepsvgp.config.sections import ModelConfig
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import call
from kepsvgp.methods.kep import KepConfig
from kepsvgp.models import Classifier, ImageShape, TextShape, build_model
from kepsvgp.models.blocks import Block, encode
from kepsvgp.models.text import sinusoids
from kepsvgp.models.vit import patches
from kepsvgp.ops.pooling import mean_pool
from kepsvgp.training.objective import objective

SAMPLE, BATCH, TOKEN, CLASS = 2, 3, 7, 5
SMALL = ModelConfig(
    depth=2, dim=22, num_heads=2, mlp_dim=13, embedding_dim=11, kep=KepConfig(rank=3)
)
IMAGES = ImageShape(channels=3, height=8, width=12)
TEXTS = TextShape(vocab_size=17)
FEATURED = TextShape(vocab_size=17, feature_layers=3, feature_dim=19)


def inputs_for(shape: ImageShape | TextShape, generator: torch.Generator) -> object:
    if isinstance(shape, ImageShape):
        return torch.randn(BATCH, *shape, generator=generator)
    lengths = torch.tensor([[2], [7], [4]])
    inputs: dict[str, Tensor] = {
        "tokens": torch.randint(shape.vocab_size, (BATCH, TOKEN), generator=generator),
        "mask": torch.arange(TOKEN) < lengths,
    }
    if shape.feature_layers:
        size = (BATCH, TOKEN, shape.feature_layers, shape.feature_dim)
        inputs["features"] = torch.randn(size, generator=generator)
    return inputs


@pytest.mark.parametrize("shape", [IMAGES, TEXTS, FEATURED])
@pytest.mark.parametrize("attention", ["msp", "kep", "primal", "sgpa"])
def test_model_gives_one_row_of_logits_an_example(shape, attention, generator) -> None:
    model = build_model(SMALL, shape, CLASS, attention)

    assert call(model, inputs_for(shape, generator)).shape == (BATCH, CLASS)


def test_token_embeddings_begin_with_the_scale_that_was_asked_for() -> None:
    large, small = (
        build_model(
            ModelConfig(embedding_scale=scale), TextShape(vocab_size=1009), CLASS
        ).embedding.weight
        for scale in (1.0, 0.1)
    )

    assert small.requires_grad
    # the error of a standard deviation from 1009 · 128 numbers is 1 / √(2 · 1009 · 128), 0.2 %
    assert_close(large.std(), torch.tensor(1.0), rtol=0.01, atol=0)
    assert_close(small.std(), torch.tensor(0.1), rtol=0.01, atol=0)


def sampled(model: Classifier, inputs: object) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return call(model.eval(), inputs, num_samples=SAMPLE, generator=draws)


def test_features_alone_are_the_model_whose_embeddings_count_for_nothing(generator) -> None:
    alone = build_model(SMALL.model_copy(update={"embedding_dim": 0}), FEATURED, CLASS)
    both = build_model(SMALL, FEATURED, CLASS)
    weights = alone.state_dict()
    assert not any(name.startswith("embedding") for name in weights)
    embedded = torch.zeros(SMALL.dim, SMALL.embedding_dim)
    weights["to_tokens.weight"] = torch.cat([embedded, weights["to_tokens.weight"]], dim=1)
    weights["embedding.weight"] = both.state_dict()["embedding.weight"]
    both.load_state_dict(weights)
    inputs = inputs_for(FEATURED, generator)

    assert_close(sampled(alone, inputs), sampled(both, inputs))


def test_layers_side_by_side_can_be_any_mix_of_them(generator) -> None:
    mixed = build_model(SMALL, FEATURED, CLASS)
    torch.nn.init.normal_(mixed.mix.scores, generator=generator)
    joined = build_model(SMALL.model_copy(update={"encoder_layers": "concat"}), FEATURED, CLASS)
    weights = mixed.state_dict()
    share = weights.pop("mix.scale") * weights.pop("mix.scores").softmax(dim=0)
    embedded, featured = weights["to_tokens.weight"].split([11, 19], dim=1)
    # a layer's map is the shared one times its share
    maps = [embedded, *(each * featured for each in share)]
    joined.load_state_dict(weights | {"to_tokens.weight": torch.cat(maps, dim=1)})
    inputs = inputs_for(FEATURED, generator)

    assert_close(sampled(joined, inputs), sampled(mixed, inputs))


@pytest.mark.parametrize("shape", [IMAGES, TEXTS])
def test_kep_model_puts_samples_first_and_softmax_has_none(shape, generator) -> None:
    inputs = inputs_for(shape, generator)
    softmax, kep = (build_model(SMALL, shape, CLASS, kind).eval() for kind in ("msp", "kep"))

    logits = call(kep, inputs, num_samples=SAMPLE)

    assert logits.shape == (SAMPLE, BATCH, CLASS)
    assert not torch.equal(logits[0], logits[1])
    assert call(softmax, inputs, num_samples=SAMPLE).ndim == 2


def test_softmax_layers_after_the_first_draw_broadcast_over_samples(generator) -> None:
    model = build_model(SMALL.model_copy(update={"depth": 3}), TEXTS, CLASS, "kep")
    blocks = list(model.blocks)
    model.blocks = torch.nn.ModuleList([blocks[0], blocks[2], blocks[1]])

    logits = call(model.eval(), inputs_for(TEXTS, generator), num_samples=SAMPLE)

    assert logits.shape == (SAMPLE, BATCH, CLASS)


@pytest.mark.parametrize(("layers", "kinds"), [(1, "sk"), (2, "kk"), ("all", "kk")])
def test_model_has_the_attention_in_its_last_layers(layers, kinds) -> None:
    config = SMALL.model_copy(update={"kep_layers": layers})
    expected = [SoftmaxAttention if kind == "s" else KEPAttention for kind in kinds]

    model = build_model(config, TEXTS, CLASS, "kep")

    assert [type(block.attention) for block in model.blocks] == expected
    assert model.blocks[-1].attention.merge == "add"
    assert build_model(config, IMAGES, CLASS, "kep").blocks[-1].attention.merge == "concat"


@pytest.mark.parametrize("shape", [IMAGES, TEXTS, FEATURED])
@pytest.mark.parametrize("attention", ["msp", "kep"])
def test_every_parameter_receives_a_gradient(shape, attention, generator) -> None:
    model = build_model(SMALL, shape, CLASS, attention).train()
    logits = call(model, inputs_for(shape, generator))

    labels = torch.arange(BATCH)
    objective(logits, labels, model, num_train=100, ksvd_weight=1.0, kl_weight=1.0).total.backward()

    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing


@pytest.mark.parametrize("attention", ["msp", "kep"])
def test_text_model_ignores_padding(attention, generator) -> None:
    model = build_model(SMALL, FEATURED, CLASS, attention).double().eval()
    inputs = inputs_for(FEATURED, generator)
    assert isinstance(inputs, dict)
    inputs["features"] = inputs["features"].double()
    length = 4
    row = {name: value[2:, :length] for name, value in inputs.items()}

    assert_close(sampled(model, row)[..., 0, :], sampled(model, inputs)[..., 2, :])


def test_text_model_knows_the_order_of_its_tokens(generator) -> None:
    model = build_model(SMALL, TEXTS, CLASS, "msp").eval()
    tokens = torch.arange(TOKEN).expand(1, -1)

    assert not torch.allclose(model(tokens), model(tokens.flip(-1)))


def test_what_does_not_fit_the_model_is_refused(generator) -> None:
    def built(shape: ImageShape | TextShape, **changes: int) -> Classifier:
        return build_model(SMALL.model_copy(update=changes), shape, CLASS)

    with pytest.raises(UserError, match="built for no features"):
        call(built(TEXTS), inputs_for(FEATURED, generator))
    with pytest.raises(UserError, match="built for contextual features"):
        call(built(FEATURED), inputs_for(TEXTS, generator))
    with pytest.raises(UserError, match="sides 8 and 12; got 5"):
        built(IMAGES, patch_size=5)
    with pytest.raises(UserError, match="embedding_dim must be positive"):
        built(TEXTS, embedding_dim=0)
    with pytest.raises(ValueError, match="kep_layers"):
        ModelConfig(kep_layers=0)


def test_patches_are_cut_row_by_row(generator) -> None:
    images = torch.randn(BATCH, *IMAGES, generator=generator)

    cut = patches(images, 4)

    assert cut.shape == (BATCH, 6, 48)
    # the patch in the second row and third column
    assert torch.equal(cut[1, 5], images[1, :, 4:8, 8:12].flatten())


def test_mean_pool_is_the_mean_of_the_real_tokens(generator) -> None:
    x = torch.randn(SAMPLE, 2, TOKEN, 3, generator=generator)
    mask = torch.tensor([[True] * 3 + [False] * 4, [False] * TOKEN])

    pooled = mean_pool(x, mask)

    assert_close(pooled[:, 0], x[:, 0, :3].mean(dim=1))
    assert_close(pooled[:, 1], torch.zeros(SAMPLE, 3))


@pytest.mark.parametrize("masked", [False, True])
def test_pooled_block_is_the_mean_of_its_output(masked, generator) -> None:
    block = Block(SoftmaxAttention(8, 2), 8, 13, dropout=0.5).double().eval()
    x = torch.randn(SAMPLE, 2, TOKEN, 8, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 3 + [False] * 4, [False] * TOKEN]) if masked else None

    assert_close(block(x, mask, pool=True), mean_pool(block(x, mask), mask))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("num_bytes", [1, 2 * SAMPLE * TOKEN * 22 * 8])
def test_slices_of_the_batch_meet_the_same_draws(
    layers, fixed, num_bytes, generator, monkeypatch
) -> None:
    config = SMALL.model_copy(update={"depth": 3, "kep_layers": layers})
    model = build_model(config, TEXTS, CLASS, "kep").double().eval()
    inputs = inputs_for(TEXTS, generator)

    def logits() -> Tensor:
        draws = torch.Generator().manual_seed(0)
        if not fixed:
            return call(model, inputs, num_samples=SAMPLE, generator=draws)
        with fixed_draws(model, SAMPLE, generator=draws):
            return call(model, inputs, num_samples=SAMPLE)

    whole = logits()
    monkeypatch.setattr("kepsvgp.ops.pooling.SLICE_BYTES", num_bytes)

    assert_close(logits(), whole)


def test_slices_of_tokens_that_have_samples_meet_the_same_draws(generator, monkeypatch) -> None:
    torch.manual_seed(0)
    kep = KEPAttention(8, 2, rank=3, projection="dual")
    blocks = [Block(layer, 8, 13, dropout=0.5) for layer in (SoftmaxAttention(8, 2), kep)]
    blocks = [block.double().eval() for block in blocks]
    x = torch.randn(SAMPLE, 3, TOKEN, 8, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 3 + [False] * 4, [False] * TOKEN, [True] * TOKEN])

    def pooled() -> Tensor:
        draws = torch.Generator().manual_seed(0)
        return encode(blocks, x, mask, num_samples=SAMPLE, generator=draws)

    whole = pooled()
    monkeypatch.setattr("kepsvgp.ops.pooling.SLICE_BYTES", 2 * SAMPLE * TOKEN * 8 * 8)

    assert whole.shape == (SAMPLE, 3, 8)
    assert_close(pooled(), whole)
    with fixed_draws(kep, SAMPLE, generator=torch.Generator().manual_seed(0)):
        assert_close(
            mean_pool(blocks[1](blocks[0](x, mask), mask, num_samples=SAMPLE), mask), whole
        )


def test_sinusoids_match_the_formula() -> None:
    table = sinusoids(11, 7)

    position, i = 5, 2
    angle = torch.tensor(position * 10_000 ** (-2 * i / 7))
    assert_close(table[position, 2 * i], angle.sin())
    assert_close(table[position, 2 * i + 1], angle.cos())


def num_parameters(model: Classifier) -> int:
    return sum(p.numel() for p in model.parameters())


def test_paper_models_have_the_paper_s_sizes() -> None:
    def of(name: str, shape, num_classes: int, method: str) -> Classifier:
        return build_model(load_config(name).model, shape, num_classes, method)

    # per softmax block: 4 d² + 4 d of attention, 2 d² + 2 d of the MLP, 4 d of two norms
    d, blocks = 384, 7
    vit = 48 * d + d + 64 * d + blocks * (6 * d * d + 10 * d) + 2 * d + 10 * d + 10
    assert num_parameters(of("cifar10", ImageShape(3, 32, 32), 10, "msp")) == vit
    imdb = of("imdb", TextShape(1000), 2, "msp")
    assert num_parameters(imdb) == 1000 * 128 + 6 * 128**2 + 10 * 128 + 2 * 128 + 2 * 128 + 2
    cola = of("cola", TextShape(1000, feature_layers=7, feature_dim=384), 2, "kep")
    assert len(cola.blocks) == 2
    assert cola.embedding.embedding_dim == 128
    assert cola.to_tokens.out_features == 256


def test_hook_on_the_last_mlp_is_called_in_evaluation() -> None:
    model = build_model(SMALL, IMAGES, CLASS).eval()
    seen: list[torch.Size] = []
    model.blocks[-1].mlp.register_forward_hook(lambda *args: seen.append(args[2].shape))
    with torch.no_grad():
        model(torch.randn(2, *IMAGES), num_samples=3)
    assert seen == [torch.Size([3, 2, 6, 22])]
