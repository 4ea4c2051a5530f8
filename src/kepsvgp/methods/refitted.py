"""KEP-SVGP, refitted: the mean that training found, with a posterior fitted around it afterwards.

The covariance of q(v) is that of `kepsvgp.inference.posterior.fit_posterior`: Gauss–Newton on the
training set, with a prior precision that the validation NLL chooses.
"""

from collections.abc import Mapping

from torch import Tensor

from kepsvgp.data import Benchmark, batches
from kepsvgp.inference.linear import kep_layers
from kepsvgp.inference.posterior import fit_posterior
from kepsvgp.methods.afterwards import show_familiar
from kepsvgp.methods.base import Direct
from kepsvgp.methods.post_hoc import PostHoc, Trained
from kepsvgp.models.blocks import Classifier
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import weights_about

# what `fit_posterior` changes in a layer
FITTED = ("v_tril_raw", "v_mean", "to_output.weight")


class Refitted(PostHoc):
    """The posterior of a trained KEP network, fitted again."""

    name, title = "refitted", "Refitted posterior"
    title_on = "{}, refitted"

    def fit(self, trained: Trained) -> Direct:
        """Fits the spread to the training set, and its prior to the validation set."""
        (direct,) = trained.direct
        train, val = trained.train(), trained.val()
        fit_posterior(direct.model, train, validation=val, device=trained.device)
        return direct

    def kept(self, fitted: Direct) -> dict[str, Tensor]:
        """The factors of the covariances, and what τ scales with them."""
        states = {i: layer.state_dict() for i, layer in enumerate(kep_layers(fitted.model))}
        return {f"{i}.{name}": state[name] for i, state in states.items() for name in FITTED}

    def restore(self, kept: Mapping[str, Tensor], trained: Trained) -> Direct:
        """The posterior that was fitted."""
        (direct,) = trained.direct
        for i, layer in enumerate(kep_layers(direct.model)):
            # other weights bring their own novelty, or none; these are but another spread
            novelty = layer.novelty
            layer.load_state_dict({name: kept[f"{i}.{name}"] for name in FITTED}, strict=False)
            layer.novelty = novelty
        return direct


def install(run: RunFolder, method: Refitted, benchmark: Benchmark) -> None:
    """Makes the refitted posterior the one that `model.safetensors` of a run has."""
    selected = run.config().train.select
    predictor = method.predictor(run, benchmark, selected)
    assert isinstance(predictor, Direct)
    model, config = predictor.model, run.config()
    assert isinstance(model, Classifier)
    # p-values are those of the draws
    show_familiar(
        model, config, benchmark,
        batches(benchmark.train, config.prediction.batch_size, bucket=True),
    )  # fmt: skip
    about = weights_about(run.weights_file(selected)) | {"method": method.name}
    run.write_weights(None, model.state_dict(), about)
