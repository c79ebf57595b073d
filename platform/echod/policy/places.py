"""Where a new job goes and what it is unique by, as its function's policy says, whoever mints it."""

from __future__ import annotations

import hashlib

from echod.model.job import NO_LANE, Unique
from echod.policy import paths
from echofn.manifest import Policy


def lane_of(policy: Policy, payload: object) -> str:
    """The lane that a decoded payload names; `-` without a path, or where nothing lies at it.

    Raises Refused where an object or a list lies there.
    """
    if policy.lane is None:
        return NO_LANE
    return paths.walk(payload, policy.lane) or NO_LANE


def unique_of(policy: Policy, payload: object, packed: bytes) -> Unique | None:
    """The unique key by the policy: the text at a path of the decoded payload, or the hash of the whole as `packed`.

    None where the policy has none, or nothing lies at the path, or empty text, which names nothing. Raises Refused
    where an object or a list lies there.
    """
    match policy.unique:
        case None | False:
            return None
        case True:
            return Unique(hashlib.sha256(packed).hexdigest(), policy.until)
        case path:
            key = paths.walk(payload, path)
            return Unique(key, policy.until) if key else None
