"""The same formulas, fast on a CPU. Layers call `dispatch`, which says when."""
