"""GET /openapi.json: the routes with the types of what they take and answer, and each function with its own schemas.

One row of `SHAPES` per route of the table that programs use; a test holds the two together. A function's JSON Schemas
are discovery's; their definitions move among the components, under the function's name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.gateway import bulk, clock, lanes, orders, schedules, shapes, system, tokens, versions
from echod.gateway.desk import Desk, answer
from echod.gateway.functions import LONGEST_S, SHORTEST_S
from echod.gateway.jobs import MOST, STATES
from echod.gateway.logs import MOST_LINES
from echod.gateway.query import FILTER, FILTER_OF_ACTIONS, LONGEST_TEXT, SINCE_PATTERN
from echod.gateway.views import View
from echod.registry.schedules import Wanted
from echofn.codec import NIL
from echofn.manifest import Function, WebhookTrigger

_PROBLEM = "application/problem+json"
_JSON = "application/json"
_COMPONENT = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CONVERTED = re.compile(r":names?}")  # what the table says of a part of a path besides its name
_TEXT: View = {"type": "string"}
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1  # what msgpack, and with it any reader of a payload, can carry
_CARRIED = "#/components/schemas/Carried"
_CARRYING: Mapping[str, View] = {  # what a payload's schema leaves open, and the wire does not
    "integer": {"minimum": _LOWEST, "maximum": _HIGHEST},
    "object": {"additionalProperties": {"$ref": _CARRIED}},
    "array": {"items": {"$ref": _CARRIED}},
}


class Shape(NamedTuple):
    """What a route takes and answers. `answers`: type by status, None for one without a body that is JSON."""

    summary: str
    answers: Mapping[int, Any]
    query: Mapping[str, View] = {}
    takes: Any = None
    needs: Mapping[str, View] = {}  # of the query, what must be there
    binary: bool = False
    streams: bool = False  # the same as server-sent events, to whoever does not ask for JSON alone


_LIST: Mapping[str, View] = {
    "function": _TEXT,
    "lane": _TEXT,
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST},
    "cursor": {"type": "string", "pattern": "^(JOB[0-9A-Za-z]{11})?$"},
}
_LOGS: Mapping[str, View] = {
    "since": {"type": "string", "pattern": SINCE_PATTERN},
    "failed": {"enum": ["0", "1"]},
    "grep": {"type": "string", "maxLength": LONGEST_TEXT},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_LINES},
}
_NAME: View = {"type": "string", "minLength": 1}
_WHERE: Mapping[str, View] = {"function": _TEXT}
_OF: Mapping[str, View] = {"function": _NAME}  # of an action: see check_known
_WINDOW: View = {"type": "integer", "minimum": SHORTEST_S, "maximum": LONGEST_S}
_PLAN: Mapping[str, View] = {"plan": {"enum": ["0", "1"]}}
_STATE: View = {"enum": list(STATES)}
_TARGET: Mapping[str, View] = {"to": _NAME}
_LANES: Mapping[str, View] = {"lane": _NAME, **_TARGET}
_MOVING: Mapping[str, View] = {name: schema for name, schema in bulk.WAITING.items() if name != "lane"}
_ENDS: Mapping[str, View] = {"state": {"enum": list(bulk.ENDS)}}
_SWEEP: Mapping[str, View] = {**FILTER_OF_ACTIONS, **bulk.SWEEP}
_DEAD: Mapping[str, View] = {**_OF, **_SWEEP}
_REDRIVING: Mapping[str, View] = {**_DEAD, "rate": bulk.RATE}

SHAPES: Mapping[tuple[str, str], Shape] = {
    ("GET", "/"): Shape("All functions", {200: shapes.Functions}),
    ("GET", "/functions"): Shape("All functions", {200: shapes.Functions}),
    ("GET", "/functions/{name}"): Shape("A function", {200: shapes.FunctionWhole}, {"window": _WINDOW}),
    ("GET", "/functions/{name}/logs"): Shape("What its jobs wrote", {200: shapes.FunctionLogs}, _LOGS, streams=True),
    ("POST", "/functions/{name}"): Shape("Call a function", {200: Any, 202: shapes.Accepted}, takes=Any),
    ("POST", "/functions/{name}/pause"): Shape("Pause a function", {200: shapes.Paused}, {"lane": _NAME}),
    ("POST", "/functions/{name}/resume"): Shape("Resume a function", {200: shapes.Paused}, {"lane": _NAME}),
    ("POST", "/functions/{name}/drain"): Shape(
        "Cancel what waits", {200: bulk.Drained}, {**bulk.WAITING, "lane": _NAME}
    ),
    ("POST", "/functions/{name}/move"): Shape("Move a lane to another", {200: bulk.MovedJobs}, _MOVING, needs=_LANES),
    ("POST", "/functions/{name}/purge"): Shape("Delete ended jobs", {200: bulk.Purged}, _SWEEP, needs=_ENDS),
    ("POST", "/functions/{name}/set"): Shape("Set weight and limits", {200: lanes.SetByHand}, takes=lanes.Change),
    ("GET", "/jobs"): Shape("Jobs, newest first", {200: shapes.Jobs}, {**_LIST, "state": _STATE}),
    ("POST", "/jobs"): Shape("Mint many jobs", {202: orders.OrdersTaken, 207: orders.OrdersTaken}, takes=orders.Orders),
    ("GET", "/jobs/{id}"): Shape("A job", {200: shapes.Whole}, _WHERE),
    ("GET", "/jobs/{id}/logs"): Shape("What a job wrote", {200: list[shapes.LogShape]}, _WHERE, streams=True),
    ("POST", "/jobs/{id}/cancel"): Shape("Cancel a job", {200: shapes.Accepted, 202: shapes.Accepted}, _OF),
    ("POST", "/jobs/{id}/redrive"): Shape("Run a dead job again", {200: shapes.Accepted}, _OF),
    ("POST", "/jobs/{id}/move"): Shape("Move a job to a lane", {200: shapes.Accepted}, _OF, needs=_TARGET),
    ("GET", "/schedules"): Shape("All schedules", {200: schedules.Schedules}),
    ("POST", "/schedules"): Shape(
        "Register a schedule", {200: schedules.ScheduleShape, 201: schedules.ScheduleShape}, takes=Wanted
    ),
    ("DELETE", "/schedules/{id}"): Shape("Remove a registered schedule", {200: schedules.ScheduleRemoved}),
    ("POST", "/schedules/{id}/run"): Shape("Run a schedule now", {202: shapes.Accepted}),
    ("POST", "/schedules/{id}/backfill"): Shape(
        "Make a job for each past instant",
        {200: schedules.ScheduleFilled, 202: schedules.ScheduleFilled},
        takes=schedules.Window,
    ),
    ("POST", "/schedules/{id}/pause"): Shape("Pause a schedule", {200: schedules.SchedulePaused}),
    ("POST", "/schedules/{id}/resume"): Shape("Resume a schedule", {200: schedules.SchedulePaused}),
    ("GET", "/lanes"): Shape("Lanes", {200: lanes.Lanes}, {"function": _TEXT}),
    ("GET", "/morgue"): Shape("Dead jobs", {200: shapes.Jobs}, {**_LIST, **FILTER}),
    ("POST", "/morgue/redrive"): Shape("Run dead jobs again", {200: bulk.RedrivenJobs}, _REDRIVING),
    ("POST", "/morgue/purge"): Shape("Delete dead jobs", {200: bulk.Purged}, _DEAD),
    ("GET", "/versions"): Shape("Versions", {200: versions.Versions}),
    ("GET", "/nodes"): Shape("Nodes", {200: dict[str, Any]}),
    ("GET", "/bus"): Shape("The bus", {200: dict[str, Any]}),
    ("GET", "/clock"): Shape("The clock", {200: clock.ClockShape}),
    ("POST", "/clock"): Shape("Drive the clock", {200: clock.ClockShape}, takes=clock.Move),
    ("POST", "/deploy"): Shape("Deploy a folder", {200: versions.DeployedShape}, _PLAN, binary=True),
    ("POST", "/versions/{id}/activate"): Shape("Switch to a stored version", {200: versions.DeployedShape}, _PLAN),
    ("GET", "/tokens"): Shape("Tokens, but for themselves", {200: tokens.Tokens}),
    ("POST", "/tokens"): Shape("Make a token", {201: tokens.TokenMade}, takes=tokens.Wanted),
    ("DELETE", "/tokens/{name}"): Shape("Revoke a token", {200: tokens.TokenRevoked}),
    ("POST", "/login/links"): Shape("Make a login link", {201: tokens.LinkMade}, takes=tokens.WantedLink),
    ("GET", "/metrics"): Shape("Prometheus's text", {200: None}),
    ("GET", "/openapi.json"): Shape("This document", {200: dict[str, Any]}),
    ("GET", "/healthz"): Shape("Liveness", {200: system.Healthy}),
    ("GET", "/readyz"): Shape("Readiness", {200: system.Ready, 503: system.Ready}),
}


def query_of(method: str, path: str) -> frozenset[str]:
    """What the query of a row of the table may say."""
    shape = SHAPES[method, _CONVERTED.sub("}", path)]
    return frozenset({*shape.query, *shape.needs})


_LINKS: Mapping[Any, Mapping[str, tuple[str, str]]] = {  # by an answer's type: what its `id` or `name` leads to
    shapes.Accepted: {
        name: (operation, "id")
        for name, operation in (
            ("job", "get_jobs_id"),
            ("logs", "get_jobs_id_logs"),
            ("cancel", "post_jobs_id_cancel"),
            ("redrive", "post_jobs_id_redrive"),
        )
    },
    tokens.TokenMade: {"revoke": ("delete_tokens_name", "name")},
}
PAGES_ONLY = {("GET", "/login"), ("POST", "/login"), ("POST", "/logout"), ("GET", "/events")}
_OPEN = {"/healthz", "/readyz"}


async def document(desk: Desk, request: Request) -> Response:
    """GET /openapi.json."""
    active = desk.registry.active
    return answer(openapi(active.manifest.functions if active else ()))


def openapi(functions: Sequence[Function]) -> View:
    """The document for these functions."""
    types = [shape.takes for shape in SHAPES.values() if shape.takes not in (None, Any)]
    types += [each for shape in SHAPES.values() for each in shape.answers.values() if each not in (None, Any)]
    types.append(shapes.ProblemShape)
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of_type = dict(zip(map(repr, types), found, strict=True))
    of_type[repr(Any)] = {}
    paths: dict[str, dict[str, View]] = {}
    for (method, path), shape in SHAPES.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, shape, of_type)
    defined: dict[str, Any] = {**components, "Carried": _carried()}
    for function in functions:
        paths[f"/functions/{_quoted(function.name)}"] = _called(function, paths["/functions/{name}"], defined)
    if functions:  # each has its own
        del paths["/functions/{name}"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "echod", "version": "1", "description": "Functions, jobs and their operation."},
        "paths": paths,
        "components": {
            "schemas": defined,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(method: str, path: str, shape: Shape, of_type: Mapping[str, Any]) -> View:
    operation: View = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()} {path}").strip("_"),
        "summary": shape.summary,
        "responses": {
            **{str(status): _answered(kind, of_type) for status, kind in shape.answers.items()},
            "default": {"description": "A problem", "content": _content(_PROBLEM, of_type[repr(shapes.ProblemShape)])},
        },
        "security": [] if path in _OPEN else [{"token": []}],
    }
    if shape.streams:
        cast("dict[str, Any]", operation["responses"])["200"]["content"] |= _content("text/event-stream", {})
    named = re.findall(r"{(\w+)}", path)
    parameters = [_parameter(name, "path", _NAME, is_required=True) for name in named]
    parameters += [_parameter(name, "query", schema) for name, schema in shape.query.items()]
    parameters += [_parameter(name, "query", schema, is_required=True) for name, schema in shape.needs.items()]
    if parameters:
        operation["parameters"] = parameters
    if shape.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _content(_JSON, {"$ref": _CARRIED} if shape.takes is Any else of_type[repr(shape.takes)]),
        }
    if shape.binary:
        operation["requestBody"] = {"content": _content("application/octet-stream", {})}
    return operation


def _parameter(name: str, where: str, schema: View, *, is_required: bool = False) -> View:
    return {"name": name, "in": where, "required": is_required, "schema": schema}


def _answered(kind: Any, of_type: Mapping[str, Any]) -> View:
    if kind is None:
        return {"description": "A page, or text"}
    links = {
        name: {"operationId": operation, "parameters": {member: f"$response.body#/{member}"}}
        for name, (operation, member) in _LINKS.get(kind, {}).items()
    }
    return {
        "description": str(getattr(kind, "__doc__", None) or "JSON"),
        "content": _content(_JSON, of_type[repr(kind)]),
        **({"links": links} if links else {}),
    }


def _called(function: Function, general: Mapping[str, View], defined: dict[str, Any]) -> dict[str, View]:
    """The path of one function: its payload and its result."""
    general_call = cast("dict[str, Any]", general["post"])
    prefix = (
        function.name if _COMPONENT.fullmatch(function.name) else hashlib.sha256(function.name.encode()).hexdigest()
    )
    payload = _moved(function.payload_schema, f"{prefix}.payload", defined, is_payload=True)
    result = _moved(function.result_schema, f"{prefix}.result", defined)
    call: View = {
        **general_call,
        "operationId": f"call_{prefix}",
        "summary": function.doc or f"Call {function.name}",
        "parameters": _WISHES,
        "requestBody": {
            "required": function.payload_schema is not None and function.default_payload == NIL,
            "content": _content(_JSON, payload),
        },
        "responses": {
            **general_call["responses"],
            "200": {"description": "Its result, with Prefer: wait", "content": _content(_JSON, result)},
        },
    }
    window = [_parameter("window", "query", _WINDOW)]
    show = {**general["get"], "operationId": f"show_{prefix}", "parameters": window}
    is_hook_alone = all(isinstance(trigger, WebhookTrigger) for trigger in function.triggers)
    return {"get": show} if is_hook_alone else {"get": show, "post": call}


_WISHES: list[View] = [
    {
        "name": "Prefer",
        "in": "header",
        "description": "wait=SECONDS, at most 60: answer with the result if it comes in time",
        "schema": {"type": "string"},
    },
]


def _carried() -> View:
    """Any JSON that a payload can be."""
    item = {"$ref": _CARRIED}
    return {
        "anyOf": [
            *({"type": kind} for kind in ("null", "boolean", "string")),
            {"type": "integer", "minimum": _LOWEST, "maximum": _HIGHEST},
            {"type": "number"},
            {"type": "array", "items": item},
            {"type": "object", "additionalProperties": item},
        ]
    }


def _moved(schema: dict[str, Any] | None, prefix: str, defined: dict[str, Any], *, is_payload: bool = False) -> Any:
    """A schema whose definitions are components of the document; a payload's integers are those that can be carried."""
    if schema is None:
        return {"$ref": _CARRIED} if is_payload else {}

    def moved(item: Any, under: str = "") -> Any:
        """`under`: the keyword that it stands under. A discriminator's `mapping` refers as `$ref` does."""
        if isinstance(item, str):
            return _renamed(item, prefix) if under == "$ref" else item
        if isinstance(item, dict):
            entries = cast("dict[str, Any]", item)
            refers = under == "$ref"
            found = {
                key: moved(value, "$ref" if refers or (under, key) == ("discriminator", "mapping") else key)
                for key, value in entries.items()
            }
            return {**_CARRYING.get(str(found.get("type")), {}), **found} if is_payload else found
        if isinstance(item, list):
            return [moved(each) for each in item]  # pyright: ignore[reportUnknownVariableType]  # JSON
        return item

    for name, definition in cast("dict[str, Any]", schema.get("$defs", {})).items():
        defined[_component(prefix, name)] = moved(definition)
    return moved({key: value for key, value in schema.items() if key not in {"$defs", "$schema", "$id"}})


def _renamed(reference: str, prefix: str) -> str:
    name = reference.removeprefix("#/$defs/")
    return f"#/components/schemas/{_component(prefix, name)}" if name != reference else reference


def _component(prefix: str, name: str) -> str:
    return f"{prefix}.{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"


def _content(media_type: str, schema: Any) -> View:
    return {media_type: {"schema": schema}}


def _quoted(name: str) -> str:
    return quote(name, safe="")
