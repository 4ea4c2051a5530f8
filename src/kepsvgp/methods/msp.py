"""MSP: softmax attention, and the maximum softmax probability as the confidence.

References:
    Hendrycks and Gimpel, 2017, arXiv:1610.02136.
"""

from kepsvgp.methods.base import Method


class MSP(Method):
    """A plain Transformer, asked directly."""

    name, title = "msp", "MSP"
    ignores = ("kep_layers", "objective")
