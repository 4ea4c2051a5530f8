"""What `inspect.json` in a run folder says about its attention kernels.

`kepsvgp inspect RUN` writes the file; the page and figure 4 read it:

    {
      "examples": 64,
      "split": "test",
      "layers": [
        {
          "name": "blocks.0.attention",
          "kind": "softmax",
          "heads": 4,
          "rank": 10,
          "singular_values": [0.41, 0.17, ...],
          "explained": 0.97,
          "alignment": {"left": [0.99, ...], "right": [0.98, ...]},
          "overlap": {"left": 0.81, "right": 0.77},
          "chance": {"left": 0.15, "right": 0.15},
          "findings": []
        }
      ]
    }

`singular_values` are those of the layer's attention kernel matrix in falling order, each
example's and head's divided by their sum, then averaged over examples and heads; they add
up to one. `rank` is the number s of kept pairs, and `explained` the sum of the first s
values; both are null where the layer keeps no low-rank form. `alignment` compares learnt
with exact singular directions, one value per kept pair: the mean over examples and heads of
|⟨learnt, exact⟩| for unit vectors, 1 for the same direction; null where nothing is learnt.
`overlap` is the share of the exact singular subspace that the learnt one spans, `chance` the
same for random directions, and `findings` what looks wrong, in words. The last three may be
absent, and other keys are left alone.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kepsvgp.errors import UserError
from kepsvgp.files import read_json

FILE_NAME = "inspect.json"


class Section(BaseModel):
    """A part of the file; it may say more than the page shows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Alignment(Section):
    """Learnt against exact singular directions, one cosine per kept pair."""

    left: list[float]
    right: list[float]


class Shares(Section):
    """One number for each side of the pair."""

    left: float
    right: float


class LayerSpectrum(Section):
    """The spectrum of one layer's attention kernel, averaged over examples and heads."""

    name: str
    kind: str
    heads: int = Field(ge=1)
    rank: int | None = Field(default=None, ge=1)
    singular_values: list[float] = Field(min_length=1)
    explained: float | None = Field(default=None, ge=0.0, le=1.0 + 1e-6)
    alignment: Alignment | None = None
    overlap: Shares | None = None
    chance: Shares | None = None
    findings: list[str] = []

    @property
    def cumulative(self) -> list[float]:
        """The share of the spectrum in the first 1, 2, … values."""
        total = sum(self.singular_values)
        running, shares = 0.0, []
        for value in self.singular_values:
            running += value
            shares.append(running / total)
        return shares


class Spectra(Section):
    """The content of `inspect.json`."""

    examples: int = Field(ge=1)
    split: str
    layers: list[LayerSpectrum]


def read_spectra(folder: Path, *, run: str = "") -> Spectra | None:
    """The spectra in the folder of a run; None where `kepsvgp inspect` has not been run."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        return Spectra.model_validate(read_json(path, run=run))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{path} must follow the form that `kepsvgp inspect` writes; "
            f"at {where}: {first['msg']}. Delete it and run `kepsvgp inspect` again."
        ) from None
