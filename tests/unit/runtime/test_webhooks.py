"""`@webhook`: what it becomes in the manifest, what is refused, and what its handler gets."""

from __future__ import annotations

import codecs
import encodings
import pkgutil
from encodings.aliases import aliases
from pathlib import Path
from typing import Any

import pytest

from echofn import Request
from echofn import request as requests
from echofn.discovery_protocol import Described, declared
from echofn.manifest import Function, Hmac, Policy, QueueTrigger, WebhookTrigger
from unit.runtime.driving import Answer, Base, discover, write

HEAD = "from echofn import *\nimport msgspec, dataclasses, typing\n"
HOOK = WebhookTrigger("/hooks/x", None)


def described(tmp_path: Path, source: str) -> Described:
    folder = tmp_path / "functions"
    write(folder, m=HEAD + source)
    return discover(folder)["m"]


def one(tmp_path: Path, source: str) -> Function:
    answer = described(tmp_path, source)
    assert answer.errors == ()
    (function,) = answer.functions
    return function


def test_a_webhook_as_written_becomes_a_trigger_and_a_policy(tmp_path: Path) -> None:
    function = one(
        tmp_path,
        """
@webhook("/hooks/{tenant}/github", verify="github", secret="GH", lane="json.repository.full_name",
         unique="headers.X-GitHub-Delivery", until="1h", retries=7, timeout="5s", priority=2,
         max_pending=9, name="push")
async def on_push(request: Request, ctx: Context): ...
""",
    )
    assert (function.name, function.attribute, function.line) == ("push", "on_push", 4)
    assert (function.takes_payload, function.takes_context, function.payload_schema) == (True, True, None)
    assert function.secrets == ("GH",)
    assert function.policy == Policy(retries=7, timeout_ms=5_000, priority=2, max_pending=9)
    assert function.triggers == (
        WebhookTrigger(
            "/hooks/{tenant}/github",
            "github",
            ("GH",),
            "json.repository.full_name",
            "headers.x-github-delivery",
            3_600_000,
            4,
        ),
    )


@pytest.mark.parametrize(
    ("written", "verify"),
    [
        *((f'"{name}"', name) for name in ("github", "stripe", "slack", "standard-webhooks", "bearer", "basic")),
        ("bearer", "bearer"),
        ("basic", "basic"),
        ('hmac("X-Sig")', Hmac("x-sig")),
        ('hmac("X-Sig", "sha512", "base64", "v1=")', Hmac("x-sig", "sha512", "base64", "v1=")),
        (
            'hmac(header="X-Sig", algorithm="sha1", prefix="sha1=")',
            Hmac("x-sig", "sha1", "hex", "sha1="),
        ),
    ],
)
def test_every_way_to_verify(written: str, verify: Any, tmp_path: Path) -> None:
    function = one(tmp_path, f'@webhook("/h", verify={written}, secret="S")\ndef f(): ...')
    (trigger,) = function.triggers
    assert isinstance(trigger, WebhookTrigger)
    assert (trigger.verify, trigger.secrets, trigger.unique) == (verify, ("S",), None)
    assert trigger.until == 86_400_000


@pytest.mark.parametrize(
    ("options", "verifying", "given"),
    [
        ('secret=["NEW", "OLD"]', ("NEW", "OLD"), ("NEW", "OLD")),
        ('secrets=["NEW", "OLD"]', ("NEW", "OLD"), ("NEW", "OLD")),
        ('secret="HOOK", secrets=["API_KEY"]', ("HOOK",), ("API_KEY", "HOOK")),
    ],
)
def test_secrets_verify_and_with_secret_the_others_are_the_handlers(
    options: str, verifying: tuple[str, ...], given: tuple[str, ...], tmp_path: Path
) -> None:
    function = one(tmp_path, f'@webhook("/h", verify="github", {options})\ndef f(): ...')
    (trigger,) = function.triggers
    assert isinstance(trigger, WebhookTrigger)
    assert (trigger.secrets, function.secrets) == (verifying, given)


def test_who_may_be_believed_unverified_is_said_in_words(tmp_path: Path) -> None:
    function = one(tmp_path, '@webhook("/h", verify=None, secrets=["API_KEY"])\ndef f(): ...')
    (trigger,) = function.triggers
    assert isinstance(trigger, WebhookTrigger)
    assert (trigger.verify, trigger.secrets, function.secrets) == (None, (), ("API_KEY",))


