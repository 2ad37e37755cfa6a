"""Runs a request collection over real HTTP: variables, and the few kinds of lines that its scripts have.

A line that it does not know is a failure, and so is a request without an expectation: nothing is skipped.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]
PATIENCE_SECONDS = 60.0

_SET_NEW = re.compile(r'pm\.collectionVariables\.set\("(\w+)", pm\.variables\.replaceIn\("([^"]*)"\)\);')
_WAIT = re.compile(r"setTimeout\(\(\) => \{\}, (\d+)\);")
_STATUS = re.compile(r'pm\.test\("[^"]*", \(\) => pm\.response\.to\.have\.status\((\d+)\)\);')
_FIELD = re.compile(r'pm\.test\("[^"]*", \(\) => pm\.expect\(pm\.response\.json\(\)\.([\w.]+)\)\.to\.eql\((.*)\)\);')
_HEADER = re.compile(
    r'pm\.test\("[^"]*", \(\) => pm\.expect\(pm\.response\.headers\.get\("([\w-]+)"\)\)\.to\.eql\((.*)\)\);'
)
_TEXT = re.compile(
    r'pm\.test\("[^"]*", \(\) => pm\.expect\(pm\.response\.text\(\)\)'
    r'\.to\.eql\(pm\.collectionVariables\.get\("(\w+)"\)\)\);'
)
_KEEP = re.compile(r'pm\.collectionVariables\.set\("(\w+)", pm\.response\.json\(\)\.([\w.]+)\);')
_KEEP_TEXT = re.compile(r'pm\.collectionVariables\.set\("(\w+)", pm\.response\.text\(\)\);')
_RIVAL = re.compile(
    r'pm\.sendRequest\(\{url: pm\.variables\.replaceIn\("\{\{baseUrl\}\}([^"]*)"\), method: "POST", '
    r'header: \{"Content-Type": "application/json", Authorization: pm\.variables\.replaceIn\("Bearer \{\{key\}\}"\)\}, '
    r'body: \{mode: "raw", raw: pm\.variables\.replaceIn\((".*")\)\}\}, '
    r'\(error, response\) => pm\.collectionVariables\.set\("(\w+)", '
    r"\[response\.code, response\.json\(\)\.code \|\| response\.json\(\)\.state\]"
    r'\.concat\(response\.json\(\)\.code \? response\.json\(\)\.seats : \[\]\)\.join\(" "\)\)\);'
)
_RIVALS_TOLD = re.compile(r'pm\.test\("[^"]*", \(\) => pm\.expect\(\[(.*)\]\.sort\(\)\)\.to\.eql\((.*)\)\);')
_GET = re.compile(r'pm\.collectionVariables\.get\("(\w+)"\)')
_HELD = re.compile(
    r'pm\.test\("[^"]*", \(\) => pm\.expect\(pm\.response\.json\(\)\.seats'
    r'\.filter\(\(seat\) => seat\.state === "held"\)\.length\)\.to\.eql\((\d+)\)\);'
)
_REPLACED = re.compile(r"pm\.variables\.replaceIn\((.*)\)")


@dataclass
class Runner:
    """One caller, with the variables of a collection."""

    client: httpx2.AsyncClient
    variables: dict[str, str]
    checked: int = field(default=0)

    async def play(self, story: Json) -> None:
        """Every request of a folder, in order."""
        for item in story["item"]:
            await self.send(item)

    async def send(self, item: Json) -> httpx2.Response:
        """One request. Where time has to pass before it, it is repeated until it is as expected, within a bound."""
        before = _lines(item, "prerequest")
        waits = [self._prepare(line) for line in before if not _RIVAL.fullmatch(line)]
        # As a script does: each is sent, and the request itself waits until all were answered.
        await asyncio.gather(*(self._challenge(found) for line in before if (found := _RIVAL.fullmatch(line))))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            response = await self.ask(item["request"])
            try:
                self._check(item, response)
            except AssertionError:
                if not any(waits) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return response

    async def ask(self, request: Json) -> httpx2.Response:
        """As it stands in the collection, with its variables filled in."""
        url = request["url"]
        places = {one["key"]: self.fill(one["value"]) for one in url.get("variable", [])}
        path = "/".join(places[part[1:]] if part.startswith(":") else part for part in url["path"])
        body = self.fill(request["body"]["raw"]) if "body" in request else None
        headers = {one["key"]: self.fill(one["value"]) for one in request["header"]}
        return await self.client.request(request["method"], f"/{path}", content=body, headers=headers)

    def fill(self, text: str) -> str:
        """With the variables' values."""
        return re.sub(
            r"\{\{(\$?\w+)\}\}",
            lambda found: str(uuid.uuid4()) if found[1] == "$guid" else self.variables[found[1]],
            text,
        )

    async def _challenge(self, rival: re.Match[str]) -> None:
        path, body, name = rival.groups()
        headers = {"Content-Type": "application/json"}
        response = await self.client.post(path, content=self.fill(json.loads(body)), headers=headers)
        told = response.json()
        seats = told["seats"] if "code" in told else []
        self.variables[name] = " ".join([str(response.status_code), told.get("code") or told["state"], *seats])

    def _prepare(self, line: str) -> bool:
        if new := _SET_NEW.fullmatch(line):
            self.variables[new[1]] = self.fill(new[2])
            return False
        assert _WAIT.fullmatch(line), f"not understood: {line}"
        return True

    def _check(self, item: Json, response: httpx2.Response) -> None:
        lines = _lines(item, "test")
        assert lines, f"{item['name']} expects nothing"
        for line in lines:
            self._expect(line, response)

    def _expect(self, line: str, response: httpx2.Response) -> None:
        told = response.text
        if status := _STATUS.fullmatch(line):
            assert response.status_code == int(status[1]), told
        elif text := _TEXT.fullmatch(line):
            assert told == self.variables[text[1]]
        elif rivals := _RIVALS_TOLD.fullmatch(line):
            assert sorted(self.variables[name] for name in _GET.findall(rivals[1])) == self._value(rivals[2])
        elif held := _HELD.fullmatch(line):
            assert sum(seat["state"] == "held" for seat in response.json()["seats"]) == int(held[1]), told
        elif header := _HEADER.fullmatch(line):
            assert response.headers.get(header[1]) == self._value(header[2]), response.headers
        elif part := _FIELD.fullmatch(line):
            assert _at(response.json(), part[1]) == self._value(part[2]), told
        elif kept := _KEEP.fullmatch(line):
            self.variables[kept[1]] = _at(response.json(), kept[2])
        elif whole := _KEEP_TEXT.fullmatch(line):
            self.variables[whole[1]] = told
        else:
            raise AssertionError(f"not understood: {line}")
        self.checked += 1

    def _value(self, script: str) -> Any:
        if replaced := _REPLACED.fullmatch(script):
            return self.fill(json.loads(replaced[1]))
        return json.loads(script)


def _lines(item: Json, kind: str) -> list[str]:
    return [line for event in item.get("event", []) if event["listen"] == kind for line in event["script"]["exec"]]


def _at(value: Any, place: str) -> Any:
    for name in place.split("."):
        value = value[name]
    return value
