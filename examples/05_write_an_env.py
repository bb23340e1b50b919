"""Write an environment in one file and check it.

Run it with `python examples/05_write_an_env.py`. The file is also a plug-in:
`ragen2 envs check Dial --plugin examples/05_write_an_env.py`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from ragen2.envs.base import Env, Episode, Step, belongs, normalise
from ragen2.seeding import stream

MOVES = {"up": 1, "down": -1}


class Dial(Env):
    """Turn a dial to the number asked for."""

    kind: Literal["Dial"] = "Dial"
    limit: int = Field(10, ge=8, le=10, description="greatest number on the dial")
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def instruction(self):
        return "Turn the dial Up or Down. Example: <think>too low</think><answer>Up || Up</answer>"

    def start(self, seed, luck):
        rng = stream("Dial", seed)  # the seed alone decides the task, so a group shares its prompt
        while True:
            now, target = (int(n) for n in rng.choice(self.limit + 1, size=2, replace=False))
            if belongs(seed, "Dial", now, target):  # a task is trained on or held out, never both
                return DialEpisode(self.limit, now, target)


class DialEpisode(Episode):
    def __init__(self, limit, now, target):
        self.limit, self.now, self.target = limit, now, target

    @property
    def observation(self):
        return f"The dial shows {self.now}. Target {self.target}."

    def step(self, action):
        move, done = MOVES.get(normalise(action)), self.now == self.target
        if move is None or done:
            return Step(0.0, done, done, valid=move is not None, effective=False)
        self.now = min(max(self.now + move, 0), self.limit)
        done = self.now == self.target
        return Step(float(done), done, done)

    def expert(self):
        return ("Up",) * (self.target - self.now) or ("Down",) * (self.now - self.target)

    def random_action(self, rng):
        return str(rng.choice(["Up", "Down"]))

    def explain(self, actions, rng):
        shows = rng.choice(["It shows", "I see"])
        return f"{shows} {self.now}, target {self.target}, so {' '.join(actions)}"


if __name__ == "__main__":
    from ragen2.envs import check_env

    for claim in check_env(Dial()):
        print(f"ok  {claim}")
