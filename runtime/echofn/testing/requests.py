"""A request of a test: to a webhook's path, as if its sender had proved who it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from echod.gateway.problems import Problem
from echod.gateway.webhooks import Delivered, Found, check_form, found_among, hooks_of
from echod.gateway.webhooks import mint_of as minted_by
from echod.model.ids import JobId
from echod.model.job import Mint
from echod.policy import signatures
from echod.policy.deliveries import challenge_of
from echofn.manifest import Manifest


class Sent:
    """What is sent to `path`, which may have a query. A body that is no bytes or text is sent as JSON.

    Raises LookupError where no loaded webhook has the path, ValueError for a method that none takes.
    """

    def __init__(
        self, manifest: Manifest, method: str, path: str, body: Any, headers: Mapping[str, str] | None
    ) -> None:
        given = {name.lower(): value for name, value in (headers or {}).items()}
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            given.setdefault("content-type", "application/json")
        place, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method.upper(),
            "path": place,
            "query_string": query.encode(),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()],
        }
        self._request = Request(scope)
        self._body: bytes = body
        self.found = self._found(manifest, path)
        trigger = self.found.hook.trigger
        self._delivered = Delivered(self._request, self.found.params, self._body, signatures.withheld(trigger.verify))

    def _found(self, manifest: Manifest, path: str) -> Found:
        hooks = hooks_of(manifest)
        found = found_among(hooks, self._request)
        if found is None:
            known = ", ".join(hook.trigger.path for hook in hooks)
            raise LookupError(f"expected the path of a loaded webhook, got {path!r}; loaded: {known or 'none'}")
        try:
            check_form(self._request)
        except Problem as error:
            raise ValueError(f"method=: {error}") from None
        return found

    @property
    def function(self) -> str:
        return self.found.hook.function.name

    def mint(self, id: JobId) -> Mint:
        """The job of it. Raises ValueError for what is answered without one."""
        trigger = self.found.hook.trigger
        if challenge_of(trigger.verify, self._delivered.said) is not None:
            raise ValueError("expected an event, got Slack's question who is there: it is answered without a job")
        return minted_by(self.found.hook, self._delivered, id, Counter())
