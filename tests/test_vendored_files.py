"""Files of other projects are as these published them: each README has their hashes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

VENDOR = Path(__file__).parent.parent / "src/earmark/web/vendor"
ROW = re.compile(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE)
PROJECTS = sorted(folder for folder in VENDOR.iterdir() if folder.is_dir())


def wrong(folder: Path, told: dict[str, str]) -> set[str]:
    """Files whose hash is not the one that was written down, or of which none was."""
    scripts = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in {".mjs", ".js", ".css"}}
    return {
        name
        for name in scripts | told.keys()
        if not (folder / name).exists() or hashlib.sha256((folder / name).read_bytes()).hexdigest() != told.get(name)
    }


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_a_vendored_file_is_the_one_that_was_published(folder: Path) -> None:
    """Unchanged, with its version, its licence and its hash beside it."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    told = dict(ROW.findall(readme))
    assert told
    assert wrong(folder, told) == set()
    assert re.match(rf"# {folder.name} \d+\.\d+\.\d+\n", readme)
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_a_changed_file_is_noticed() -> None:
    """The control: another hash, a file without one, and a file that is missing."""
    folder = VENDOR / "lean-qr"
    assert wrong(folder, {"index.mjs": "0" * 64, "gone.mjs": "0" * 64}) == {"index.mjs", "extras/svg.mjs", "gone.mjs"}
