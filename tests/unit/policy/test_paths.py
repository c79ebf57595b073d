import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.errors import Refused
from echod.policy.paths import steps, walk

ORDER = {
    "tenant": "acme",
    "id": 7,
    "ratio": 0.5,
    "whole": 5.0,
    "vip": True,
    "note": None,
    "empty": "",
    "key": b"\x01\xff",
    "items": [{"sku": "a"}, {"sku": "b"}],
    "0": "zero",
    "customer": {"id": 2**63, "name": "Müller"},
}


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("tenant", "acme"),
        ("id", "7"),
        ("ratio", "0.5"),
        ("whole", "5"),
        ("vip", "true"),
        ("empty", ""),
        ("key", "01ff"),
        ("0", "zero"),
        ("items.1.sku", "b"),
        ("items[1].sku", "b"),
        ("customer.id", str(2**63)),
        ("customer.name", "Müller"),
    ],
)
def test_a_path_finds_a_value(path: str, lane: str) -> None:
    assert walk(ORDER, path) == lane


@pytest.mark.parametrize(
    "path",
    [
        "missing",
        "note",
        "note.x",
        "customer.x",
        "customer.name.x",
        "items.2.sku",
        "items.-1.sku",
        "items.x",
        "items.1e0",
        "id.x",
        "tenant.0",
        "items.\u0661",
    ],
)
def test_what_is_missing_or_null_is_none(path: str) -> None:
    assert walk(ORDER, path) is None


@pytest.mark.parametrize(("path", "kind"), [("customer", "an object"), ("items", "a list"), ("items.0", "an object")])
def test_an_object_is_refused(path: str, kind: str) -> None:
    with pytest.raises(Refused, match=f"{path}: expected text, a number or a boolean, got {kind}"):
        walk(ORDER, path)


@pytest.mark.parametrize("path", ["", ".", "a..b", ".a", "a.", "a[]", "a" * 600, ".".join("a" * 40)])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="expected a path like"):
        steps(path)


@pytest.mark.parametrize("payload", [None, 5, "text", b"bytes", True, [], {}, [[]], 0.1])
def test_payloads_of_any_kind_can_be_asked(payload: object) -> None:
    assert walk(payload, "a.b") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet="ab0", max_size=2), inner),
    max_leaves=20,
)


@given(JSON, st.text(alphabet="ab01.[]", max_size=8))
def test_any_path_into_any_payload_is_text_none_or_refused(payload: object, path: str) -> None:
    try:
        found = walk(payload, path)
    except Refused:
        return
    assert found is None or isinstance(found, str)
