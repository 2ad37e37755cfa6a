"""The files of the pages: their bytes and their media types."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

MEDIA_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}


@cache
def page_files() -> dict[str, bytes]:
    """The pages' own files, by path within `web/`: no other file is served."""
    return dict(_files_in(resources.files("earmark") / "web", within=""))


@cache
def page_tags() -> dict[str, str]:
    """The tag of each file, by its bytes: a browser that has a file asks only whether it is still the same."""
    return {name: f'"{sha256(content).hexdigest()[:32]}"' for name, content in page_files().items()}


def media_type_of(name: str) -> str:
    """By the end of its name."""
    return MEDIA_TYPES[name.rpartition(".")[2]]


def _files_in(folder: Traversable, *, within: str) -> Iterator[tuple[str, bytes]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _files_in(file, within=f"{within}{file.name}/")
        elif file.name.rpartition(".")[2] in MEDIA_TYPES:
            yield f"{within}{file.name}", file.read_bytes()
