"""What a cell of a Sokoban room can show: its code, its name, and how it is painted."""

from __future__ import annotations

from ragen2.envs.toolkit.pixels import Mark, Tile, bricks, crate, figure, ground

WALL, FLOOR, TARGET, BOX_ON, BOX, PLAYER, PLAYER_ON = range(7)
PICTURE = (
    "The image shows you as a blue figure, boxes as brown crates, targets as red diamonds, boxes on "
    "targets as green crates, walls as bricks."
)
MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on a target")

_FLOOR_TILE = ground((236, 226, 204), (214, 202, 176))
_TARGET_TILE = (
    *_FLOOR_TILE,
    Mark("diamond", (200, 40, 40), 0.46, 0.46),
    Mark("diamond", (250, 190, 180), 0.3, 0.3),
)
_FIGURE = figure((70, 120, 220))
TILES: dict[int, Tile] = {
    WALL: bricks((124, 110, 108), (66, 62, 70)),
    FLOOR: _FLOOR_TILE,
    TARGET: _TARGET_TILE,
    BOX_ON: (*_TARGET_TILE, *crate((30, 110, 50), (110, 200, 120))),
    BOX: (*_FLOOR_TILE, *crate((120, 72, 24), (214, 154, 84))),
    PLAYER: (*_FLOOR_TILE, *_FIGURE),
    PLAYER_ON: (*_TARGET_TILE, *_FIGURE),
}
