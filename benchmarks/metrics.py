"""Prints what all metrics of a million examples cost in sorts of a million numbers."""

from kepsvgp.bench.metrics_bench import measure

if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:22} {value:8.3f}")
