"""/openapi.json: every route of the table, every function with its own schemas, references that resolve."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
import pydantic
import pytest

from echod.gateway.app import TABLE
from echod.gateway.openapi import PAGES_ONLY, SHAPES, openapi
from echofn.models import json_schema
from unit.gateway.kit import FUNCTIONS, NAMED, Rig, function


def test_the_document_and_the_table_have_the_same_routes() -> None:
    routes = {(entry.method, re.sub(r":names?", "", entry.path)) for entry in TABLE}
    assert set(SHAPES) | PAGES_ONLY == routes
    assert not set(SHAPES) & PAGES_ONLY


def test_each_function_has_a_path_with_its_payload_and_its_result() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
        "$defs": {"Item": {"type": "object", "properties": {"count": {"type": "integer"}}}},
    }
    document: Any = openapi([function("shop.pack", schema=schema), function("odd name/{x}#🦊")])
    call = document["paths"]["/functions/shop.pack"]["post"]
    assert call["requestBody"]["required"]
    assert set(call["responses"]) == {"200", "202", "default"}
    [key] = [key for key in document["components"]["schemas"] if key.endswith(".Item")]
    assert document["components"]["schemas"][key]["properties"]["count"]["maximum"] == 2**64 - 1
    assert "/functions/odd%20name%2F%7Bx%7D%23%F0%9F%A6%8A" in document["paths"]
    for reference in references(document):
        at: Any = document
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Coin(pydantic.BaseModel):
    kind: Literal["coin"]
    mapping: str = "#/$defs/Coin"  # no keyword


class Card(pydantic.BaseModel):
    kind: Literal["card"]


class Paid(pydantic.BaseModel):
    by: Annotated[Coin | Card, pydantic.Field(discriminator="kind")]


@pytest.mark.parametrize(("kind", "tags"), [(Cat | Dog, {"cat", "dog"}), (Paid, {"coin", "card"})])
def test_what_a_tag_stands_for_is_found_in_the_document(kind: Any, tags: set[str]) -> None:
    document: Any = openapi([function("shop.pack", schema=json_schema(kind, "validation"))])
    schema = document["paths"]["/functions/shop.pack"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = schema.get("properties", {}).get("by", schema)
    mapping, choices = schema["discriminator"]["mapping"], schema.get("anyOf") or schema["oneOf"]
    assert set(mapping) == tags
    assert set(mapping.values()) == {each["$ref"] for each in choices}
    for tag, reference in mapping.items():
        found = document["components"]["schemas"][reference.removeprefix("#/components/schemas/")]
        told = found["properties"][schema["discriminator"]["propertyName"]]
        assert tag in (told.get("const"), *told.get("enum", ()))
        assert found["properties"].get("mapping", {}).get("default") in (None, "#/$defs/Coin")


def test_what_an_answer_leads_to_is_an_operation_of_the_document() -> None:
    document: Any = openapi([function("shop.pack")])
    operations = {each["operationId"]: each for path in document["paths"].values() for each in path.values()}
    call = document["paths"]["/functions/shop.pack"]["post"]["responses"]["202"]["links"]
    assert call["job"] == {"operationId": "get_jobs_id", "parameters": {"id": "$response.body#/id"}}
    links = [
        link
        for operation in operations.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 4
    for link in links:
        needed = {each["name"] for each in operations[link["operationId"]]["parameters"] if each["required"]}
        assert link["parameters"].keys() == needed


def references(item: Any) -> list[str]:
    """Every $ref within."""
    if isinstance(item, dict):
        own = [item["$ref"]] if "$ref" in item else []
        return own + [found for value in item.values() for found in references(value)]
    return [found for value in item for found in references(value)] if isinstance(item, list) else []


@pytest.mark.parametrize("path", [path for method, path in SHAPES if method == "GET" and "{" not in path])
async def test_an_answer_is_what_the_document_says(rig: Rig, path: str) -> None:
    await rig.mint("hello.any", {"x": 1})
    await rig.recur("report.weekly")
    document = (await rig.http.get("/openapi.json")).json()
    content = document["paths"][path]["get"]["responses"]["200"].get("content")
    answer = await rig.http.get(path, headers={"Accept": "application/json"})
    assert answer.status_code == 200
    if content is not None:
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        jsonschema_rs.Draft202012Validator(schema).validate(answer.json())


async def test_a_function_and_a_job_are_what_the_document_says(rig: Rig) -> None:
    id = await rig.mint("hello.greet", {"name": "x"})
    await rig.run("hello.greet", {"y": b"z"})
    components = (await rig.http.get("/openapi.json")).json()["components"]
    for path, kind in ((f"/jobs/{id}", "Whole"), ("/functions/hello.greet", "FunctionWhole")):
        schema = {"$ref": f"#/components/schemas/{kind}", "components": components}
        jsonschema_rs.Draft202012Validator(schema).validate((await rig.http.get(path)).json())


async def test_the_functions_of_the_active_version_are_in_it(rig: Rig) -> None:
    paths = (await rig.http.get("/openapi.json")).json()["paths"]
    assert len([path for path in paths if path.startswith("/functions/") and "{" not in path]) == len(FUNCTIONS)
    shown = paths["/functions/hello.greet"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert shown["required"] == NAMED["required"]
