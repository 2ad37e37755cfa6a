"""HTTP requests and answers as bytes: attacks send what no HTTP library would, and load generators save its cost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = {"Content-Type": "application/json"}
BODILESS = frozenset({204, 304})
_CODE = re.compile(rb'"code": ?"(\w+)"')
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def request(
    method: str,
    path: str,
    *,
    bearer: str | None = None,
    cookie: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    json: object = None,
    body: bytes | None = None,
) -> bytes:
    """An HTTP/1.1 request; `body` is sent unchanged, `json` is encoded."""
    sent = {"Host": "shop"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
    sent |= ({"Cookie": f"earmark_guest={cookie}"} if cookie else {}) | ({"Idempotency-Key": key} if key else {})
    if json is not None:
        body, sent = msgspec.json.encode(json), sent | JSON
    sent |= headers or {}
    if body is not None and "Content-Length" not in sent:
        sent["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + (body or b"")


def is_complete(data: bytes) -> bool:
    """Whether an answer is complete. One without a length has no body, or is a stream without an end."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = _LENGTH.search(data, 0, end + 2)
    return len(data) >= end + 4 + (int(length[1]) if length and int(data[9:12]) not in BODILESS else 0)


def answer_code(answer: bytes) -> tuple[str, str | None]:
    """The status, and the code where the answer is a problem."""
    status = answer[9:12].decode("ascii", "replace")
    code = _CODE.search(answer) if status >= "400" else None
    return status, code[1].decode() if code else None


def describe_answer(answer: bytes) -> str:
    """The status, and the code where the answer is a problem: `404 not_found`, `200`."""
    return " ".join(filter(None, answer_code(answer)))
