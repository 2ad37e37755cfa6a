"""The document is valid, complete, and says only what is so: every example fits, every header and status is there."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from earmark.api import problem_response
from earmark.api.app import ENDPOINTS
from earmark.api.openapi import document as openapi
from earmark.api.openapi import response_and_error_examples
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
DOCUMENT: Json = msgspec.json.decode(msgspec.json.encode(openapi.document(ENDPOINTS, version=__version__)))
OPERATIONS = {
    operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
}


def check(instance: Any, schema: Json) -> list[str]:
    """What is wrong with it, by a schema that refers to the document's own."""
    whole = schema | {"components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
    return [str(error) for error in validator.iter_errors(instance)]


def contents(operation: Json) -> Iterator[tuple[str, Json]]:
    """Every body that goes in or out, with where it stands."""
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        yield f"request {kind}", media
    for status, response in operation["responses"].items():
        for kind, media in response.get("content", {}).items():
            yield f"{status} {kind}", media


def shown(media: Json) -> list[Any]:
    return [media["example"]] if "example" in media else [one["value"] for one in media.get("examples", {}).values()]


def faults(document: Json) -> list[str]:
    validator = jsonschema_rs.Draft202012Validator(OPENAPI_31, validate_formats=False)
    return [str(error) for error in validator.iter_errors(document)]


def test_the_document_is_openapi() -> None:
    """By the meta schema of OpenAPI 3.1 itself, which would notice a slip."""
    assert faults(DOCUMENT) == []
    slip = copy.deepcopy(DOCUMENT)
    slip["paths"]["/v1/bookings"]["post"]["responses"]["201"].pop("description")
    assert faults(slip)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_request_and_answer_has_an_example_that_fits(name: str) -> None:
    """Also of each refusal, by its code."""
    for where, media in contents(OPERATIONS[name]):
        assert shown(media), f"{where} has no example"
        for example in shown(media):
            assert check(example, media["schema"]) == [], where


def test_an_example_that_does_not_fit_is_noticed() -> None:
    """The control of the test above."""
    schema = {"$ref": "#/components/schemas/Booking"}
    assert check(response_and_error_examples.HELD, schema) == []
    assert check(response_and_error_examples.HELD | {"state": "gone"}, schema)
    assert check(response_and_error_examples.HELD | {"expires_at": "soon"}, schema)
    assert check({name: value for name, value in response_and_error_examples.HELD.items() if name != "total"}, schema)


def test_an_answer_example_has_every_field_and_no_other() -> None:
    """A reader may copy it."""
    for call in ENDPOINTS:
        example = response_and_error_examples.ANSWERS[call.name]
        assert set(example) <= set(call.answer.__struct_fields__), call.name
        optional = {field.name for field in msgspec.structs.fields(call.answer) if not field.required}
        assert set(example) | optional == set(call.answer.__struct_fields__), call.name


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_parameter_has_a_form_that_its_example_fits(name: str) -> None:
    """Formats and patterns, not only names."""
    for parameter in OPERATIONS[name]["parameters"]:
        schema = parameter["schema"]
        assert {"pattern", "format", "enum", "minimum", "minLength"} & set(schema) or parameter["in"] == "header"
        if "example" in parameter:
            assert check(parameter["example"], schema) == [], parameter["name"]


@pytest.mark.parametrize("call", ENDPOINTS, ids=lambda call: call.name)
def test_every_status_and_header_is_described(call: Any) -> None:
    """What a call may refuse with has its status, its code, its example and its headers."""
    operation = OPERATIONS[call.name]
    described = {
        code: response
        for response in operation["responses"].values()
        for media in response.get("content", {}).values()
        for code in media.get("examples", {})
    }
    always = {"overloaded", "outcome_unknown", "unavailable", "internal"}
    scoped = {"unauthorized", "forbidden"} if call.scope else set()
    keyed = {"idempotency_mismatch", "idempotency_in_progress"} if call.idempotent else set()
    assert described.keys() >= {*call.refusals, *always, *scoped, *keyed}
    for code, response in described.items():
        assert set(response.get("headers", {})) >= set(problem_response.HEADERS.get(code, {})), code
    granted = operation["responses"][str(int(call.status))]
    assert ("Idempotency-Replayed" in granted.get("headers", {})) is call.idempotent


def test_every_code_has_an_example() -> None:
    """But for the one that ends the program before it serves."""
    assert set(response_and_error_examples.REFUSALS) == set(problem_response.STATUS) - {"setup"}
    assert {code: error.code for code, error in response_and_error_examples.REFUSALS.items()} == {
        code: code for code in response_and_error_examples.REFUSALS
    }


def test_every_header_that_is_described_is_described_once() -> None:
    """In one place, and each is used."""
    used = {
        header["$ref"].rpartition("/")[2]
        for response in (
            *DOCUMENT["components"]["responses"].values(),
            *(response for operation in OPERATIONS.values() for response in operation["responses"].values()),
        )
        for header in response.get("headers", {}).values()
    }
    assert used == set(DOCUMENT["components"]["headers"])


def test_each_operation_has_an_idempotency_key_example_of_its_own() -> None:
    """Requests copied one after the other do not collide by their keys."""
    keys = {
        name: parameter["example"]
        for name, operation in OPERATIONS.items()
        for parameter in operation["parameters"]
        if parameter["name"] == "Idempotency-Key"
    }
    assert keys.keys() >= {call.name for call in ENDPOINTS if call.idempotent}
    assert len(set(keys.values())) == len(keys), keys
    [looked_up] = [one["example"] for one in OPERATIONS["show_key_result"]["parameters"] if one["name"] == "key"]
    assert looked_up == keys["hold"], "the key that is looked up is one that was sent"


def test_every_address_is_described_as_one() -> None:
    """Generated clients and validators know an address from a text, in requests and in answers."""
    schemas = DOCUMENT["components"]["schemas"]
    addresses = [
        ("WebhookBody", "url"),
        ("WebhookPatchBody", "url"),
        ("WebhookAnswer", "url"),
        ("SecretAnswer", "url"),
        ("PayBody", "return_url"),
    ]
    for name, field in addresses:
        described = schemas[name]["properties"][field]
        shapes = [shape for shape in described.get("anyOf", [described]) if shape.get("type") == "string"]
        assert [shape.get("format") for shape in shapes] == ["uri"], (name, field)
    wrong = response_and_error_examples.WEBHOOK | {"url": "not an address"}
    assert check(wrong, {"$ref": "#/components/schemas/WebhookAnswer"}), "the control: the format is checked"


def test_everything_that_a_reader_sees_is_described() -> None:
    """As Spectral's rules require it: the document, each group, each operation and each parameter."""
    assert DOCUMENT["info"]["contact"]["name"]
    assert [tag["name"] for tag in DOCUMENT["tags"] if not tag.get("description")] == []
    missing = [name for name, operation in OPERATIONS.items() if not operation.get("description")]
    assert missing == []
    unsaid = {
        (name, parameter["name"])
        for name, operation in OPERATIONS.items()
        for parameter in operation["parameters"]
        if not parameter.get("description")
    }
    assert unsaid == set()
    known = set(DOCUMENT["components"]["securitySchemes"])
    for operation in OPERATIONS.values():
        for way in operation.get("security", ()):
            assert set(way) <= known
            # Neither scheme is OAuth: a list here would name scopes that no scheme declares.
            assert not any(way.values()), "what a key must be allowed stands in x-scopes"
