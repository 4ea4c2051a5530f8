import threading

import pytest
import torch
from torch.testing import assert_close

from kepsvgp.data import CropFlip, batches
from kepsvgp.data.examples import (
    ImageExamples,
    Normalisation,
    Ragged,
    TextExamples,
    image_examples,
)

EXAMPLES, CHANNELS, HEIGHT, WIDTH = 23, 3, 5, 7


@pytest.fixture
def images(generator: torch.Generator) -> ImageExamples:
    size = (EXAMPLES, CHANNELS, HEIGHT, WIDTH)
    pixels = torch.randint(256, size, generator=generator).to(torch.uint8)
    labels = torch.randint(11, (EXAMPLES,), generator=generator)
    return image_examples(pixels, labels, Normalisation.of(pixels))


@pytest.fixture
def texts(generator: torch.Generator) -> TextExamples:
    lengths = torch.randint(1, 40, (201,), generator=generator).tolist()
    tokens = Ragged.of([[100 * i + j for j in range(n)] for i, n in enumerate(lengths)])
    features = torch.randn(len(tokens.flat), 2, 3, generator=generator).half()
    places = torch.arange(len(lengths))
    words = [str(i) for i in range(len(lengths))]
    return TextExamples(places % 2, places, places, tokens, words, features)


def test_batches_in_order_are_the_split(images: ImageExamples) -> None:
    parts = list(batches(images, 5))

    assert_close(torch.cat([part.index for part in parts]), torch.arange(EXAMPLES))
    assert_close(torch.cat([part.labels for part in parts]), images.labels)
    assert [len(part.labels) for part in parts] == [5, 5, 5, 5, 3]
    mean, std = images.normalisation
    first = images.pixels[0, 1] / 255
    assert_close(parts[0].inputs[0, 1], (first - mean[1]) / std[1])  # pyright: ignore


def test_batches_are_the_same_from_the_same_seed_and_differ_between_epochs(images) -> None:
    def two_epochs():
        parts = batches(
            images,
            4,
            shuffle=True,
            augment=CropFlip(2),
            generator=torch.Generator().manual_seed(3),
        )
        return [torch.cat([part.inputs for part in parts]) for _ in range(2)]

    first, again = two_epochs(), two_epochs()

    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


def test_batches_do_not_race_with_other_draws_from_the_generator(images) -> None:
    def interleaved(prefetch: int):
        generator = torch.Generator().manual_seed(3)
        parts = batches(
            images, 4, shuffle=True, augment=CropFlip(2), generator=generator, prefetch=prefetch
        )
        return [(part.inputs, torch.rand(2, generator=generator)) for part in parts]

    for (ahead, draw), (plain, plain_draw) in zip(interleaved(3), interleaved(0), strict=True):
        assert torch.equal(ahead, plain)
        assert torch.equal(draw, plain_draw)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_parts_of_processes_make_up_the_batches_of_one(kind, request) -> None:
    examples = request.getfixturevalue(kind)
    augment = CropFlip(2) if kind == "images" else None

    def run(part: tuple[int, int]):
        generator = torch.Generator().manual_seed(5)
        return list(
            batches(examples, 6, shuffle=True, augment=augment, generator=generator, part=part)
        )

    for whole, *parts in zip(run((0, 1)), *(run((rank, 3)) for rank in range(3)), strict=True):
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
        if kind == "images":
            assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)


def test_batches_resumed_in_the_middle_are_the_rest(images) -> None:
    def run(start: int):
        generator = torch.Generator().manual_seed(5)
        parts = batches(
            images, 4, shuffle=True, augment=CropFlip(1), generator=generator, start=start
        )
        assert len(parts) == len(list(parts))
        generator.manual_seed(5)
        return list(parts)

    for rest, expected in zip(run(2), run(0)[2:], strict=True):
        assert torch.equal(rest.inputs, expected.inputs)


