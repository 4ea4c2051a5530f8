"""The paper's equations as pure functions."""
