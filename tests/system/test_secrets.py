"""What nobody may see, on a whole node: values of secrets in the bus, in logs and on pages; redacted ones where people
look. Handlers get both, and do with them what careless handlers do."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodes import Node, until

KEY = "sk_live_planted/4eC39+HqLy'jWDar"
PEM = "-----BEGIN KEY-----\nMIIEowIBAAKplanted1\nqFAdWmXkplanted2\n-----END KEY-----\n"
LONG = hashlib.sha512(b"planted").hexdigest()  # longer than most limits for values in messages
ACCENTED = "plänted-ümlauts-ënd-ŕ"
SECRETS = {"API_KEY": KEY, "PEM_KEY": PEM.strip().replace("\n", "\\n"), "OTHER_KEY": "other-planted-key"}
SECRETS |= {"LONG_KEY": LONG, "WIDE_KEY": ACCENTED}
LEAKY = """
import contextvars, logging, os, socket, subprocess, sys, time
from echofn import Cancel, Context, Fail, Retry, queue

@queue(secrets=["API_KEY", "PEM_KEY"], retries=0)
def leak(way: str, ctx: Context):
    key = os.environ["API_KEY"]
    pem = os.environ["PEM_KEY"].replace("\\\\n", "\\n")
    print("said:", key, os.environ["PEM_KEY"])
    print(repr(key), file=sys.stderr)
    sys.stdout.write("in two " + key[:9])
    sys.stdout.write(key[9:] + " parts\\n")
    logging.getLogger("shop").warning("logged %s", key, extra={"key": key, "long": "x" * 990 + key})
    logging.getLogger("client of " + key).warning("named")
    try:
        raise RuntimeError(key)
    except RuntimeError:
        ctx.log.exception("caught")
    ctx.progress(0.5, f"note {key}")
    os.write(1, f"past python {key}\\n{key}".encode())
    while way == "return" and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")): time.sleep(0.01)
    if way == "raise": raise ValueError(f"cannot use {key}") from KeyError(key)
    if way == "long": raise ValueError("x" * 7_950 + key + "y" * 99)
    if way == "group": raise ExceptionGroup("many", [ValueError(key)])
    if way == "fail": raise Fail(f"no {key}")
    if way == "cancel": raise Cancel(f"no {key}")
    if way == "crash": os.abort()
    if way == "file": open("/" + key)
    if way == "type": raise type("Of " + key, (Exception,), {})("typed")
    if way == "variable": os.environ[key]
    if way == "refused": raise OSError(13, "no", "/etc/" + key)
    if way == "result": return {"key": key, key: [f"of {key}"]}
    if way == "enqueue": ctx.enqueue(sibling, {"key": key})
    return len(key)

@queue(secrets=["LONG_KEY", "WIDE_KEY"], retries=0)
def cut(way: str, ctx: Context):
    # Where text is cut short, a secret lies across the cut.
    key, log = os.environ["LONG_KEY"], logging.getLogger("cut")
    if way == "host": socket.getaddrinfo(b"h" * 190 + key.encode(), 443)
    if way == "program": subprocess.run(["p" * 150 + key])
    if way == "path": open("/" + "p" * 150 + "/" + key)
    if way == "message": raise ValueError("x" * 7_950 + key + "y" * 99)
    if way == "traceback": raise ValueError("x" * 15_900 + key + "y" * 20_000)
    if way == "type": raise type("T" * 190 + key, (Exception,), {})("typed")
    if way == "reason": raise Fail("x" * 7_950 + key)
    if way == "after": raise Retry(after=key)
    if way == "delay": ctx.enqueue(sibling, delay=key)
    if way == "at": ctx.enqueue(sibling, at=key)
    if way == "name": ctx.enqueue("n" * 150 + key)
    if way == "function": ctx.enqueue(key)
    if way == "lane": ctx.enqueue(sibling, lane=key)
    if way == "unique": ctx.enqueue(sibling, unique="u" + key)
    if way == "variable": os.environ["V" * 90 + key]
    if way == "note": ctx.progress(0.5, "n" * 950 + key)
    if way == "shown note": ctx.progress(0.5, "n" * 450 + key)
    if way == "logger": logging.getLogger("l" * 190 + key).warning("named")
    if way == "level":
        logging.addLevelName(45, "L" * 15 + key)
        log.log(45, "levelled")
    if way == "extra": contextvars.Context().run(log.warning, "of no run", extra={"long": "x" * 950 + key})
    if way == "unformatted": log.warning("m" * 150 + key + "%d", "x")
    if way == "line":
        sys.stdout.write("x" * 65_500 + key[:64])
        sys.stdout.write(key[64:] + "\\n")
    if way == "limit": print((key + "y" * 300) * 9_000)
    if way == "bytes":
        for byte in os.environ["WIDE_KEY"].encode(): sys.stdout.buffer.write(bytes([byte]))
    if way == "loose bytes":
        for byte in os.environ["WIDE_KEY"].encode(): contextvars.Context().run(sys.stdout.buffer.write, bytes([byte]))
    if way == "raw":
        os.write(1, b"x" * 66_000 + key[:64].encode())
        time.sleep(0.3)  # for the reader of the pipe to have had that
        os.write(1, key[64:].encode() + b"\\n")
    if way == "killed":
        os.write(1, b"half of it " + key[:64].encode())
        os._exit(9)
    return way

