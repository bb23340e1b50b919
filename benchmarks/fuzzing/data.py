"""Readers of the data files of environments."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from fuzzing.mutations import BYTES, JSON_LINES, PARQUET, packed
from fuzzing.reader import Make, Reader


def lines(*rows: dict[str, Any]) -> bytes:
    """Rows as JSON lines, each three times; ``NUMBER``, as a value or in a text, tells them apart."""
    return b"".join(
        json.dumps(row).replace('"NUMBER"', str(copy)).replace("NUMBER", str(copy)).encode() + b"\n"
        for copy in range(1, 4)
        for row in rows
    )


QUESTION = {"question": "Who NUMBER?", "answers": ["Ada"], "gold_titles": ["A"], "split": "train"}
HOTPOT = {
    "question": "Where NUMBER?",
    "answer": "Rome",
    "context": [["A", ["It is in Rome. ", "Yes."]], ["B", ["No."]]],
    "supporting_facts": [["A", 0]],
}
PASSAGES = (
    {"title": "A NUMBER", "text": "Ada wrote."},
    {"contents": '"B"\nRome NUMBER'},
    HOTPOT,
)
PRODUCT = {
    "asin": "B00NUMBER",
    "title": "Mug NUMBER",
    "description": "Keeps tea warm.",
    "bullet_points": ["Leak proof"],
    "price": "$12.50$20.00",
    "category": "garden",
    "query": "mugs",
    "product_category": "Home › Mugs",
    "rating": "4.5",
    "options": {"color": ["red", {"value": "Blue"}], "size": None},
    "attributes": ["leak proof"],
    "reviews": ["good"],
    "instruction": "find a mug",
    "instruction_attributes": ["leak proof"],
}
NOTES = {
    "asin": "B00NUMBER",
    "attributes": ["leak proof"],
    "instruction": "find mugs",
    "instruction_attributes": ["leak proof"],
}
GOAL = {
    "asin": "B00NUMBER",
    "instruction": "i want mug NUMBER",
    "instruction_attributes": ["leak proof"],
    "instruction_options": ["red"],
    "options": ["color: red"],
}
PROBLEMS = (
    {
        "prompt": "Double NUMBER.",
        "entry_point": "double",
        "code": "def double(x):\n    return 2 * x",
        "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
        "test_setup_code": "",
    },
    {
        "question": "Add NUMBER.",
        "solutions": ["print(sum(map(int, input().split())))"],
        "input_output": {"inputs": ["1 2\n"], "outputs": ["3\n"]},
        "starter_code": "",
    },
    {
        "question": "Add them NUMBER.",
        "solutions": ["def total(a):\n    return sum(a)"],
        "input_output": {"inputs": [[[1, 2]]], "outputs": [[3]], "fn_name": "total"},
        "starter_code": "def total(a):",
    },
    {
        "sat": "def sat(s: str):\n    return len(s) == NUMBER",
        "ans_type": "str",
        "sol_header": "def sol():",
    },
)
MATHS = (
    {
        "question": "What is 1 + NUMBER?",
        "answer": "3",
        "solution": "1 + 2 = 3",
        "type": "GSM_FOBAR",
    },
    {
        "query": "What is NUMBER?",
        "response": "It is. #### 4\nThe answer is: 4",
        "type": "GSM_Rephrased",
    },
)
COUNTDOWN = {"nums": [5, 5, "NUMBER"], "target": "NUMBER", "solution": "5 - 5 + NUMBER"}
LEVEL = {"grid": ["########", "#@$ . ##", "#      #", "########"]}
WIDER = {"grid": ["#########", "#@$  . ##", "#########"]}
LEVELS = b"; 1\n#######\n#@$ . #\n#######\n\n; 2\n########\n#. $  @#\n########\n"


def env_reader(kind: str, setting: str, name: str, *seeds: bytes, **beside: bytes) -> Make:
    """A data file of an environment: a task of training and a held-out one are begun and stepped.

    ``beside`` are other files that it needs, by their settings.
    """

    def make(folder: Path) -> Reader:
        from ragen2.envs import make as make_env

        files = {}
        for other, data in beside.items():
            files[other] = str(folder / f"{other}.jsonl")
            Path(files[other]).write_bytes(data)

        numbers = count()

        def read(data: bytes) -> None:
            # Each in a file of its own: environments keep what they have read by its path.
            file = folder / f"{next(numbers)}{name}"
            file.write_bytes(data)
            env = make_env(kind, **{setting: str(file)}, **files)
            for seed in (1, 100_001):
                episode = env.start(seed, 0)
                episode.observation  # noqa: B018 - what the agent is shown
                if kind != "DeepCoder":  # whose step runs a program
                    episode.step("search[1]")
            file.unlink()

        forms = {".jsonl": JSON_LINES, ".gz": packed(JSON_LINES), ".parquet": PARQUET}
        form = forms.get(Path(name).suffix, BYTES)
        given = seeds
        if form.pack is not None and form is not JSON_LINES:
            given = tuple(
                form.pack([json.loads(line) for line in seed.splitlines()]) for seed in seeds
            )
        return Reader(form, given, read)

    return make


DATA: dict[str, Make] = {
    "data: SearchQA questions": env_reader(
        "SearchQA",
        "questions",
        "q.jsonl",
        lines(QUESTION),
        lines(HOTPOT),
        passages=lines(*PASSAGES),
    ),
    "data: SearchQA passages": env_reader(
        "SearchQA", "passages", "p.jsonl", lines(*PASSAGES), questions=lines(QUESTION)
    ),
    "data: WebShop products": env_reader("WebShop", "products", "p.jsonl", lines(PRODUCT)),
    "data: WebShop attributes": env_reader(
        "WebShop", "attributes", "a.jsonl", lines(NOTES), products=lines(PRODUCT)
    ),
    "data: WebShop goals": env_reader(
        "WebShop", "human_goals", "g.jsonl", lines(GOAL), products=lines(PRODUCT)
    ),
    "data: parquet": env_reader("Countdown", "data", "c.parquet", lines(COUNTDOWN)),
    "data: DeepCoder problems": env_reader(
        "DeepCoder", "data", "d.jsonl", *(lines(one) for one in PROBLEMS)
    ),
    "data: MetaMathQA": env_reader(
        "MetaMathQA", "data", "m.jsonl.gz", *(lines(one) for one in MATHS)
    ),
    "data: Countdown": env_reader("Countdown", "data", "c.jsonl", lines(COUNTDOWN)),
    "data: Sokoban records": env_reader("Sokoban", "levels", "l.jsonl", lines(LEVEL, WIDER)),
    "data: Sokoban text": env_reader("Sokoban", "levels", "l.txt", LEVELS),
}
"""By name."""
