"""Every key and channel of the bus, spelled here and nowhere else.

| key of a queue, `emq:{queue}:…` | type | holds |
|---|---|---|
| `job:<id>` | hash | the row (fields: lua/include/rows.lua) |
| `lane:<lane>` | zset | pending ids by priority, ties in mint order |
| `ring` | zset | serviceable lanes by virtual time |
| `later`, `held` | zset, set | lanes that wait for an instant; lanes that are paused or at their concurrency |
| `windows` | zset | lanes that have started jobs under a rate → when that window ends |
| `named` | hash | lanes with settings of an operator → how people write them |
| `active`, `schedule` | zset | id → lease end; id → due |
| `counted` | hash | active jobs that are counted among their lane's → that lane |
| `repeat`, `repeat:<name>` | zset, hash | recurrence → when the pump looks next; rule, revision, next due, payload |
| `rules` | set | names of all recurrences, paused ones too |
| `dead`, `done` | zset | morgue; archive (cancelled jobs lie here too); id → ended |
| `jobs` | zset | every id in mint order, for lists over all states: no state's own set knows that order |
| `unique:<key>` | hash | the owner's id, mode, body hash |
| `out` | hash | children on their way to other queues |
| `last:<claimer>` | hash | the last claim or settle of a claimer |
| `last:<call>` | string | what a call of people or of a deploy was answered that wrote, for ten seconds |
| `meta`, `lanes` | hash | counts, virtual time, policy, limits; per-lane settings, active jobs, starts in a window |
| `log:<id>` | stream | a job's output |
| `logged` | zset | the thousand jobs that wrote last → when, by their streams |
| `m:<minute>`, `h:<hour>` | hash | counters and histograms |
| `totals` | hash | counters since the queue began |

Global, in one slot, `emq:{~}:…`: `active`, `versions`, `switches`, `version:<DEP>:<n>`, `uploads`, `nodes`, `numbered`
(the node number given last), `queues`, `tokens`, `wake`, `hold`, `wire`, `fsync` (written before each WAITAOF), `clock`
where it is driven; channels `news` and `wait:<token>`. Under ECHOD_APP all of them carry `app/` within the braces.

Names of queues, lanes and unique keys: 1–64 of `[A-Za-z0-9_.@-]` stand as they are; anything else is `~` and its
SHA-256 in base62, with the original kept in the row. Nothing is refused: that would lose webhooks.
"""

from __future__ import annotations

import hashlib
import re

from echod.model.ids import base62

QUEUE_KEYS = frozenset(
    [
        "job:",
        "lane:",
        "ring",
        "later",
        "held",
        "windows",
        "named",
        "active",
        "counted",
        "schedule",
        "rules",
        "repeat",
        "repeat:",
        "dead",
        "done",
        "jobs",
        "unique:",
        "out",
        "last:",
        "meta",
        "lanes",
        "log:",
        "logged",
        "m:",
        "h:",
        "totals",
    ]
)
GLOBAL_KEYS = frozenset(
    [
        "active",
        "versions",
        "switches",
        "version:",
        "uploads",
        "nodes",
        "numbered",
        "queues",
        "tokens",
        "wake",
        "hold",
        "wire",
        "fsync",
        "clock",
        "news",
        "wait:",
    ]
)
_PLAIN = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")


def escape(name: str) -> str:
    """`name` as a part of a key. Lone surrogates count as what they are: two different names never meet."""
    if _PLAIN.match(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return "~" + base62(int.from_bytes(digest), 43)


class Keys:
    """The keys of one app on a server."""

    def __init__(self, app: str = "") -> None:
        self._prefix = f"emq:{{{app}/" if app else "emq:{"
        self.everywhere = f"{self._prefix}~}}:"
        self.wake = self.everywhere + "wake"
        self.news = self.everywhere + "news"
        self.queues = self.everywhere + "queues"
        self.nodes = self.everywhere + "nodes"
        self.tokens = self.everywhere + "tokens"
        self.active = self.everywhere + "active"
        self.versions = self.everywhere + "versions"
        self.switches = self.everywhere + "switches"
        self.uploads = self.everywhere + "uploads"
        self.wire = self.everywhere + "wire"
        self.fsync = self.everywhere + "fsync"
        self.clock = self.everywhere + "clock"

    def queue(self, name: str) -> str:
        """The base of a queue's keys."""
        return f"{self._prefix}{escape(name)}}}:"

    def wait(self, token: str) -> str:
        return f"{self.everywhere}wait:{token}"

    def piece(self, version: str, part: int | str) -> str:
        """One piece of a stored version; `pieces` counts them, `manifest` describes it."""
        return f"{self.everywhere}version:{version}:{part}"
