"""What prepares the inputs of a converted model: as it was saved, and within memory."""

import json
import math
from pathlib import Path

import families
import pytest
import torch
import transformers
from datafiles import write_vocabulary
from PIL import Image
from serving.models import picture, tokenizer
from torch.testing import assert_close

from kepsvgp import convert, predict, save_pretrained
from kepsvgp.serving import open_folder


def test_hugging_face_images_pass_their_processor(tmp_path: Path) -> None:
    model, _ = families.make("vit")
    convert(model, rank=3)
    processor = transformers.ViTImageProcessorPil(size={"height": 10, "width": 10})
    save_pretrained(model, tmp_path / "model", processor=processor)
    picture(tmp_path / "a.png", (20, 30))
    picture(tmp_path / "b.png", (10, 10), seed=1)

    server = open_folder(tmp_path / "model", num_samples=2)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    found = server.predict([server.load(path) for path in paths])

    images = [Image.open(path).convert("RGB") for path in paths]
    generator = torch.Generator().manual_seed(0)
    inputs = dict(processor(images, return_tensors="pt"))
    assert_close(found.probs, predict(model, inputs, num_samples=2, generator=generator).probs)
    assert server.task == "image"


def test_hugging_face_images_of_one_channel_are_opened_gray(tmp_path: Path) -> None:
    model, _ = families.make("vit", num_channels=1)
    convert(model, rank=3)
    processor = transformers.ViTImageProcessorPil(
        size={"height": 10, "width": 10}, image_mean=[0.5], image_std=[0.5]
    )
    save_pretrained(model, tmp_path / "model", processor=processor)
    picture(tmp_path / "a.png", (20, 30))

    server = open_folder(tmp_path / "model", num_samples=2)
    found = server.load(tmp_path / "a.png")

    expected = processor(Image.open(tmp_path / "a.png").convert("L"), return_tensors="pt")
    assert_close(found["pixel_values"], expected["pixel_values"])
    assert len(server.predict([found, found])) == 2


def test_thin_hugging_face_image_is_cut_before_it_is_enlarged(tmp_path, monkeypatch) -> None:
    model, _ = families.make("vit")
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 224}, crop_size={"height": 10, "width": 10}
    )
    save_pretrained(convert(model, rank=3), tmp_path / "model", processor=processor)
    server, whole = open_folder(tmp_path / "model", num_samples=2), Image.Image.resize

    def small(image: Image.Image, size: tuple[int, int], *args: object, **options: object):
        assert math.prod(size) < 10_000_000
        return whole(image, size, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", small)
    for size in ((60_000, 1), (1, 60_000)):
        Image.new("RGB", size, (200, 10, 30)).save(tmp_path / "a.png")
        assert server.load(tmp_path / "a.png")["pixel_values"].shape == (1, 3, 10, 10)


def answers(folder: Path, *items: object) -> torch.Tensor:
    server = open_folder(folder, num_samples=2)
    return server.predict([server.load(item) for item in items]).probs


BESIDE_TEXT = {
    "special_tokens_map.json": {"cls_token": "cat", "unk_token": "sat"},
    "added_tokens.json": {"cat": 3},
    "preprocessor_config.json": {"image_processor_type": "ViTImageProcessor"},
    "processor_config.json": {"processor_class": "BertProcessor"},
}


@pytest.mark.parametrize("name", BESIDE_TEXT)
def test_what_is_put_beside_a_saved_tokenizer_changes_nothing(name: str, tmp_path) -> None:
    words = write_vocabulary(tmp_path / "vocab.txt", "the cat sat")
    model, _ = families.make("bert")
    processor = transformers.BertTokenizerFast(str(words))
    save_pretrained(convert(model, rank=3), tmp_path / "model", processor=processor)
    expected = answers(tmp_path / "model", "the cat", "sat")

    assert not (tmp_path / "model" / name).exists()
    (tmp_path / "model" / name).write_text(json.dumps(BESIDE_TEXT[name]))

    assert torch.equal(answers(tmp_path / "model", "the cat", "sat"), expected)


@pytest.mark.parametrize("name", ["processor_config.json", "tokenizer_config.json"])
def test_what_is_put_beside_a_saved_image_processor_changes_nothing(name: str, tmp_path) -> None:
    model, _ = families.make("vit")
    processor = transformers.ViTImageProcessorPil(size={"height": 10, "width": 10})
    save_pretrained(convert(model, rank=3), tmp_path / "model", processor=processor)
    picture(tmp_path / "a.png", (20, 30))
    expected = answers(tmp_path / "model", tmp_path / "a.png")

    other = json.loads((tmp_path / "model/preprocessor_config.json").read_text())
    other |= {"image_mean": [0.0, 0.0, 0.0]}
    (tmp_path / "model" / name).write_text(json.dumps({"image_processor": other}))

    assert torch.equal(answers(tmp_path / "model", tmp_path / "a.png"), expected)


def test_tokenizer_that_was_saved_beside_the_model_is_read(tmp_path: Path) -> None:
    model, _ = families.make("bert")
    convert(model, rank=3).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert open_folder(tmp_path).task == "text"
