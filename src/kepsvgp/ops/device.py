"""Where a run computes, by the name that its configuration gives."""

import torch

from kepsvgp.errors import UserError


def find_device(wanted: str = "auto", *, is_binding: bool = True) -> torch.device:
    """The device of a name such as `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    One that is absent is refused, or, where the name does not bind, taken for `auto`: a run that
    was trained elsewhere can be asked here.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    # a build for GPUs names one even where there is none
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = torch.device("cpu") if found is None else torch.device(found.type)
    kind, _, index = wanted.partition(":")
    is_there = kind == here.type and int(index or 0) < torch.accelerator.device_count()
    if wanted == "auto" or (not is_there and not is_binding):
        return here
    if not is_there:
        count = torch.accelerator.device_count()
        known = [
            "cpu",
            *([here.type] if count else []),
            *(f"{here.type}:{i}" for i in range(count)),
        ]
        raise UserError(
            f"train.device must be auto or one of {', '.join(known)} on this machine; "
            f"got {wanted!r}."
        )
    return torch.device(wanted)
