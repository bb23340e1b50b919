"""The images of a run directory: each kept once, read back to the pixel, missed by name."""

import dataclasses
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import make
from ragen2.errors import DependencyError, RunError
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import ImageStore, group_lines, groups_of, png_bytes, read_png
from ragen2.types import Image


def _image(shade, size=4):
    return Image(np.full((size, size, 3), shade, np.uint8))


def _groups(first=100_000, **settings):
    env = make("FrozenLake", observation="image", **settings)
    policy = ScriptedPolicy(lambda prompt, rng: f"{rng.integers(9)}</think><answer>Up</answer>")
    tasks = [[Task(first + p, luck) for luck in range(2)] for p in range(3)]
    return play(env, policy, tasks, Rollout(), key=("images",))


def _names(run, step):
    with zipfile.ZipFile(run / "images" / f"step_{step:06d}.zip") as archive:
        return archive.namelist()


def test_images_come_back_to_the_pixel(tmp_path):
    noise = Image(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    ImageStore(tmp_path).save(1, [_image(3), noise])
    again = ImageStore(tmp_path)
    assert np.array_equal(again.read(noise.digest).pixels, noise.pixels)
    assert again.read(_image(3).digest) == _image(3)
    assert again.file(noise.digest) == png_bytes(noise.pixels)


def test_an_image_is_kept_once_in_a_run(tmp_path):
    store = ImageStore(tmp_path)
    store.save(1, [_image(1), _image(1), _image(2)])
    store.save(2, [_image(2), _image(3)])
    store.save(3, [_image(1)])
    assert len(_names(tmp_path, 1)) == 2
    assert _names(tmp_path, 2) == [f"{_image(3).digest}.png"]
    assert not (tmp_path / "images" / "step_000003.zip").exists()


def test_a_step_saved_twice_keeps_the_images_of_both(tmp_path):
    ImageStore(tmp_path).save(1, [_image(1)])
    ImageStore(tmp_path).save(1, [_image(2)])
    assert [ImageStore(tmp_path).read(_image(n).digest) for n in (1, 2)] == [_image(1), _image(2)]


def test_without_images_there_is_no_folder(tmp_path):
    ImageStore(tmp_path).save(1, [])
    assert not (tmp_path / "images").exists()


def test_a_rewound_run_forgets_later_images(tmp_path):
    store = ImageStore(tmp_path)
    store.save(1, [_image(1)])
    store.save(2, [_image(2)])
    store.rewind(1)
    assert store.read(_image(1).digest) == _image(1)
    with pytest.raises(RunError, match="is missing"):
        store.read(_image(2).digest)
    store.save(2, [_image(2)])
    assert store.read(_image(2).digest) == _image(2)


def test_a_missing_image_is_one_clear_line(tmp_path):
    with pytest.raises(RunError) as error:
        ImageStore(tmp_path).read("ab" * 16)
    assert str(error.value) == (
        f"image {'ab' * 16}.png is missing from {tmp_path}/images; put back the archive of its step"
    )


def test_a_damaged_archive_is_one_clear_line(tmp_path):
    ImageStore(tmp_path).save(1, [_image(1)])
    (tmp_path / "images" / "step_000001.zip").write_bytes(b"no archive")
    with pytest.raises(RunError, match=r"step_000001.zip is damaged \(File is not a zip file\)"):
        ImageStore(tmp_path).read(_image(1).digest)


def test_an_image_with_other_pixels_than_its_name_is_refused(tmp_path):
    (tmp_path / "images").mkdir()
    with zipfile.ZipFile(tmp_path / "images" / "step_000001.zip", "w") as archive:
        archive.writestr(f"{_image(1).digest}.png", png_bytes(_image(2).pixels))
        archive.writestr(f"{_image(3).digest}.png", b"GIF89a")
    with pytest.raises(RunError, match="its pixels are others than its name says"):
        ImageStore(tmp_path).read(_image(1).digest)
    with pytest.raises(RunError, match="cannot be read: it is not a PNG file"):
        ImageStore(tmp_path).read(_image(3).digest)


def test_equal_images_give_equal_archives(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        ImageStore(tmp_path / name).save(1, [_image(1), _image(2)])
    one, other = (tmp_path / name / "images" / "step_000001.zip" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_rollouts_with_images_are_replayed_as_they_were_played(tmp_path):
    groups = _groups()
    run = RunDirectory.create(tmp_path / "run", "")
    run.save_rollouts(1, groups)
    lines = (run.path / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    found = groups_of(lines, RunDirectory(run.path).images.read)
    assert [group.prompt for group in found] == [group.prompt for group in groups]
    for one, other in zip(found, groups, strict=True):
        for mine, theirs in zip(one.trajectories, other.trajectories, strict=True):
            for turn, played in zip(mine.turns, theirs.turns, strict=True):
                assert turn.images == played.images
                assert turn.shown_image == played.shown_image
                assert np.array_equal(turn.prompt_ids_T, played.prompt_ids_T)


def test_lines_hold_names_not_pixels_and_text_lines_neither():
    lines = group_lines(_groups()[0], 1)
    assert all(len(line) < 30_000 for line in lines)
    assert '"images": ["' in lines[0]
    env = make("FrozenLake")
    policy = ScriptedPolicy(lambda prompt, rng: "x</think><answer>Up</answer>")
    (group,) = play(env, policy, [[Task(100_000, 0)]], Rollout(), key=())
    assert "image" not in group_lines(group, 1)[0].replace("messages", "")


def test_without_a_store_rollouts_are_read_without_images():
    groups = _groups()
    lines = [line for group in groups for line in group_lines(group, 1)]
    found = groups_of(lines)
    assert len(found) == 3
    assert {turn.images for g in found for one in g.trajectories for turn in one.turns} == {()}


def test_a_rollout_whose_image_is_missing_says_so(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "")
    run.save_rollouts(1, _groups())
    (run.path / "images" / "step_000001.zip").unlink()
    lines = (run.path / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    with pytest.raises(RunError, match=r"image [0-9a-f]{32}.png is missing from"):
        groups_of(lines, RunDirectory(run.path).images.read)


def test_a_run_that_is_rewound_and_played_again_has_all_its_images(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "")
    for step in (1, 2, 3):
        run.save_rollouts(step, _groups(100_000 + 10 * step))
    run.rewind(1)
    run.save_rollouts(2, _groups(100_020))
    lines = (run.path / "rollouts" / "step_000002.jsonl").read_text().splitlines()
    assert len(groups_of(lines, run.images.read)) == 3


def test_two_hundred_steps_take_less_than_fifty_megabytes(tmp_path):
    """On disk in blocks of 4 KiB; five steps of a batch of 8 x 16, the rest are like them."""
    for kind, steps in (("FrozenLake", 3), ("Sokoban", 2)):
        run = RunDirectory.create(tmp_path / kind, "")
        env = make(kind, observation="image")
        moves = ("Up", "Down", "Left", "Right")

        def wander(prompt, rng, moves=moves):
            return f"x</think><answer>{moves[rng.integers(4)]} || {moves[rng.integers(4)]}</answer>"

        for step in range(steps):
            tasks = [[Task(100_000 + 8 * step + p, luck) for luck in range(16)] for p in range(8)]
            key = ("disk", step)
            run.save_rollouts(step, play(env, ScriptedPolicy(wander), tasks, Rollout(), key=key))
        blocks = [-(-path.stat().st_size // 4096) for path in (run.path / "images").iterdir()]
        assert len(blocks) == steps
        assert sum(blocks) * 4096 * 200 / steps < 50e6


def test_group_members_share_one_image_of_the_prompt():
    (group, *_) = _groups()
    assert dataclasses.replace(group.prompt) == group.trajectories[1].prompt


def _colours(count, size=(13, 11)):
    palette = np.random.default_rng(count).integers(0, 256, (count, 3), dtype=np.uint8)
    index = np.arange(size[0] * size[1]).reshape(size) % count
    return palette[index]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 143, 255, 256, 257, 1200])
def test_images_of_any_number_of_colours_come_back(count):
    image = _colours(count, (40, 31))
    assert np.array_equal(read_png(png_bytes(image)), image)


def test_unevenly_used_and_neighbouring_colours_come_back():
    """A palette is exact also where most pixels have one colour, and others differ by one shade."""
    rng = np.random.default_rng(0)
    for count in (7, 60, 256):
        palette = np.stack([np.arange(count) // 3, np.arange(count) % 3, np.full(count, 9)], axis=1)
        index = np.minimum(rng.geometric(0.2, size=(64, 64)) - 1, count - 1)
        index.flat[:count] = np.arange(count)
        image = palette.astype(np.uint8)[index]
        assert np.array_equal(read_png(png_bytes(image)), image)


def test_equal_pixels_give_equal_bytes():
    assert png_bytes(_colours(5)) == png_bytes(_colours(5).copy())


def test_a_picture_without_colour_is_refused():
    with pytest.raises(ValueError, match="height x width x 3 bytes"):
        png_bytes(np.zeros((2, 2, 1), dtype=np.uint8))


@pytest.mark.parametrize(("kind", "most"), [("FrozenLake", 600), ("Sokoban", 1000)])
def test_a_board_takes_a_few_hundred_bytes(kind, most):
    sizes = [len(png_bytes(make(kind).start(seed, 0).image(28))) for seed in range(10)]
    assert max(sizes) < most


def _cut(data):
    return data[:-30]


def _flipped(data):
    place = data.index(b"IDAT") + 6
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def _enormous(data):
    """The header of an image that would fill the memory."""
    header = struct.pack(">II", 2**20, 2**20) + data[24:29]
    return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GIF89a" + data, "it is not a PNG file"),
        (_cut, "it is damaged: "),
        (_flipped, "it is damaged: "),
        (_enormous, "it is damaged: "),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        read_png(change(png_bytes(_colours(5))))
    assert "\n" not in str(error.value)


def _chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_files_of_earlier_versions_are_read():
    """They have a palette of two colours, one bit per pixel, unfiltered rows and one IDAT."""
    header = struct.pack(">IIBBBBB", 4, 2, 1, 3, 0, 0, 0)
    rows = zlib.compress(bytes([0, 0b10100000, 0, 0b01010000]), 9)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(name, part)
        for name, part in (
            (b"IHDR", header),
            (b"PLTE", bytes([1, 2, 3, 200, 100, 50])),
            (b"IDAT", rows),
            (b"IEND", b""),
        )
    )
    one, other = [200, 100, 50], [1, 2, 3]
    assert read_png(data).tolist() == [[one, other, one, other], [other, one, other, one]]


def test_without_pillow_files_are_passed_on_and_pixels_name_the_extra(tmp_path, monkeypatch):
    store = ImageStore(tmp_path)
    store.save(1, [_image(1)])
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert store.file(_image(1).digest).startswith(b"\x89PNG")
    for use in (lambda: store.read(_image(1).digest), lambda: store.save(2, [_image(2)])):
        with pytest.raises(
            DependencyError, match=r"^images need pillow; pip install 'ragen2\[vision\]'$"
        ):
            use()
