"""docs/protocol.md, from the scripts' headers and the drawn states: `python -m echod.bus.protocol` in a checkout."""

from __future__ import annotations

from pathlib import Path

from echod.bus import keys, scripts

STATES = Path(__file__).parents[3] / "docs" / "states.md"
_PREFACE = """# The bus protocol

Generated from the headers in `platform/echod/bus/lua/`, with [the states](states.md), by
`python -m echod.bus.protocol`; a test keeps it current.

A verb is one function: `FCALL echod_<verb>_<digest> 2 emq:{queue}: emq:{~}: <arguments in the order of ARGV>`. Who
misses it loads it; where the server takes no function (its memory is out, or an ACL forbids it), the same text is
called as a plain script. All keys of a queue are its base and a name; `global.…` are names under the second base.
Every verb may be sent again after a lost reply without a second effect.
"""

_SEEDS = (
    ("a branded JOB", "the id, `JOB` and 11 of base62", "made by the caller; its order is mint order"),
    ("enqueue", "`mint`", "row and place in one step"),
    ("enqueue_at, enqueue_in", "`mint` with `at`, `in`", "`in` is priced by the server's clock"),
    ("Repeat (register)", "`recur`, `unrecur`", "a rule with a revision and a generation"),
    ("Repeat (an occurrence)", "`occur`", "one fresh job per due instant, whoever asks, however often"),
    ("the schedule's visibility fence", "`schedule` and `tick`", "hidden until the server's TIME has passed the score"),
    ("ready", "`lane:<lane>`", "pending: promoted, and not claimed yet"),
    ("Pump", "`tick`, `beat`", "promotes, recovers, answers due recurrences; decided by the bus"),
    ("claim", "`claim`", "a lease, fenced by (attempts, holder)"),
    ("bclaim", "`claim`, `settle` with `want` > 1", "many in one trip, lanes in turn"),
    ("partitioned finish", "`settle`", "a verdict per job: done, retry, dead, delay, release, cancelled"),
    ("the attempts counter as fencing token", "`a` and `h` of the row", "a stale pair is refused"),
    ("retry with backoff", "`settle` retry; `tick` for lost leases", "past `retries`: the morgue"),
    ("groups, rotated on a ring", "lanes on `ring`", "by virtual time, so that shares follow weights"),
    ("Metronome (parks)", "`BLPOP wake`", "one parked pop for all of a node's idle capacity"),
    ("extendLock, extendLocks", "`extend`", "a batch; says what is lost and what shall stop"),
    ("releaseLock", "`settle` release", "back to its lane, uncharged"),
    ("stalled-job sweep", "`tick`", "begun: charged as `lost`; not begun: uncharged"),
    ("morgue", "`dead`, `redrive`", "until redriven, purged or expired"),
    ("archive", "`done`", "by age, count and bytes"),
    ("metrics", "`m:<minute>`, `h:<hour>`", "counted once, in the script that moves the job"),
)


def document() -> str:
    """The whole text."""
    parts = [_PREFACE, "## Keys\n", _keys(), "#" + STATES.read_text(), "## Verbs\n"]
    parts += [_verb(name) for name in scripts.names()]
    parts += ["## The seeds' names\n", "| seed | here | |\n|---|---|---|"]
    parts += [f"| {seed} | {ours} | {note} |" for seed, ours, note in _SEEDS]
    return "\n".join(parts) + "\n"


def _keys() -> str:
    return "\n".join((keys.__doc__ or "").split("\n")[2:]).rstrip() + "\n"


def _verb(name: str) -> str:
    header, _ = scripts.parse(scripts.read(name))
    touched: set[str] = set(header.keys)
    for include in scripts.includes_of(header):
        touched |= set(scripts.parse(scripts.read(f"include/{include}"))[0].keys)
    lines = [f"### {name}\n", header.purpose + "\n"]
    if header.argv:
        lines.append("- ARGV " + " ".join(f"`{argument}`" for argument in header.argv))
    if header.returns:
        lines.append(f"- RETURNS {header.returns}")
    lines += [f"- ERRORS `{error.partition(' ')[0]}` {error.partition(' ')[2]}" for error in header.errors]
    if header.flags:
        lines.append(f"- FLAGS {header.flags}")
    if touched:
        lines.append("- KEYS " + " ".join(f"`{key}`" for key in sorted(touched)))
    if header.prose:
        lines += ["", " ".join(header.prose)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
