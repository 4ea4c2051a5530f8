import math

import torch

from kepsvgp.ops import noise


def test_noise_at_a_place_does_not_depend_on_the_size() -> None:
    large = noise.uniform(torch.tensor(3), 4, 11, 7)

    assert torch.equal(noise.uniform(torch.tensor(3), 2, 5, 7), large[:2, :5])
    assert torch.equal(
        noise.normal(torch.tensor(3), 4, 11, 2), noise.normal(torch.tensor(3), 4, 11, 7)[..., :2]
    )


def test_noise_depends_on_the_seed() -> None:
    assert not torch.equal(noise.uniform(torch.tensor(3), 5), noise.uniform(torch.tensor(4), 5))


def test_uniform_lies_strictly_between_zero_and_one() -> None:
    drawn = noise.uniform(torch.tensor(1), 3_000_000)

    # Var of the mean of n uniforms: 1 / 12n
    assert abs(drawn.mean().item() - 0.5) < 5 / math.sqrt(12 * drawn.numel())
    assert drawn.min() > 0
    assert drawn.max() < 1


def test_normal_has_the_moments_of_independent_standard_normals() -> None:
    drawn = noise.normal(torch.tensor(2), 50, 40, 30, dtype=torch.float64)
    count = drawn.numel()

    # Var of z², z⁴ and of a product of two: 2, 96 and 1
    assert abs(drawn.mean()) < 5 / math.sqrt(count)
    assert abs(drawn.square().mean() - 1) < 5 * math.sqrt(2 / count)
    assert abs(drawn.pow(4).mean() - 3) < 5 * math.sqrt(96 / count)
    for axis in range(3):
        neighbours = (drawn * drawn.roll(1, axis)).mean()
        assert abs(neighbours) < 5 / math.sqrt(count)


def test_noise_of_a_seed_does_not_depend_on_the_other_seeds(generator: torch.Generator) -> None:
    seeds = noise.draw_seeds(4, generator=generator)

    assert len(seeds.unique()) == 4
    for seed, drawn in zip(seeds, noise.normal(seeds, 3, 5), strict=True):
        assert torch.equal(noise.normal(seed, 3, 5), drawn)
