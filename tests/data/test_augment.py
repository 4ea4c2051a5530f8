import torch
from torch.nn import functional as F

from kepsvgp.data import CropFlip


def test_crop_flip_equals_one_image_at_a_time(generator: torch.Generator) -> None:
    pixels = torch.randint(256, (13, 3, 5, 7), generator=generator).to(torch.uint8)
    noise = torch.rand(13, 3, generator=generator)

    actual = CropFlip(2)(pixels, noise)

    for image, (u, v, w), result in zip(pixels, noise.tolist(), actual, strict=True):
        down, right = int(u * 5), int(v * 5)
        expected = F.pad(image, (2, 2, 2, 2))[:, down : down + 5, right : right + 7]
        assert torch.equal(result, expected.flip(-1) if w < 0.5 else expected)


def test_crop_flip_with_centred_noise_changes_nothing(generator: torch.Generator) -> None:
    pixels = torch.randint(256, (2, 1, 4, 4), generator=generator).to(torch.uint8)
    # the middle offset and no mirror image
    noise = torch.tensor([[0.5, 0.5, 0.9]]).expand(2, 3)

    assert torch.equal(CropFlip(1)(pixels, noise), pixels)


def test_crop_without_flip_never_mirrors() -> None:
    pixels = torch.arange(4, dtype=torch.uint8).expand(1, 1, 4, 4).contiguous()
    noise = torch.tensor([[0.5, 0.5, 0.0]])

    assert torch.equal(CropFlip(1, flip=False)(pixels, noise), pixels)
    assert torch.equal(CropFlip(1)(pixels, noise), pixels.flip(-1))
