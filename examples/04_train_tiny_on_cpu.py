"""Train the embedded model from Python: what `ragen2 train` does, in one page.

Run it with `python examples/04_train_tiny_on_cpu.py`. The settings are tiny, so that it ends in seconds
and learns next to nothing; take the OVERRIDES out for the real thing.
"""

import tempfile
from pathlib import Path

from ragen2.backends.agent import open_agent, quiet_transformers
from ragen2.config import dump_config, load_run
from ragen2.reports.page import write_report
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train

OVERRIDES = (
    "steps=2",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "evaluation.tasks=8",
    "checkpoints.every=2",
)


def main(folder: Path) -> None:
    quiet_transformers()
    config = load_run(None, OVERRIDES)
    agent = open_agent(config.model, config.learner, seed=config.seed)
    run = RunDirectory.create(folder / "run", dump_config(config))
    train(config, agent.policy, agent.learner, run)

    for record in run.records():
        shown = {
            name: round(record.metrics[name], 3)
            for name in (
                "eval/success",
                "rollout/success",
                "reward/variance",
                "collapse/first_turn/retrieval_accuracy",
                "update/grad_norm",
            )
            if name in record.metrics
        }
        print(f"step {record.step}: {shown} {record.regime or ''} {record.note}")
    report = write_report([run.path], run.path / "report.html")
    print(f"the run directory holds {sorted(path.name for path in run.path.iterdir())}")
    print(f"the report has {report.stat().st_size:,} bytes and needs no network")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
