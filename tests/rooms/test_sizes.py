"""No room is so full that a newcomer cannot look around in it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 3000


def test_no_room_is_beyond_3000_lines() -> None:
    """A room is a folder without its folders."""
    files = [file for top in ("mview", "connectors") for file in (ROOT / top).rglob("*.py")]
    rooms = sorted({file.parent for file in files})
    lines = {
        str(room.relative_to(ROOT)): sum(
            len(file.read_text().splitlines()) for file in room.glob("*.py")
        )
        for room in rooms
    }
    assert len(lines) > 20
    assert {room: n for room, n in lines.items() if n > MOST_LINES} == {}
