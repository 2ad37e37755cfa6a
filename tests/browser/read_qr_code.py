"""Reads a QR code from the SVG on a page, as a scanner does: its modules, its mask, its blocks, its text.

For codes of the size that a ticket has (version 3), and without error correction: on a page no module is damaged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZE = 29
ALIGNMENT = 22
FORMAT_MASK = 0x5412
DATA_BYTES = {0b00: (44,), 0b11: (17, 17), 0b01: (55,), 0b10: (13, 13)}
"""Of version 3, how many bytes of data each block has, by the bits of the correction level: M, Q, L and H."""
DIGITS, BYTES = 0b0001, 0b0100
MODE_BITS = 4
MASKS = (
    lambda y, x: (y + x) % 2,
    lambda y, _: y % 2,
    lambda _, x: x % 3,
    lambda y, x: (y + x) % 3,
    lambda y, x: (y // 2 + x // 3) % 2,
    lambda y, x: y * x % 2 + y * x % 3,
    lambda y, x: (y * x % 2 + y * x % 3) % 2,
    lambda y, x: ((y + x) % 2 + y * x % 3) % 2,
)

Modules = list[list[bool]]


def read_qr_code(path: str) -> str:
    """The text of a code whose black modules have this outline."""
    modules = modules_in(path)
    level, mask = _format(modules)
    raw = list(_bits(modules, mask))
    codewords = [_number(raw[start : start + 8]) for start in range(0, len(raw) - 7, 8)]
    data = _blocks_joined(codewords, DATA_BYTES[level])
    bits = [bool(byte >> place & 1) for byte in data for place in range(7, -1, -1)]
    return "".join(_segments(bits))


def _segments(bits: Sequence[bool]) -> Iterator[str]:
    """The parts of the text, each in a mode of its own: a code that begins or ends with digits has them apart."""
    place = 0

    def take(size: int) -> int:
        nonlocal place
        place += size
        return _number(bits[place - size : place])

    while len(bits) - place >= MODE_BITS and (mode := take(MODE_BITS)):
        if mode == BYTES:
            yield bytes([take(8) for _ in range(take(8))]).decode()
            continue
        assert mode == DIGITS, f"a mode that no ticket needs: {mode}"
        left = take(10)
        while left:
            several = min(left, 3)
            yield f"{take(3 * several + 1):0{several}}"
            left -= several


def modules_in(path: str) -> Modules:
    """Which modules are black: those with an odd number of the outline's vertical edges to their left."""
    modules = [[False] * SIZE for _ in range(SIZE)]
    for outline in re.findall(r"M([^Z]*)Z", path):
        points = [tuple(map(int, point.split())) for point in outline.split("L")]
        for (x, y), (to_x, to_y) in zip(points, [*points[1:], points[0]], strict=True):
            if x != to_x:
                continue
            for row in range(min(y, to_y), max(y, to_y)):
                for column in range(x, SIZE):
                    modules[row][column] ^= True
    return modules


def _format(modules: Modules) -> tuple[int, int]:
    """The bits of the correction level, and the number of the mask."""
    places = [(8, x) for x in (0, 1, 2, 3, 4, 5, 7, 8)] + [(y, 8) for y in (7, 5, 4, 3, 2, 1, 0)]
    told = _number([modules[y][x] for y, x in places]) ^ FORMAT_MASK
    return told >> 13, told >> 10 & 0b111


def _bits(modules: Modules, mask: int) -> Iterator[bool]:
    """The data, two columns at a time from the right, up and down in turn, passing over what belongs to the frame."""
    upwards = True
    right = SIZE - 1
    while right > 0:
        if right == 6:
            right -= 1
        for y in reversed(range(SIZE)) if upwards else range(SIZE):
            for x in (right, right - 1):
                if not _belongs_to_frame(y, x):
                    yield modules[y][x] ^ (MASKS[mask](y, x) == 0)
        upwards = not upwards
        right -= 2


def _belongs_to_frame(y: int, x: int) -> bool:
    finder = (y < 9 and x < 9) or (y < 9 and x >= SIZE - 8) or (y >= SIZE - 8 and x < 9)
    return finder or 6 in {y, x} or (abs(y - ALIGNMENT) <= 2 and abs(x - ALIGNMENT) <= 2)


def _blocks_joined(codewords: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """The blocks are sent byte by byte in turn; all of these have one length."""
    together = codewords[: sum(lengths)]
    return [byte for block in range(len(lengths)) for byte in together[block :: len(lengths)]]


def _number(bits: Sequence[bool]) -> int:
    return int("".join("1" if bit else "0" for bit in bits), 2)