def test_annotations_stack_and_the_queue_has_the_policy(tmp_path: Path) -> None:
    function = one(
        tmp_path,
        '@queue(retries=1, lane="tenant")\n@webhook("/a", verify=None, lane="json.t")\n'
        '@webhook("/b", verify=None)\n@cron("0 6 * * *")\ndef f(payload): ...',
    )
    assert [type(trigger).__name__ for trigger in function.triggers] == [
        *("QueueTrigger", "WebhookTrigger", "WebhookTrigger", "CronTrigger")
    ]
    assert (function.policy.retries, function.policy.lane) == (1, "tenant")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('@webhook("/h", secret="S")', "verify=None if whoever reaches the path shall be believed"),
        ('@webhook("/h")', "expected verify="),
        ("@webhook", "expected a path"),
        ("@webhook()", "expected a path"),
        ('@webhook("/h", verify="github")', 'expected secret="NAME"'),
        ('@webhook("/h", verify="github", secret="")', "expected names of variables"),
        ('@webhook("/h", verify="github", secret=[])', "expected the name of a variable"),
        ('S = "X"\n@webhook("/h", verify="github", secret=S)', "names written out"),
        ('@webhook("/h", verify=None, secret="S")', "nothing is verified"),
        ('@webhook("/h", verify="githib", secret="S")', "expected github, stripe"),
        ('@webhook("/h", verify="hmac", secret="S")', 'write hmac("X-Signature")'),
        ('@webhook("/h", verify=hmac, secret="S")', 'write hmac("X-Signature")'),
        ('@webhook("/h", verify=hmac("X Sig"), secret="S")', "a header's name"),
        ('@webhook("/h", verify=hmac("X-Sig", "md5"), secret="S")', "sha1, sha256"),
        ('@webhook("/h", verify=hmac("X-Sig", encoding="base32"), secret="S")', "hex or base64"),
        ('@webhook("/h", verify=hmac("X-Sig", prefix=b"x"), secret="S")', "a prefix of ASCII"),
        ('@webhook("h", verify=None)', "expected a path like"),
        ('@webhook("/", verify=None)', "expected a path like"),
        ('@webhook("/h/", verify=None)', "expected a path like"),
        ('@webhook("/h//x", verify=None)', "expected a path like"),
        ('@webhook("/../x", verify=None)', "expected a path like"),
        ('@webhook("/h?x=1", verify=None)', "expected a path like"),
        ('@webhook("/h%20x", verify=None)', "without escapes"),
        ('@webhook("/h/{a}/{a}", verify=None)', "once and alone"),
        ('@webhook("/h/x{a}", verify=None)', "once and alone"),
        ('@webhook("/h/{a b}", verify=None)', "expected a path like"),
        ('@webhook("/h/{}", verify=None)', "once and alone"),
        ("@webhook(7, verify=None)", "expected a path like"),
        ('@webhook("/h", verify=None, lane="tenant")', "json., headers., query., params."),
        ('@webhook("/h", verify=None, lane="json")', "expected a path into the request"),
        ('@webhook("/h", verify=None, unique="body.id")', "expected a path into the request"),
        ('@webhook("/h", verify=None, until="1h")', "until=: expected unique= beside it"),
        ('@webhook("/h", verify=None, retrys=1)', "did you mean 'retries'"),
        ('@webhook("/h", verify=None, payload=1)', "payload=: what a webhook's jobs carry is what is sent to it"),
        ('@webhook("/h", verify=None, retries=2)\n@queue', "say it on its @queue"),
        ('@webhook("/h", verify=None, retries=2)\n@webhook("/i", verify=None, timeout="1s")', "has one policy"),
    ],
)
def test_a_bad_webhook_is_refused_at_its_line(source: str, words: str, tmp_path: Path) -> None:
    answer = described(tmp_path, f"{source}\ndef f(payload): ...")
    assert answer.functions == ()
    error = answer.errors[0]
    assert words in error.message, error.message
    assert error.kind == "refused"
    assert error.line is not None
    assert (HEAD + source).splitlines()[error.line - 1].startswith("@webhook")