@queue
def sibling():
    return sorted(name for name in os.environ if name.endswith("_KEY"))
"""
OTHERS = """
import os
from echofn import queue

@queue(secrets=["OTHER_KEY"])
def other():
    return sorted(name for name in os.environ if name.endswith("_KEY"))

@queue(retries=0)
def lacking():
    return os.environ["API_KEY"]
"""
BROKEN = {
    "raises.py": "import os\nfrom echofn import queue\n@queue(secrets=['API_KEY'])\ndef f(): ...\n"
    "raise ValueError(os.environ['API_KEY'])\n",
    "refused.py": "import os\nfrom echofn import queue\n@queue(secrets=['API_KEY'], timeout=os.environ['API_KEY'])\n"
    "def f(): ...\n",
    "carries.py": "import os, msgspec\nfrom echofn import queue\nclass P(msgspec.Struct):\n"
    "    key: str = os.environ['API_KEY']\n@queue(secrets=['API_KEY'])\ndef f(payload: P): ...\n",
    "cuts.py": "import os\nfrom echofn import cron, queue, webhook\nkey = os.environ['LONG_KEY']\n"
    "@queue(secrets=['LONG_KEY'], timeout=key)\ndef duration(): ...\n"
    "@queue(name='n' * 60 + '/' + key)\ndef name(): ...\n"
    "@queue(lane=key)\ndef path(): ...\n"
    "@cron(['r' * 40, key])\ndef rule(): ...\n"
    "@webhook('/' + 'w' * 60 + '//' + key, verify=None)\ndef address(): ...\n"
    "@queue\ndef kind(payload: type('K' * 120 + key, (), {})): ...\n"
    "@queue(**{'o' * 60 + key: 1})\ndef option(): ...\n",
    "told.py": "import os\nfrom echofn import queue\nkey = os.environ['LONG_KEY']\n"
    "@queue(secrets=['LONG_KEY'])\ndef f(): ...\nf.__doc__ = 'd' * 250 + key\n",
    "secret_path.py": "import os\nfrom echofn import webhook\n"
    "@webhook('/hooks/' + os.environ['LONG_KEY'], verify=None, secrets=['LONG_KEY'])\ndef f(): ...\n",
    "spelled.py": "import os\nfrom echofn import queue\n@queue(secrets=['LONG_KEY'])\ndef f(): ...\n"
    "raise SyntaxError('s' * 7_950 + os.environ['LONG_KEY'])\n",
    "walled.py": "import os, socket\nfrom echofn import queue\n@queue(secrets=['LONG_KEY'])\ndef f(): ...\n"
    "socket.getaddrinfo(b'h' * 190 + os.environ['LONG_KEY'].encode(), 443)\n",
    "lacks.py": "import os\nfrom echofn import queue\nos.environ['NOWHERE']\n@queue\ndef f(): ...\n",
}
NUMBER, CVC, NOTE, SSN = "4111-planted-1111", "971", "planted note", "078-planted-1120"
REDACTING = """
import hashlib, json, os
import msgspec
from echofn import Request, queue, webhook

class Card(msgspec.Struct):
    number: str
    cvc: str

class Order(msgspec.Struct):
    card: Card
    items: list[dict[str, str]]
    ssn: str = ""
    count: int = 0

def proof(*texts): return hashlib.sha256(" ".join(texts).encode()).hexdigest()

