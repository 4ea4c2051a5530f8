"""The command line in this process, and a configuration that trains in a moment."""

import pytest

from kepsvgp.cli import main

SMALL = """
method = "kep"
[data]
train_limit = 96
val_limit = 40
test_limit = 40
[model]
depth = 1
dim = 12
num_heads = 2
mlp_dim = 12
patch_size = 4
[model.kep]
rank = 3
[train]
epochs = 2
batch_size = 32
lr = 1e-2
[prediction]
num_samples = 2
"""


def call(*arguments: object) -> int:
    """Exit code of `kepsvgp`, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["kepsvgp", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0