def test_a_request_is_only_for_webhooks(tmp_path: Path) -> None:
    answer = described(tmp_path, "@queue\ndef f(payload: Request): ...")
    assert "only a @webhook gets one" in answer.errors[0].message


def test_a_literal_secret_of_a_webhook_is_read_before_the_import() -> None:
    source = (
        '@webhook("/h", verify="github", secret="A")\n@echofn.webhook("/i", verify=None, secrets=["B"])\ndef f(): ...'
    )
    assert declared(f"import echofn\nfrom echofn import webhook\n{source}").secrets == {"A", "B"}


# ---- the request --------------------------------------------------------------------------------------------------


def request(body: bytes, content_type: str = "application/json") -> Request:
    return Request(body=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(
    ("body", "content_type", "value"),
    [
        (b'{"a": "caf\xc3\xa9 \\u001b"}\n', "application/json", {"a": "café \x1b"}),
        (b'\xef\xbb\xbf{"a": 1}', "application/json; charset=utf-8", {"a": 1}),
        ('{"a": "😀"}'.encode("utf-16"), "application/json; charset=utf-16", {"a": "😀"}),
        ('{"a": "😀"}'.encode("utf-16-le"), "application/json", {"a": "😀"}),
        (b'{"a": "caf\xe9"}', 'application/json; charset="ISO-8859-1"', {"a": "café"}),
        (b"123456789012345678901234567890", "text/plain", 123456789012345678901234567890),
    ],
)
def test_json_is_read_in_the_senders_encoding(body: bytes, content_type: str, value: object) -> None:
    assert request(body, content_type).json() == value


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'"\xff"', b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        request(body).json()


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("grüße".encode(), "text/plain", "grüße"),
        (b"gr\xfc\xdfe", "text/plain; charset=latin-1", "grüße"),
        ("😀".encode("utf-16"), "text/plain", "😀"),
        (b"\xef\xbb\xbfx", "text/plain; charset=UTF-8", "x"),
        (b"x", "text/plain; charset=no-such-charset", "x"),
        (b"x", "text/plain; charset=base64", "x"),
    ],
)
def test_text_is_read_in_the_senders_encoding(body: bytes, content_type: str, text: str) -> None:
    assert request(body, content_type).text() == text


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    got = request(b"\xff\xfe\xfd", "text/plain; charset=utf-8")
    with pytest.raises(ValueError):
        got.text()
    assert got.body == b"\xff\xfe\xfd"


def test_headers_have_no_case_and_query_parameters_may_come_twice() -> None:
    got = Request("PUT", "/hooks/x", query={"a": ["1", "2"], "b": "3"}, headers={"X-Event": "push"})
    assert (got.headers["x-EVENT"], "X-event" in got.headers, got.headers.get("X-Other")) == ("push", True, None)
    assert (got.query["a"], got.query["b"], got.query.all("a"), got.query.all("c")) == ("2", "3", ["1", "2"], [])
    assert Request(body=b"a=1&b=%C3%A9&c=").form() == {"a": "1", "b": "é", "c": ""}
    assert repr(got) == "<Request PUT /hooks/x 0 bytes>"


# ---- in the worker ------------------------------------------------------------------------------------------------


def envelope(body: bytes, content_type: str = "application/json") -> dict[str, Any]:
    return {
        "method": "POST",
        "path": "/hooks/acme",
        "params": {"who": "acme"},
        "query": {"n": ["1", "2"]},
        "headers": {"content-type": content_type, "x-event": "push"},
        "body": body,
    }


def ran(base: Base, signature: str, code: str, payload: Any) -> Answer:
    function = Function("m.f", "m", "f", "m.py", 1, Policy(), (QueueTrigger(), HOOK))
    source = (
        f"{HEAD}class Push(msgspec.Struct):\n    ref: str\n    n: int = 0\ndef f({signature}):\n    return {code}\n"
    )
    return base.serve(source, function=function).one(payload)


@pytest.mark.parametrize("signature", ["request", "request: Request", "request: Request | None", "request: object"])
def test_a_handler_gets_the_request_as_it_came(signature: str, shared: Base) -> None:
    first, rest = "request.method, request.path, request.params", "request.query.all('n'), request.headers['X-Event']"
    code = f"[{first}, {rest}, request.body]"
    answer = ran(shared, signature, code, envelope(b"\x00\xff\n"))
    assert answer.result == ["POST", "/hooks/acme", {"who": "acme"}, ["1", "2"], "push", b"\x00\xff\n"]


