"""The same formulas, fast on a CPU."""
