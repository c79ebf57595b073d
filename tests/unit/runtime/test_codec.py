"""Values as the types that handlers ask for."""

from __future__ import annotations

import pytest

from echofn import codec


@pytest.mark.parametrize("value", [None, 1, "a", {"b": [1]}])
def test_whatever_is_an_object_fits_one(value: object) -> None:
    assert codec.convert(value, object) == value
    assert codec.convert([value], list[object]) == [value]
