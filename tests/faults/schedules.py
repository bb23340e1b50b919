"""A schedule is a function of its seed: what is disturbed, by which faults, and what must hold afterwards."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from inject import ERRNOS, SIGNALS, Fault
from programs import RAGEN2, Ended, Program, run, scratch
from subjects import DAMAGES, GRID, PARTIAL, SUBJECTS, TRL, Subject, digests

from ragen2.runs.checkpoints import find_damage

EQUAL, NAMED, REFUSED = "resumed equal", "damage named", "refused with reason"
LOST, BROKEN = "silent loss", "broken"
MOST_ROUNDS = 2
"""Faults in a row, the later ones while the program goes on."""
WARM_SHARE = 0.6
"""Of the time that an undisturbed program took, which had to import more than a later one."""
CLOCK_JUMPS = (-(10**9), -3600, 3600, 10**9)
SIZES = (0, 1, 100, 1000, 10_000, 100_000, 1_000_000)
VALUES = {
    "disk_full": ERRNOS,
    "error_once": ERRNOS,
    "signal": SIGNALS,
    "clock": CLOCK_JUMPS,
    "no_reader": (0, 1),
    "file_limit": SIZES,
    "kill_in_write": SIZES,
}
DISTURBED = (TRL,) if find_spec("trl") else SUBJECTS
PAIRS = [(one, kind) for one in DISTURBED for kind in one.kinds * one.weight]
QUIET = {128 + number for number in (*SIGNALS, signal.SIGPIPE)}
"""Ends that need no word: nobody reads, or whoever asked for the end knows."""
ENDS = {0, 1, 2, *QUIET, -signal.SIGKILL, -signal.SIGPROF, -signal.SIGXFSZ}


@dataclass(frozen=True, slots=True)
class Reference:
    """One undisturbed run of a subject."""

    folder: Path
    state: Mapping[str, str]
    points: int
    """Write points that it passed."""
    cpu: float


@dataclass(slots=True)
class Schedule:
    """One seed: its draws, and how it ended."""

    seed: int
    references: Mapping[str, Reference]
    outcome: str = EQUAL
    story: list[str] = field(default_factory=list)
    """What was done and what was seen, for whoever repeats it."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 - to be repeated
        self.subject, self.kind = PAIRS[self.seed % len(PAIRS)]
        self.reference = self.references[self.subject.name]

    rng: random.Random = field(init=False)
    subject: Subject = field(init=False)
    kind: str = field(init=False)
    reference: Reference = field(init=False)

    def blame(self, outcome: str, text: str) -> None:
        self.outcome = outcome
        self.story.append(f"{outcome}: {text}")

    def tell(self, who: str, ended: Ended) -> None:
        lines = (ended.err.strip() or ended.out.strip()).splitlines()
        self.story.append(f"{who}: exit {ended.code}: {' | '.join(lines[-3:])[-400:]}")
        if "Traceback" in ended.err + ended.out:
            self.blame(BROKEN, "a traceback")
        elif ended.code not in ENDS:
            self.blame(BROKEN, f"exit code {ended.code}")
        elif ended.code > 0 and ended.code not in QUIET and not lines:
            self.blame(BROKEN, "it failed without a word")


def perform(seed: int, references: Mapping[str, Reference]) -> tuple[int, str, str, str, list[str]]:
    """Disturb, go on, and judge."""
    one = Schedule(seed, references)
    with scratch() as folder:
        prepare(one.subject, references, folder)
        is_reader = bool(one.subject.reads[0]) and one.kind not in DAMAGES
        before = digests(folder, "[mr]*/**/*") if is_reader else {}
        if one.kind in DAMAGES:
            damage_and_go_on(one, folder)
        elif one.kind == "two_writers":
            two_writers(one, folder)
        else:
            break_and_go_on(one, folder)
        if is_reader and digests(folder, "[mr]*/**/*") != before:
            one.blame(LOST, "it changed what it only reads")
    return seed, one.subject.name, one.kind, one.outcome, one.story


def prepare(subject: Subject, references: Mapping[str, Reference], folder: Path) -> None:
    """What the program finds."""
    (folder / "warm.toml").touch()
    maker, name = subject.reads
    if maker:
        shutil.copytree(references[maker].folder / name, folder / name)
    if subject.name == "experiment":
        (folder / "grid.toml").write_text(GRID)
        shutil.copy(references["train"].folder / "run" / "run.toml", folder / "small.toml")


def break_and_go_on(one: Schedule, folder: Path) -> None:
    """Faults in a row, then none: it must end as if there had been none at all."""
    program = one.subject.program
    for _ in range(one.rng.randint(1, MOST_ROUNDS)):
        if one.kind == "kill_moment":
            seconds = one.rng.uniform(0.01, WARM_SHARE * one.reference.cpu)
            one.story.append(f"killed after {seconds:.3f} s of computing")
            ended = run(folder, program, cpu_limit=seconds)
        else:
            value = one.rng.choice(VALUES.get(one.kind, (0,)))
            fault = Fault(one.kind, one.rng.randint(1, one.reference.points), int(value))
            one.story.append(str(fault))
            ended = run(folder, program, fault)
        one.tell("disturbed", ended)
        judge_confirmed(one, ended, folder)
        if ended.code == 0:
            judge_same(one, folder)
            if one.subject.name in {"eval", "warmstart"}:
                return
        program = one.subject.next_program(folder)
    before = digests(folder, "**/*")
    ended = run(folder, program)
    one.tell("gone on", ended)
    left = [path.name for path in folder.glob(f"run/**/{PARTIAL}*") if "report" not in path.name]
    if left and one.subject.name == "train":
        one.blame(BROKEN, f"half-written files stay: {left}")
    if ended.code == 0:
        judge_same(one, folder)
    elif one.subject.may_refuse(folder):
        one.outcome = REFUSED if one.outcome == EQUAL else one.outcome
        if digests(folder, "**/*") != before:
            one.blame(LOST, "refused, but something has changed")
    else:
        one.blame(BROKEN, "it does not go on")


