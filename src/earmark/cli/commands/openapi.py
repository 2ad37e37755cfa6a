"""The command that prints the OpenAPI document, or a request collection made from it."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from earmark.version import __version__


def openapi(
    *,
    collection: Annotated[
        bool, Parameter(negative="", help="A request collection in Postman's format instead, with scenarios to run.")
    ] = False,
) -> None:
    """Print the OpenAPI document of this version."""
    sys.stdout.write(text(collection=collection))


def text(*, collection: bool = False) -> str:
    """The document as JSON text."""
    from earmark.api.app import ENDPOINTS
    from earmark.api.openapi.document import document
    from earmark.api.openapi.postman import collection as collect

    described = document(ENDPOINTS, version=__version__)
    shown = collect(described) if collection else described
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n"
