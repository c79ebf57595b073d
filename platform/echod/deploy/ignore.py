"""What of a folder never enters a version: caches, environments, dot-files, secrets, and what `.echodignore` names.

`.echodignore` has a pattern a line, with the meaning that git gives them (gitignore(5)): `*`, `?`, `[…]`, `**`; a slash
at the end means folders; a slash elsewhere anchors at the served folder; `!` takes a file back in; the last match wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable

FILE = ".echodignore"
CACHES = frozenset({"__pycache__", "node_modules", "site-packages", "__pypackages__"})
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # what a folder has that is an environment, whatever it is called
# Compiled files, settings, and what editors have beside a file while they save it; `sed -i`: six letters of mkstemp(3).
LEFT_OUT = re.compile(r".*(\.py[co]|~|\.sw[op]|\.tmp|\.env)|#.*#|4913|sed(?=.*[A-Z\d])[A-Za-z\d]{6}")

SECRETS = """
*.pem
*.key
*.p12
*.pfx
*.jks
*.keystore
*.kdbx
id_rsa
id_dsa
id_ecdsa
id_ed25519
secrets.json
secrets.toml
secrets.yaml
secrets.yml
credentials.json
service[-_]account*.json
"""  # left out unless `.echodignore` takes one back in: a version is stored where many may read it

Ignored = Callable[[str, bool], bool]


def never_taken(name: str, is_folder: bool) -> bool:
    """Whether an entry of this name is left out whatever `.echodignore` says. (Dot-files are, before this.)"""
    return name in CACHES if is_folder else LEFT_OUT.fullmatch(name) is not None


def is_settings(name: str) -> bool:
    """Whether a file of this name is left out because it holds settings, secret ones most often."""
    return name.startswith(".env") or name.endswith(".env")


def ignored(text: str) -> Ignored:
    """A predicate over (path from the folder, is it a folder) for the patterns in `text`."""
    rules = [rule for line in text.splitlines() if (rule := _rule(line))]

    def decide(path: str, is_folder: bool) -> bool:
        verdict = False
        for pattern, folders_only, taken_back in rules:
            if (is_folder or not folders_only) and pattern.fullmatch(path):
                verdict = not taken_back
        return verdict

    return decide


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    taken_back = text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    return re.compile(("" if anchored else "(?:.*/)?") + _translated(text.lstrip("/"))), folders_only, taken_back


def _translated(text: str) -> str:
    """A gitignore pattern as a regular expression; what is not a valid set of characters is taken literally."""
    out, place = "", 0
    while place < len(text):
        if text.startswith("**/", place):
            out, place = out + "(?:.*/)?", place + 3
        elif text.startswith("**", place):
            out, place = out + ".*", place + 2
        elif text[place] == "*":
            out, place = out + "[^/]*", place + 1
        elif text[place] == "?":
            out, place = out + "[^/]", place + 1
        elif text[place] == "[" and (found := _set(text, place)) is not None:
            out, place = out + found[0], found[1]
        else:
            out, place = out + re.escape(text[place]), place + 1
    return out


def _set(text: str, place: int) -> tuple[str, int] | None:
    """The set of characters that begins at `place` as a regular expression, and where it ends; None: it is none."""
    start = place + (2 if text[place + 1 : place + 2] in {"!", "^"} else 1)
    end = text.find("]", start + 1)  # a bracket at the start is one of the set
    if end < 0:
        return None
    inside = re.sub(r"([\\\[&|~])", r"\\\1", text[start:end])
    found = ("[^" if start - place > 1 else "[") + inside + "]"
    try:
        re.compile(found)
    except re.error:  # [z-a]
        return None
    return found, end + 1
