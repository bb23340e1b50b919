"""Draw how MI and retrieval depend on the number of prompts and traces, on a source of known truth.

python benchmarks/dependence.py docs/diagnostics/images/dependence.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from ragen2.diagnostics import dependence, enough_prompts
from ragen2.reports.figures import dependence_figure, standalone
from ragen2.seeding import stream
from tabular_source import TabularSource

METRICS = ("mi_estimate", "mi_seq_estimate", "retrieval_accuracy")


def main() -> None:
    """Write the picture, and print how many prompts are enough."""
    source = TabularSource.make(
        prompts=64, vocabulary=4, length=6, groundedness=0.6, ends=True, seed=1
    )
    batch = source.sample(8, stream("dependence picture"))
    rows = dependence(batch.logp_NP, batch.length_N, batch.owner_N, traces=[2, 8])
    picture = Path(sys.argv[1])
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(standalone([dependence_figure(rows, metric) for metric in METRICS]))
    for metric in METRICS:
        print(metric, enough_prompts(rows, metric))


if __name__ == "__main__":
    main()
