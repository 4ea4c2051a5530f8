import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from methods.cases import EXAMPLES, IMAGES, TEXTS, make_batches, make_model
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from kepsvgp.errors import UserError
from kepsvgp.inference.pooled import gather_pooled
from kepsvgp.inference.prediction import predict_batches
from kepsvgp.methods import kfllla

laplace = pytest.importorskip("laplace")


def directly(model: Any, inputs: Tensor, labels: Tensor, prior_precision: float) -> Any:
    """laplace-torch on the whole model, as its documentation says."""
    posterior = laplace.Laplace(
        model, "classification", subset_of_weights="last_layer", hessian_structure="kron",
        prior_precision=prior_precision,
    )  # fmt: skip
    posterior.fit(DataLoader(TensorDataset(inputs, labels), batch_size=10))
    return posterior


def in_double(batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> Iterator[Any]:
    """The best prior is the least of its range, where single precision keeps three digits."""
    return ((inputs.double(), labels, index) for inputs, labels, index in batches)


def test_prediction_equals_laplace_torch_called_directly() -> None:
    model = make_model(IMAGES).double()
    method = kfllla.fit(
        model, in_double(make_batches(IMAGES, 5)), in_double(make_batches(IMAGES, 5, seed=1))
    )
    inputs, labels, _ = next(in_double(make_batches(IMAGES, EXAMPLES)))
    posterior = directly(model, inputs, labels, method.prior_precision)

    test, _, _ = next(in_double(make_batches(IMAGES, EXAMPLES, seed=2)))
    expected = posterior(test, pred_type="glm", link_approx="probit")

    assert_close(method.predict(test).probs, expected, rtol=1e-10, atol=1e-12)
    # and it is not what the model says by itself
    assert not torch.allclose(expected, model(test).softmax(-1), atol=1e-2)


def test_prior_precision_is_the_best_of_laplace_torch_s_on_the_same_grid() -> None:
    model = make_model(IMAGES)
    method = kfllla.fit(model, make_batches(IMAGES, 5), make_batches(IMAGES, 5, seed=1))
    inputs, labels, _ = next(make_batches(IMAGES, EXAMPLES))
    val_inputs, val_labels, _ = next(make_batches(IMAGES, EXAMPLES, seed=1))
    posterior = directly(model, inputs, labels, 1.0)

    nll = {}
    for precision in torch.logspace(-3, 3, 100).tolist():
        posterior.prior_precision = precision
        probs = posterior(val_inputs, pred_type="glm", link_approx="probit")
        nll[precision] = float(-probs[torch.arange(EXAMPLES), val_labels].log().mean())

    assert nll[method.prior_precision] <= min(nll.values()) + 1e-6


def test_texts_go_through_their_pooled_features() -> None:
    model = make_model(TEXTS)
    method = kfllla.fit(
        model, make_batches(TEXTS, 5), make_batches(TEXTS, 5, seed=1), prior_precision=0.5
    )
    features, labels = gather_pooled(model, make_batches(TEXTS, 9), None)
    head = torch.nn.Sequential(torch.nn.Identity(), model.head)
    expected = directly(head, features[0], labels, 0.5)(
        features[0], pred_type="glm", link_approx="probit"
    )

    actual = predict_batches(method, make_batches(TEXTS, 7))
    assert_close(actual.probs, expected, rtol=1e-4, atol=1e-6)


def test_variance_matches_the_dense_posterior() -> None:
    model = make_model(IMAGES).double()
    batches = [(x.double(), y, i) for x, y, i in make_batches(IMAGES, 9)]
    features, labels = gather_pooled(model, batches, None)
    curvature = kfllla.last_layer_curvature(model.head, features[0], labels)
    variance = kfllla.logit_variance(features[0], curvature, 0.7)

    def dense(values: Tensor, vectors: Tensor) -> Tensor:
        return vectors @ torch.diag(values) @ vectors.mT

    c = curvature
    weights = torch.kron(
        dense(c.class_values, c.class_vectors), dense(c.feature_values, c.feature_vectors)
    )
    covariance = torch.linalg.inv(weights + 0.7 * torch.eye(len(weights)).double())
    biases = torch.linalg.inv(
        dense(c.bias_values, c.bias_vectors) + 0.7 * torch.eye(3).double()
    ).diagonal()
    for row, actual in zip(features[0], variance, strict=True):
        jacobian = torch.kron(torch.eye(3).double(), row)
        expected = (jacobian @ covariance @ jacobian.mT).diagonal() + biases
        assert_close(actual, expected)


def test_samples_of_a_stochastic_model_are_averaged() -> None:
    model = make_model(TEXTS, "kep")
    method = kfllla.fit(
        model,
        make_batches(TEXTS, 5),
        make_batches(TEXTS, 5, seed=1),
        num_samples=3,
        prior_precision=1e3,
    )
    inputs, _, _ = next(make_batches(TEXTS, EXAMPLES))
    generator = torch.Generator().manual_seed(4)
    prediction = method.predict(inputs, generator=generator)

    features, _ = gather_pooled(model, make_batches(TEXTS, EXAMPLES), 3, seed=4)
    assert not torch.equal(features[0], features[1])
    assert (prediction.seed, method.predict(inputs).seed) == (4, "unknown")
    probs = []
    for sample in features:
        variance = kfllla.logit_variance(sample, method.curvature, method.prior_precision)
        probs.append((model.head(sample) / (1 + math.pi / 8 * variance).sqrt()).softmax(-1))
    assert_close(prediction.probs, torch.stack(probs).mean(0))
    assert prediction.epistemic.max() > 1e-4


def test_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(UserError, match="linear head"):
        kfllla.fit(make_model(TEXTS, "sngp"), [], [])
