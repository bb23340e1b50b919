"""Stands in for ``ragen2`` in the tests of experiments: makes models at once, and trains like the trainee.

python stand_in.py warmstart RECIPE.toml --out DIR | pull NAME --out DIR | train ...

A recipe with seed 1 fails; one with seed 5 waits for the file ``go`` beside its folder.
"""

# ruff: noqa: T201 - a program that prints
import runpy
import sys
import time
import tomllib
from pathlib import Path

TRAINEE = Path(__file__).parents[1] / "trainer" / "jobs" / "trainee.py"


def make_model(verb: str, words: list[str]) -> None:
    folder = Path(words[words.index("--out") + 1])
    with (folder.parent / "noted").open("a") as file:
        file.write(f"{verb} {folder.name}\n")
    seed = tomllib.loads(Path(words[0]).read_text())["seed"] if verb == "warmstart" else 0
    if seed == 1:
        print("ragen2: no such model")
        sys.exit(2)
    while seed == 5 and not (folder.parent / "go").exists():
        time.sleep(0.01)
    folder.mkdir()


if sys.argv[1] in {"warmstart", "pull"}:
    make_model(sys.argv[1], sys.argv[2:])
else:
    sys.argv[0] = str(TRAINEE)
    runpy.run_path(str(TRAINEE), run_name="__main__")
