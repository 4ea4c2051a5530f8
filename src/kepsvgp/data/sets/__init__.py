"""The benchmarks of the paper, and sets of one's own: one file each."""