@pytest.mark.parametrize(
    ("signature", "code", "body", "content_type", "result"),
    [
        ("push: Push", "[push.ref, push.n]", b'{"ref": "main", "n": 3, "more": []}', "application/json", ["main", 3]),
        ("push: Push", "[push.ref, push.n]", b"ref=main&n=3", "application/x-www-form-urlencoded", ["main", 3]),
        ("push: dict", "push", b'{"a": 1}', "text/plain", {"a": 1}),
        ("body: bytes", "body", b"\xff\x00", "application/json", b"\xff\x00"),
        ("body: str", "body", '"grüße"'.encode(), "application/json", '"grüße"'),
        ("push: dict | None", "push", b"", "application/json", None),
    ],
)
def test_a_handler_typed_otherwise_gets_the_body(
    signature: str, code: str, body: bytes, content_type: str, result: object, shared: Base
) -> None:
    assert ran(shared, signature, code, envelope(body, content_type)).result == result


@pytest.mark.parametrize("body", [b'{"ref": 1}', b"{", b"", b'{"ref": "\xff"}'])
def test_a_body_that_does_not_fit_its_type_is_dead_and_not_retried(body: bytes, shared: Base) -> None:
    answer = ran(shared, "push: Push", "push.ref", envelope(body))
    assert (answer.outcome, answer.fault.cause) == ("dead", "payload")


def test_a_payload_of_another_kind_stays_what_it_is(shared: Base) -> None:
    assert ran(shared, "payload", "payload", {"method": "POST", "body": "x"}).result == {"method": "POST", "body": "x"}
    assert ran(shared, "payload", "payload", {**envelope(b""), "body": "text"}).result["body"] == "text"
    answer = ran(shared, "request: Request", "request.body", {"a": 1})
    assert (answer.outcome, answer.fault.cause) == ("dead", "payload")


def test_every_example_of_the_docs_loads(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[3] / "docs/webhooks.md").read_text()
    examples = docs.split("```python\n")[1:]
    folder = tmp_path / "functions"
    write(folder, **{f"example{index}": text.partition("```")[0] for index, text in enumerate(examples)})
    answers = discover(folder)
    assert len(answers) == 4
    for answer in answers.values():
        assert answer.errors == ()
        assert len(answer.functions) == 1


def told_apart() -> set[str]:
    """Every name that Python has for an encoding: its aliases, and its modules."""
    modules = {module.name for module in pkgutil.iter_modules(encodings.__path__)}
    names = {**{name: name for name in (*aliases.values(), *modules)}, **aliases}
    none = ("aliases", "mbcs", "oem")  # the latter two only Windows has; and names of capitals are never found
    return {name for name, module in names.items() if module not in none and name == name.lower()}


def test_a_sender_names_no_codec_but_those_on_the_list() -> None:
    looked_up = {name: codecs.lookup(name).name for name in told_apart()}
    taken = {codecs.lookup(name).name for name in requests.CHARSETS}
    assert {looked_up[name] for name in ("punycode", "idna", "utf_7", "unicode_escape", "hz", "cp037")}.isdisjoint(
        taken
    )
    for name, canonical in looked_up.items():
        for sent in (name, name.replace("_", "-").upper(), f'"{name}"'):
            named = requests._charset(f"text/plain; charset={sent}")
            assert named is None if canonical not in taken else codecs.lookup(named or "").name == wanted(canonical)
    assert request(b"ab9z-0Q", "text/plain; charset=punycode").text() == "ab9z-0Q"
    assert request(b'"ab9z-0Q"', "application/json; charset=punycode").json() == "ab9z-0Q"


def wanted(canonical: str) -> str:
    return "utf-8-sig" if canonical == "utf-8" else canonical


@pytest.mark.parametrize("named", sorted(requests.CHARSETS))
def test_every_charset_on_the_list_is_read(named: str) -> None:
    assert request("grade 7".encode(named), f"text/plain; charset={named}").text() == "grade 7"


def test_charsets_that_nobody_has_are_not_remembered() -> None:
    for n in range(100):
        assert request(b"x", f"text/plain; charset=none-such-{n}").text() == "x"
    assert not [name for name in vars(encodings)["_cache"] if "none" in name]
