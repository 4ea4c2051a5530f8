import numpy as np
import torch
from sklearn.datasets import load_digits

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import batches, load_benchmark
from kepsvgp.data.examples import Normalisation


def test_digits_are_those_of_scikit_learn_in_disjoint_parts_that_cover_all() -> None:
    benchmark = load_benchmark(DataConfig(name="digits"))
    rows = [part.rows for part in (benchmark.train, benchmark.val, benchmark.test)]

    assert [len(part) for part in rows] == [1079, 359, 359]
    assert torch.equal(torch.cat(rows).sort().values, torch.arange(1797))
    assert benchmark.classes == tuple("0123456789")
    assert benchmark.image_shape == (1, 8, 8)
    test, bunch = benchmark.test, load_digits()
    for position, row in enumerate(test.rows.tolist()):
        assert test.labels[position] == bunch.target[row]
        original = np.rint(test.raw(position)[..., 0].astype(float) * 16 / 255)
        assert (original == bunch.images[row]).all()


def test_digits_are_normalised_by_their_own_statistics() -> None:
    benchmark = load_benchmark(DataConfig(name="digits"))
    everything = benchmark.train.pixels

    mean, std = Normalisation.of(everything)
    assert abs(mean[0] - benchmark.train.normalisation.mean[0]) < 1e-4
    assert abs(std[0] - benchmark.train.normalisation.std[0]) < 1e-4
    inputs = next(iter(batches(benchmark.train, 1079))).inputs
    assert abs(float(inputs.mean())) < 0.02
    assert abs(float(inputs.std()) - 1) < 0.02


def test_split_record_follows_seed_and_limit() -> None:
    def record(**settings):
        return load_benchmark(DataConfig(name="digits", **settings)).split_record()

    assert record() == record()
    assert record()["checksums"] != record(seed=1)["checksums"]
    limited = record(train_limit=100)
    assert limited["sizes"] == {"train": 100, "val": 359, "test": 359}
    # the limit shortens training and leaves the measure alone
    assert limited["checksums"]["test"] == record()["checksums"]["test"]


def test_photographs_are_out_of_distribution_images_of_the_same_shape() -> None:
    benchmark = load_benchmark(DataConfig(name="digits"))
    photographs = benchmark.ood["photographs"]

    assert list(benchmark.ood) == ["photographs"]
    assert photographs.shape == benchmark.image_shape
    assert (photographs.labels == -1).all()
    # tiles of 8×8 in two pictures of 427×640 at a quarter, an eighth and a sixteenth
    assert len(photographs) == 2 * (13 * 20 + 6 * 10 + 3 * 5)
    # real pictures: many grey values, and no two alike by accident of the cutting
    assert len(photographs.pixels.unique()) > 200
