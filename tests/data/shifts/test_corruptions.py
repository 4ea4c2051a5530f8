import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_images
from torch.testing import assert_close

from kepsvgp.data.shifts import corruptions, filters, textures


@pytest.fixture(scope="module")
def photographs() -> torch.Tensor:
    """Real pictures: tiles of two photographs, 32×32."""
    tiles = [
        np.asarray(Image.fromarray(picture).resize((320, 224)))
        .reshape(7, 32, 10, 32, 3)
        .swapaxes(1, 2)
        .reshape(-1, 32, 32, 3)
        for picture in load_sample_images().images
    ]
    return torch.from_numpy(np.concatenate(tiles)).movedim(-1, 1).contiguous()


@pytest.mark.parametrize("kind", corruptions.KINDS)
def test_corruption_is_seeded_and_grows_with_severity(photographs, kind: str) -> None:
    def distance(severity: int) -> float:
        corrupted = corruptions.corrupt(photographs, kind, severity, seed=0)
        assert corrupted.shape == photographs.shape
        return float((corrupted.float() - photographs).square().mean())

    again = [corruptions.corrupt(photographs[:9], kind, 3, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(again[0], again[1])
    deterministic = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate"}
    if kind not in {*deterministic, "jpeg_compression"}:
        assert not torch.equal(again[0], again[2])
    assert 0 < distance(1) < distance(5)


@pytest.mark.parametrize("kind", corruptions.KINDS)
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 28), (1, 4)])
def test_corruption_keeps_any_shape(generator, kind: str, channels: int, side: int) -> None:
    pixels = torch.randint(256, (3, channels, side, side), generator=generator).to(torch.uint8)

    for severity in (1, 5):
        assert corruptions.corrupt(pixels, kind, severity, seed=0).shape == pixels.shape


def test_chunks_have_numbers_of_their_own(photographs) -> None:
    grey = photographs.new_full((corruptions.CHUNK + 3, 1, 4, 4), 128)

    noisy = corruptions.corrupt(grey, "gaussian_noise", 5, seed=0)

    assert not torch.equal(noisy[:3], noisy[corruptions.CHUNK :])


def test_noise_has_the_stated_strength() -> None:
    grey = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    values = grey.numel()

    noise = corruptions.corrupt(grey, "gaussian_noise", 3, seed=0).double() / 255
    # sd of an estimated sd: σ / √2n; rounding to bytes adds 1/√12 of a step
    assert abs(float(noise.std()) - 0.08) < 5 * 0.08 / math.sqrt(2 * values) + 1e-3
    shot = corruptions.corrupt(grey, "shot_noise", 3, seed=0).double() / 255
    # variance of a count / 100 with mean 50.2
    expected = math.sqrt(128 / 255 / 100)
    assert abs(float(shot.std()) - expected) < 5 * expected / math.sqrt(2 * values) + 1e-3
    impulse = corruptions.corrupt(grey, "impulse_noise", 5, seed=0)
    share = (impulse != 128).double().mean()
    assert abs(float(share) - 0.07) < 5 * math.sqrt(0.07 * 0.93 / values)
    assert sorted(impulse.unique().tolist()) == [0, 128, 255]


def test_contrast_and_brightness_equal_their_formula(photographs) -> None:
    x = photographs.double() / 255
    mean = x.mean(dim=(2, 3), keepdim=True)

    contrast = corruptions.corrupt(photographs, "contrast", 5, seed=0)
    assert (contrast - ((x - mean) * 0.15 + mean) * 255).abs().max() <= 0.51

    bright = corruptions.corrupt(photographs[:4], "brightness", 5, seed=0)
    for image, result in zip(photographs[:4], bright, strict=True):
        hsv = np.asarray(Image.fromarray(image.movedim(0, -1).numpy()).convert("HSV")).copy()
        hsv[..., 2] = np.minimum(hsv[..., 2] + 0.3 * 255, 255)
        expected = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))
        # Pillow keeps hue and saturation in bytes only
        assert np.abs(result.movedim(0, -1).numpy().astype(int) - expected).mean() < 2


def test_jpeg_equals_pillow(photographs) -> None:
    result = corruptions.corrupt(photographs[:3], "jpeg_compression", 4, seed=0)

    for image, compressed in zip(photographs[:3], result, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image.movedim(0, -1).numpy()).save(buffer, "jpeg", quality=50)
        expected = np.asarray(Image.open(buffer))
        assert (compressed.movedim(0, -1).numpy() == expected).all()


