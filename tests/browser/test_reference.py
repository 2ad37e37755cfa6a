from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

METHODS = {"get", "post", "put", "patch", "delete", "head", "options"}


def test_the_reference_shows_every_operation(visitor: Visitor, demo: Demo) -> None:
    """What /openapi.json describes is on the page, and nothing else."""
    document = read_document(visitor, demo)
    described = {
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in METHODS & set(item)
    }

    visitor.page.goto(f"{demo.url}/docs")

    shown = visitor.page.locator("[data-operation]")
    expect(shown).to_have_count(len(described))
    assert set(shown.evaluate_all("nodes => nodes.map((node) => node.dataset.operation)")) == described


def test_the_reference_shows_every_schema_and_answer(visitor: Visitor, demo: Demo) -> None:
    """Each schema has its entry, each documented status its line, and no link within the page leads nowhere."""
    document = read_document(visitor, demo)
    answers = sum(
        len(item[method].get("responses", {})) for item in document["paths"].values() for method in METHODS & set(item)
    )

    visitor.page.goto(f"{demo.url}/docs")

    expect(visitor.page.locator(".response")).to_have_count(answers)
    links = visitor.page.locator('a[href^="#"]').evaluate_all("nodes => nodes.map((n) => n.getAttribute('href'))")
    targets = set(visitor.page.locator("[id]").evaluate_all("nodes => nodes.map((node) => '#' + node.id)"))
    assert {f"#schema-{name}" for name in document.get("components", {}).get("schemas", {})} <= targets
    assert [link for link in links if link not in targets] == []


def test_finding_narrows_the_list(visitor: Visitor, demo: Demo) -> None:
    """A few letters of a path are enough to find its operations."""
    visitor.page.goto(f"{demo.url}/docs")
    everything = visitor.page.locator("[data-operation]")
    expect(everything.first).to_be_visible()

    visitor.page.get_by_label("Find").fill("/confirm")

    found = visitor.page.locator("[data-operation]:not([hidden])")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("/confirm")


def read_document(visitor: Visitor, demo: Demo) -> dict[str, Any]:
    answer = visitor.context.request.get(f"{demo.url}/openapi.json")
    assert answer.ok
    document: dict[str, Any] = answer.json()
    return document