@queue(redact=["card.number", "card.cvc", "items[1].note"], retries=0)
def charge(order: Order):
    print("charging", order.card.number, order.items)
    os.write(1, order.card.number.encode())
    if order.count < 0:
        raise ValueError(f"declined: {order.card.number} {order.items[1]!r} {order.ssn}")
    got = proof(order.card.number, order.card.cvc, order.items[1]["note"], order.ssn)
    return {"proof": got, "card": {"cvc": order.card.cvc}, "seen": [f"<{order.card.number}>", order.ssn]}

@webhook("/hooks/pay", verify=None, redact=["json.card.number", "headers.x-customer", "query.note"])
def paid(request: Request):
    number = request.json()["card"]["number"]
    print(number, request.headers["x-customer"], request.query["note"], request.text())
    return proof(number, request.headers["x-customer"], request.query["note"])

@queue(redact=["rows"], retries=0)
def many(table: dict[str, list[str]]):
    rows = table["rows"]
    print("charging", rows[0])
    os.write(1, f"past Python {rows[1]}\\n".encode())
    raise ValueError(rows[2])
"""
TOML = '[defaults]\nredact = ["ssn"]\n'
PAGES = ("/", "/functions", "/jobs", "/morgue", "/schedules", "/lanes", "/versions", "/nodes", "/bus", "/openapi.json")
WAYS = (
    "return",
    "raise",
    "long",
    "group",
    "fail",
    "cancel",
    "crash",
    "file",
    "type",
    "variable",
    "refused",
    "result",
    "enqueue",
)

CUTS = {  # where, and how the run ends
    **dict.fromkeys(("host", "program", "path", "message", "traceback", "type", "reason", "after", "delay"), "dead"),
    **dict.fromkeys(("at", "name", "function", "lane", "unique", "variable", "killed"), "dead"),
    **dict.fromkeys(("note", "shown note", "logger", "level", "extra", "unformatted", "line", "limit"), "done"),
    **dict.fromkeys(("bytes", "loose bytes", "raw"), "done"),
}
JSON = "application/json"
PIECE = 8  # characters of a secret in a row


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    files = {"leaky.py": LEAKY, "others.py": OTHERS, "pay.py": REDACTING, "echod.toml": TOML, **BROKEN}
    node = Node(tmp_path_factory.mktemp("secrets"), files)
    try:
        yield node.start(ECHOD_LOG="json", **SECRETS)
    finally:
        node.close()


def read(node: Node, path: str, accept: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        body = answer.read().decode()
        assert answer.status == 200, (path, body)
        return body
    finally:
        connection.close()


def delivered(node: Node, path: str, body: str, headers: dict[str, str]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    try:
        connection.request("POST", path, body.encode(), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        assert answer.status == 202
        return str(json.loads(answer.read())["id"])
    finally:
        connection.close()


def ended(node: Node, job: str) -> dict[str, Any]:
    until(lambda: node.job(job)["state"] in ("done", "dead", "cancelled"))
    return dict(node.job(job))


def looked_at(node: Node, jobs: list[str]) -> str:
    """Everything that a person can see of these jobs, and of all else."""
    seen = [read(node, path, accept) for path in PAGES for accept in ("application/json", "text/html")]
    for function in node.names():
        seen += [read(node, f"/functions/{function}", accept) for accept in ("application/json", "text/html")]
        seen.append(read(node, f"/functions/{function}/logs", "application/json"))
    for job in jobs:
        seen += [read(node, f"/jobs/{job}", accept) for accept in ("application/json", "text/html")]
        seen += [read(node, f"/jobs/{job}/logs", accept) for accept in ("application/json", "text/event-stream")]
    for verb in (["job", jobs[1]], ["job", jobs[-3], "--json"], ["logs", jobs[0]], ["jobs"]):
        said = node.cli(*verb)
        assert said.returncode == 0, (verb, said.stderr)
        seen.append(said.stdout + said.stderr)
    return "\n".join(seen)


def spellings(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], repr(text)[1:-1], text.replace("'", "&#39;"), text.replace("'", "&#x27;")}


def order(count: float = 0, number: str = NUMBER) -> dict[str, Any]:
    items = [{"note": "plain note"}, {"note": NOTE}]
    return {"card": {"number": number, "cvc": CVC}, "items": items, "ssn": SSN, "count": count}


def proof(*texts: str) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


# ---- which variables a module has -----------------------------------------------------------------------------------


def test_every_function_of_a_module_has_the_modules_variables_and_no_others(dev: Node) -> None:
    assert dev.call("leaky.sibling") == ["API_KEY", "LONG_KEY", "PEM_KEY", "WIDE_KEY"]
    assert dev.call("others.other") == ["OTHER_KEY"]


def test_a_variable_that_is_not_named_is_told_on_the_page_and_by_the_verbs(dev: Node) -> None:
    job = dev.mint("others.lacking")
    error = ended(dev, job)["error"]
    assert (error["type"], error["cause"]) == ("KeyError", "error")
    advice = 'add secrets=["API_KEY"] to @queue (others.py:9)'
    assert error["message"] == f"'API_KEY' is not in the environment here; {advice} and set it where echod runs"
    assert advice.replace('"', "&#34;") in read(dev, f"/jobs/{job}", "text/html")
    assert advice in dev.cli("job", job).stdout
    assert advice in dev.cli("invoke", "others.lacking", "--wait").stderr
    [lacks] = [each for each in dev.errors() if each["module"] == "lacks"]
    assert (lacks["line"], lacks["kind"]) == (3, "error")
    assert 'add secrets=["NOWHERE"] to @queue (lacks.py:4)' in lacks["message"]


# ---- what nobody may see --------------------------------------------------------------------------------------------


def test_a_secret_that_a_module_would_carry_along_is_refused_at_load(dev: Node) -> None:
    errors = {each["module"]: each for each in dev.errors()}
    assert errors["raises"]["message"] == "ValueError: [redacted]"
    assert errors["refused"]["message"].startswith("timeout=: ")
    assert (errors["carries"]["line"], errors["carries"]["kind"]) == (5, "refused")
    assert errors["carries"]["message"].startswith("expected no secret in an option, a default or payload=")
    assert "carries.f" not in dev.names()
    assert errors["secret_path"]["message"].startswith("expected no secret in an option, a default or payload=")
    assert "secret_path.f" not in dev.names()


def test_redact_hides_from_people_and_not_from_the_handler(dev: Node) -> None:
    job = dev.mint("pay.charge", order())
    record = ended(dev, job)
    assert record["payload"] == {
        "card": {"number": "[redacted]", "cvc": "[redacted]"},
        "items": [{"note": "plain note"}, {"note": "[redacted]"}],
        "ssn": "[redacted]",
        "count": 0,
    }
    got = {
        "proof": proof(NUMBER, CVC, NOTE, SSN),
        "card": {"cvc": "[redacted]"},
        "seen": ["<[redacted]>", "[redacted]"],
    }
    assert record["result"] == got
    answered = dev.call("pay.charge", order())  # whoever asks for the result gets what the handler gave
    assert answered["seen"] == [f"<{NUMBER}>", SSN]
    failed = ended(dev, dev.mint("pay.charge", order(-1)))["error"]
    assert failed["message"] == "declined: [redacted] {'note': '[redacted]'} [redacted]"
    status, problem = dev.ask("POST", "/functions/pay.charge", {**order(), "card": NUMBER})
    assert (status, NUMBER in json.dumps(problem)) == (422, False)


def test_redact_hides_parts_of_a_webhooks_request_and_of_its_body(dev: Node) -> None:
    body = {"card": {"number": NUMBER}, "id": 7}
    headers = {"X-Customer": "customer-planted", "Cookie": "c=planted"}
    record = ended(dev, delivered(dev, "/hooks/pay?note=planted+note", json.dumps(body), headers))
    assert record["result"] == proof(NUMBER, "customer-planted", NOTE)
    assert record["payload"]["headers"]["x-customer"] == "[redacted]"
    assert record["payload"]["query"] == {"note": "[redacted]"}
    assert json.loads(base64.b64decode(record["payload"]["body"])) == {"card": {"number": "[redacted]"}, "id": 7}


def test_what_the_schema_calls_an_integer_runs_whoever_sends_it(dev: Node) -> None:
    assert dev.call("pay.charge", order(count=3.0))["proof"]
    said = dev.cli("invoke", "pay.charge", "--data", json.dumps(order(count=3.0)), "--wait")
    assert (said.returncode, said.stderr) == (0, "")
    status, problem = dev.ask("POST", "/functions/pay.charge", order(count=3.5))
    assert (status, problem["faults"][0]["path"]) == (422, "$.count")


def test_what_leads_to_more_than_can_be_looked_for_hides_all_that_may_hold_it(dev: Node) -> None:
    record = ended(dev, dev.mint("pay.many", {"rows": [f"row {n:06x} é" for n in range(16_000)]}))
    hidden = "[redacted: redact= leads to more than can be looked for]"
    assert record["payload"] == hidden
    assert (record["error"]["type"], record["error"]["message"], record["error"]["traceback"]) == (hidden,) * 3
    lines: list[dict[str, Any]] = []

    def told() -> bool:
        lines[:] = json.loads(read(dev, f"/jobs/{record['id']}/logs", JSON))
        return len(lines) >= 3

    until(told)
    assert "row 0" not in "".join(line["text"] for line in lines)
    assert [line["text"] for line in lines if line["stream"] == "stdout"] == [hidden, hidden]


def test_no_planted_value_is_in_the_bus_a_log_or_a_page(dev: Node) -> None:
    """Secrets: nowhere. Redacted values: in the bus, which has the payload, and nowhere that people look."""
    jobs = [dev.mint("leaky.leak", way) for way in WAYS]
    jobs += [dev.mint("pay.charge", order()), dev.mint("pay.charge", order(-1))]
    query, headers = "?note=planted+note", {"X-Customer": "customer-planted", "Cookie": "session=planted-cookie"}
    for body in (json.dumps({"card": {"number": NUMBER}}), f"this is no JSON: {NUMBER}"):
        jobs.append(delivered(dev, f"/hooks/pay{query}", body, headers))
    until(lambda: dev.job(jobs[0])["progress"])
    (dev.state / "versions" / dev.get("/readyz")["version"] / "functions" / "go").touch()
    states = [ended(dev, job)["state"] for job in jobs]
    loose = ("raw", "killed", "extra", "loose bytes")  # written past us, read apart
    cuts = {way: dev.mint("leaky.cut", way) for way in CUTS if way not in loose}
    for way in loose:  # one after another: what comes late may stand in the log of the run before it
        cuts[way] = dev.mint("leaky.cut", way)
        ended(dev, cuts[way])
        until(lambda way=way: "[redacted]" in read(dev, f"/jobs/{cuts[way]}/logs", JSON))  # type: ignore[misc]
    assert {way: ended(dev, job)["state"] for way, job in cuts.items()} == CUTS
    assert {ended(dev, cuts[way])["error"]["cause"] for way in ("host", "program", "path")} == {
        "wall:network", "wall:processes", "wall:files",
    }  # fmt: skip
    expected = {"return": "done", "result": "done", "cancel": "cancelled"}
    assert states[: len(WAYS)] == [expected.get(way, "dead") for way in WAYS]
    until(lambda: "past python" in read(dev, f"/jobs/{jobs[0]}/logs", "application/json"))
    seen = looked_at(dev, [*jobs, *cuts.values()])
    assert seen.count("said: [redacted] [redacted]") >= len(WAYS)
    assert "in two [redacted] parts" in seen
    assert dev.end() == 0
    kept = {file: file.read_bytes() for file in dev.state.rglob("*") if file.is_file() and not file.is_socket()}
    kept = {file: data for file, data in kept.items() if "versions" not in file.parts}  # the code has no values
    appended = b"".join(data for file, data in kept.items() if file.suffix == ".aof")
    assert b"said: [redacted]" in appended
    assert b"note [redacted]" in appended
    everything = b"".join(kept.values()) + dev.log.read_bytes()
    parts = [line for line in PEM.splitlines() if "planted" in line]
    for secret in (KEY, KEY[:10], *parts, SECRETS["OTHER_KEY"], "planted-cookie"):
        for spelling in spellings(secret):
            assert spelling not in seen, secret
            assert spelling.encode() not in everything, secret
    places = (seen, everything.decode(errors="replace"))
    for secret in (LONG, ACCENTED):
        for at in range(len(secret) - PIECE):
            piece = secret[at : at + PIECE]
            for place in places:
                found = place.find(piece)
                assert found < 0, place[max(found - 200, 0) : found + 200]
    for value in (NUMBER, NOTE, "customer-planted"):
        assert value.encode() in appended  # a handler could not have got it otherwise
        assert value.encode() not in dev.log.read_bytes()
        for hidden in (value, *(base64.b64encode(b"x" * n + value.encode())[4:-4].decode() for n in range(3))):
            assert hidden not in seen, value