def test_texts_are_padded_to_the_longest_of_the_batch_and_masked(texts: TextExamples) -> None:
    index = torch.tensor([7, 3, 19])

    inputs = texts.inputs(index)

    assert inputs["tokens"].shape[1] == int(texts.lengths[index].max())
    for row, position in enumerate(index.tolist()):
        length = int(texts.lengths[position])
        assert inputs["mask"][row].sum() == length
        expected = torch.arange(100 * position, 100 * position + length)
        assert_close(inputs["tokens"][row, :length], expected)
        assert (inputs["tokens"][row, length:] == 0).all()
        start = int(texts.tokens.offsets[position])
        assert_close(
            inputs["features"][row, :length], texts.features[start : start + length].float()
        )
        assert (inputs["features"][row, length:] == 0).all()


def test_buckets_pad_little_and_lose_nothing(texts: TextExamples, generator) -> None:
    def padding(bucket: bool) -> int:
        parts = list(batches(texts, 8, shuffle=True, bucket=bucket, generator=generator))
        seen = torch.cat([part.index for part in parts]).sort().values
        assert torch.equal(seen, torch.arange(len(texts)))
        return sum(int((~part.inputs["mask"]).sum()) for part in parts)

    assert padding(bucket=True) < 0.3 * padding(bucket=False)


def test_sorted_batches_without_shuffle_go_from_short_to_long(texts: TextExamples) -> None:
    index = torch.cat([part.index for part in batches(texts, 8, bucket=True)])

    assert (texts.lengths[index].diff() >= 0).all()
    assert torch.equal(index.sort().values, torch.arange(len(texts)))


def test_an_error_while_preparing_is_raised_where_batches_are_read(images) -> None:
    def broken(pixels, noise):
        raise RuntimeError("broken augmentation")

    with pytest.raises(RuntimeError, match="broken augmentation"):
        list(batches(images, 4, augment=broken))


def test_leaving_an_iteration_early_ends_its_thread(images) -> None:
    iteration = iter(batches(images, 1))
    next(iteration)
    iteration.close()

    assert not [t for t in threading.enumerate() if t.name.startswith("kepsvgp-batches")]


def test_batches_refuse_what_makes_no_sense(images, texts) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        batches(images, 0)
    with pytest.raises(ValueError, match="part"):
        batches(images, 4, part=(2, 2))
    with pytest.raises(ValueError, match="augment"):
        batches(texts, 4, augment=CropFlip())


def test_drop_last_leaves_out_the_short_batch(images) -> None:
    parts = batches(images, 5, drop_last=True)

    assert [len(part.labels) for part in parts] == [5] * 4
    assert len(parts) == 4
    assert list(batches(images, 100, drop_last=True)) == []


def test_drop_last_does_not_always_leave_out_the_longest_texts(texts, generator) -> None:
    parts = batches(texts, 40, shuffle=True, drop_last=True, generator=generator)

    # one of 201 is left out of each epoch, another one each time
    left_out = {
        (set(range(201)) - set(torch.cat([part.index for part in parts]).tolist())).pop()
        for _ in range(5)
    }
    assert len(left_out) > 1


@pytest.mark.parametrize("pin", [True, False])
def test_every_tensor_of_a_batch_is_pinned_where_that_is_asked_for(
    texts, monkeypatch, pin: bool
) -> None:
    pinned = []
    # this machine may have no GPU to pin for
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda own: pinned.append(own) or own)

    (batch,) = batches(texts, 201, prefetch=0, pin=pin)

    every = [*batch.inputs.values(), batch.labels, batch.index]
    assert {id(each) for each in pinned} == {id(each) for each in every if pin}


def test_a_subset_shares_pixels_and_keeps_names(images: ImageExamples) -> None:
    part = images.subset(torch.tensor([20, 4])).subset(torch.tensor([1]))

    assert part.pixels.data_ptr() == images.pixels.data_ptr()
    assert part.rows.tolist() == [4]
    assert (part.raw(0) == images.raw(4)).all()
    assert part.raw(0).shape == (HEIGHT, WIDTH, CHANNELS)