def two_writers(one: Schedule, folder: Path) -> None:
    """The first is halted at a write point while the second tries: one of them writes, not both."""
    fault = Fault("stop", one.rng.randint(1, one.reference.points))
    one.story.append(str(fault))
    first = Program(folder, one.subject.program, fault)
    first.wait(until_stopped=True)
    second = Program(folder, one.subject.next_program(folder))
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline and not second.has_ended():
        time.sleep(0.01)
    first.go_on()
    ends = []
    for who, program in (("the first", first), ("the second", second)):
        ended = program.wait()
        assert ended is not None
        one.tell(who, ended)
        ends.append(ended.code)
    if sorted(ends) != [0, 2]:
        one.blame(BROKEN, f"two writers ended with {ends}")
    judge_same(one, folder)


def damage_and_go_on(one: Schedule, folder: Path) -> None:
    """A file of the finished work, or of work that was killed, is damaged; then the program goes on."""
    subject, rng = one.subject, one.rng
    if not subject.reads[0] and rng.random() < 0.5:
        fault = Fault("kill", rng.randint(one.reference.points // 2, one.reference.points))
        one.story.append(str(fault))
        run(folder, subject.program, fault)
    elif not subject.reads[0]:
        shutil.copytree(one.reference.folder, folder, dirs_exist_ok=True)
    patterns = [pattern for pattern in subject.damaged if any(folder.glob(pattern))]
    path = rng.choice(sorted(folder.glob(rng.choice(patterns))))
    name = str(path.relative_to(folder))
    if (
        subject.name == "watch"
    ):  # it moves the damaged file into place when it has seen the whole one
        path = folder / "damage" / name
        path.parent.mkdir(parents=True)
        shutil.copy(folder / name, path)
    one.story.append(f"{damage(path, one.kind, rng)}: {name}")
    before = digests(folder, "**/*")
    ended = run(folder, subject.next_program(folder))
    one.tell("gone on", ended)
    if ended.code and digests(folder, "**/*") == before:
        one.outcome = REFUSED if one.outcome == EQUAL else one.outcome
    elif subject.name != "watch":
        judge_damage(one, ended, folder, name)


def damage(path: Path, kind: str, rng: random.Random) -> str:
    """Change a file as a power cut or a bad disk does, and say how."""
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.randint(1, 4096))
    flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[start : start + 1])
    ways: dict[str, bytes | None] = {
        "one bit flipped": data[:start] + flipped + data[start + 1 :],
        "zeros": data[:start] + bytes(end - start) + data[end:],
        "garbage": data[:start] + rng.randbytes(end - start) + data[end:],
        "its end twice": data + data[start:],
        "emptied": b"",
        "removed": None,
    }
    how = "cut" if kind == "cut" else rng.choice(list(ways))
    changed = data[:start] if kind == "cut" else ways[how]
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    return f"{how} from byte {start} of {len(data)}"


def judge_confirmed(one: Schedule, ended: Ended, folder: Path) -> None:
    """A step that was told is on disk, with its rollouts."""
    told = [line.split()[1] for line in ended.out.splitlines() if line.startswith("step ")]
    state = one.subject.state(folder)
    for word in told:
        name = f"run/rollouts/step_{int(word.partition('/')[0]):06d}.jsonl"
        if name in one.reference.state and state.get(name) != one.reference.state[name]:
            one.blame(LOST, f"{name} was confirmed and is not there")


def judge_same(one: Schedule, folder: Path) -> None:
    """Success means that everything is as if nothing had happened."""
    if wrong := differing(one, folder):
        one.blame(LOST, f"it ended well, but other than undisturbed: {wrong[:6]}")


def judge_damage(one: Schedule, ended: Ended, folder: Path, name: str) -> None:
    """After damage, all is the same again, or what is not is named."""
    wrong = differing(one, folder)
    if not wrong or one.outcome == BROKEN:
        return
    is_named = any(word in ended.err + ended.out for word in (Path(name).name, "broken JSON"))
    is_named |= "/checkpoints/" in name and f"checkpoint {Path(name).parent.name} is" in ended.err
    if "/checkpoints/" in name and wrong == [name] and not is_named:
        # An older checkpoint was not needed to go on. Whoever opens it must hear of the damage.
        ended = run(folder, (*RAGEN2, "eval", str(Path(name).parent), "--tasks", "1"))
        one.tell("opened", ended)
        is_named = "not as it was saved" in ended.err or ended.code == 2
    tables = [other for other in wrong if other.endswith("table.csv") and ended.code]
    if is_named and (one.subject.reads[0] or {name, *wrong} == {name, *tables}):
        one.outcome = NAMED
    else:
        one.blame(LOST, f"other than undisturbed, in silence: {wrong[:6]}")


def differing(one: Schedule, folder: Path) -> list[str]:
    """Files that are not those of the undisturbed run; a whole checkpoint more than those kept is none."""
    found, wanted = one.subject.state(folder), one.reference.state
    return sorted(
        name
        for name in {*found, *wanted}
        if found.get(name) != wanted.get(name)
        and not (name not in wanted and not find_damage((folder / name).parent))
    )