def test_pixelate_equals_pillow(photographs) -> None:
    result = corruptions.corrupt(photographs[:3], "pixelate", 5, seed=0)

    box = Image.Resampling.BOX
    for image, pixelated in zip(photographs[:3], result, strict=True):
        picture = Image.fromarray(image.movedim(0, -1).numpy())
        expected = np.asarray(picture.resize((20, 20), box).resize((32, 32), box))
        # Pillow rounds between the two steps
        assert np.abs(pixelated.movedim(0, -1).numpy().astype(int) - expected).max() <= 1


def test_gaussian_blur_equals_scipy(photographs) -> None:
    x = photographs[:2].float()

    blurred = filters.gaussian_blur(x, 0.8)

    expected = ndimage.gaussian_filter(x.numpy(), (0, 0, 0.8, 0.8), mode="nearest")
    assert_close(blurred, torch.from_numpy(expected), atol=1e-3, rtol=1e-5)


def test_trail_equals_a_loop_over_pixels(generator) -> None:
    x = torch.rand(2, 1, 5, 6, generator=generator)
    angle = torch.tensor([0.3, -0.7])

    result = filters.trail(x, angle, radius=2, sigma=1.0)

    weights = [math.exp(-0.5 * step**2) for step in range(5)]
    for image in range(2):
        for row in range(5):
            for column in range(6):
                total = 0.0
                for step, weight in enumerate(weights):
                    down = round(step * math.sin(angle[image]))
                    right = round(step * math.cos(angle[image]))
                    here = min(max(row + down, 0), 4), min(max(column + right, 0), 5)
                    total += weight * float(x[image, 0, *here])
                assert math.isclose(
                    float(result[image, 0, row, column]), total / sum(weights), rel_tol=1e-5
                )


def test_zoom_by_one_changes_nothing_and_a_ramp_is_stretched() -> None:
    one, two = filters.zoom_matrices(9, torch.tensor([1.0, 2.0], dtype=torch.float64))

    assert_close(one, torch.eye(9))
    ramp = torch.arange(9.0)
    assert_close(two @ ramp, 4 + (ramp - 4) / 2)


def test_displacement_by_whole_pixels_is_a_shift(generator) -> None:
    x = torch.rand(1, 2, 6, 7, generator=generator)
    field = torch.zeros(1, 2, 6, 7)
    field[:, 0] = 2
    field[:, 1] = 1

    moved = filters.displace(x, field)

    assert_close(moved[:, :, :5, :5], x[:, :, 1:, 2:])


def test_affine_field_moves_the_corners_as_asked(generator) -> None:
    corners = torch.rand(3, 2, 3, generator=generator)

    field = filters.affine_field(corners, 5, 7)

    assert_close(field[:, :, 0, 0], corners[:, :, 0])
    assert_close(field[:, :, 0, -1], corners[:, :, 1])
    assert_close(field[:, :, -1, 0], corners[:, :, 2])


def test_plasma_fills_the_unit_interval_and_is_smoother_with_more_decay(generator) -> None:
    def roughness(decay: float) -> float:
        cloud = textures.plasma(50, 32, 32, decay, generator)
        assert_close(cloud.amin(dim=(1, 2, 3)), torch.zeros(50))
        assert_close(cloud.amax(dim=(1, 2, 3)), torch.ones(50))
        return float(cloud.diff(dim=-1).square().mean())

    assert roughness(3.0) < roughness(1.75) < roughness(1.2)
    assert textures.plasma(2, 20, 50, 2.0, generator).shape == (2, 1, 20, 50)


def test_unknown_corruption_is_refused(photographs) -> None:
    for kind, severity in (("rain", 1), ("fog", 0), ("fog", 6)):
        with pytest.raises(ValueError, match="severity 1 … 5"):
            corruptions.corrupt(photographs[:1], kind, severity, seed=0)


def test_zoom_blur_of_large_images_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(7, 3, 16, 16)
    together = corruptions.zoom_blur(images, torch.Generator(), 1.1)

    monkeypatch.setattr(corruptions, "MOST_NUMBERS", 2 * 10 * images[0].numel())

    assert_close(corruptions.zoom_blur(images, torch.Generator(), 1.1), together)
