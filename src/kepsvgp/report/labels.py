"""What models are called: the method's title, and the settings that tell variants apart."""

from collections.abc import Sequence
from typing import Any

from kepsvgp.config.plugins import find_asked, find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError

# a label names at most so many settings
MOST_TOLD = 3
# what seeds of one model may differ in
OF_A_SEED = ("seed", "data.path", "model.svdkl.softmax_run")


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What makes a run another model; settings that cannot matter to its method do not."""
    settings = find_method(config.method).normalised(config).identity()
    return {name: value for name, value in settings.items() if name not in OF_A_SEED}


def name_of(trained: str, method: str) -> str:
    """What a method is called on the page: `KEP-SVGP + Temperature scaling`."""
    try:
        return find_asked(trained, method).title
    except UserError:
        # the package that it came from may not be here
        return method


def labels_of(name: str, configs: Sequence[RunConfig]) -> list[str]:
    """Variants of one method are told apart by the settings in which they differ."""
    if len(configs) == 1:
        return [name]
    settings = [settings_of(config) for config in configs]
    keys = sorted({key for s in settings for key in s})
    differing = [key for key in keys if len({repr(s.get(key)) for s in settings}) > 1]
    every = {key: [s.get(key) for s in settings] for key in differing}
    usual = {key: max(values, key=values.count) for key, values in every.items()}
    labels = []
    for number, setting in enumerate(settings, start=1):
        told = differing
        if len(differing) > MOST_TOLD:
            # among many settings, those in which this one is not like most
            told = [key for key in differing if setting.get(key) != usual[key]]
        words = [f"{key.split('.')[-1]}={setting.get(key)}" for key in told[:MOST_TOLD]]
        label = f"{name} ({', '.join(words)})" if words else name
        labels.append(f"{label} #{number}" if len(told) > MOST_TOLD else label)
    return labels
