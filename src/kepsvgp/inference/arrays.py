"""Probabilities and labels from whatever arrays other libraries give."""

from typing import Any

import numpy as np
from torch import Tensor

from kepsvgp.errors import UserError


def as_numbers(values: Any, name: str) -> np.ndarray:
    """An array of floating-point numbers, from whatever numpy can make one of."""
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must be an array of numbers; it is not ({error}).") from None


def class_numbers(targets: Any, classes: Any) -> np.ndarray:
    """The number of each label's class, by name where there are names."""
    given = targets.cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if classes is None:
        if given.dtype.kind not in "iufb":
            raise UserError(
                f"targets must be numbers of classes; got {given.dtype}. Name the classes in the "
                "order of the columns: classes=model.classes_."
            )
        return given.astype(np.int64) if given.dtype.kind == "b" else given
    number = {str(name): place for place, name in enumerate(classes)}
    unknown = [label for label in given.tolist() if str(label) not in number]
    if unknown:
        raise UserError(
            f"targets must be among the classes {', '.join(number)}; got {unknown[0]!r}."
        )
    return np.array([number[str(label)] for label in given.tolist()], dtype=np.int64)
