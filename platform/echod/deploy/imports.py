"""What the syntax of a folder's files says: the secrets that they name, and which of them a module's code depends on.

Nothing is imported, and nothing parsed here: `unparsed` names the files whose syntax is needed, `learn` takes what
`echofn.parsing` says of one. Used to tell whether something that hung could behave otherwise now, and whether a
function's code is another. What is imported by name at run time (`importlib.import_module`) is not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from echod.deploy.snapshot import file_of
from echofn.discovery_protocol import Import, Said
from echofn.manifest import LoadError

MAX_SOURCE_BYTES = 1_000_000  # its syntax tree has up to 500 times as many


Known = dict[bytes, Said | None]  # by the digest of a file; None: it cannot be parsed within the limits


class Sources:
    """The files of one folder. Each is to be parsed once, and not at all where `before` knows it.

    All but `learn`, `code` and `secrets` of what was settled takes its time in a large folder: ask in a thread.
    """

    def __init__(self, contents: Mapping[str, bytes], package: str, before: Known | None = None) -> None:
        self._contents = contents
        self._package = package
        self._before: Known = {} if before is None else before
        self.known: Known = {}
        self._digests: dict[str, bytes] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._codes: dict[str, bytes] = {}

    def unparsed(self, paths: Iterable[str]) -> list[bytes]:
        """What is to be learned next of these files and of all that they import; nothing once all is known."""
        found: dict[bytes, None] = {}
        for path in self._reached(paths):
            source = self._contents[path]
            if len(source) <= MAX_SOURCE_BYTES and not self._is_known(path):
                found[source] = None
        return list(found)

    def learn(self, source: bytes, said: Said | None) -> None:
        """Take what a file says; None: it cannot be parsed within the limits."""
        self.known[hashlib.sha256(source).digest()] = said

    def refused(self, paths: Iterable[str]) -> list[LoadError]:
        """One for each file among these and what they import that is not looked into."""
        errors: list[LoadError] = []
        for path in sorted(self._reached(paths)):
            source = self._contents[path]
            if len(source) > MAX_SOURCE_BYTES:
                most = f"{MAX_SOURCE_BYTES / 1e6:g} MB"
                said = f"expected at most {most} of Python, got {len(source) / 1e6:.1f} MB"
                errors.append(_refused(path, f"{said}; keep data in a file beside it (.json, .csv) and read that"))
            elif self._is_known(path) and self._of(path) is None:
                said = "expected Python that can be parsed in a few seconds, got some that cannot"
                errors.append(_refused(path, f"{said}; make it smaller, or keep its data in a file beside it"))
        return errors

    def closure(self, path: str) -> frozenset[str]:
        """`path` and every file of the folder that it imports, and that those import."""
        return frozenset(self._reached([path]))

    def settle(self, paths: Iterable[str]) -> None:
        """Have the codes of these files at hand."""
        for path in paths:
            self.code(path)

    def code(self, path: str) -> bytes:
        """A digest of the file and of all that it imports from the folder."""
        if path not in self._codes:
            self._digest_from(path)
        return self._codes[path]

    def secrets(self, path: str) -> frozenset[str]:
        """The variables that the annotations in the file name."""
        said = self._of(path) if path in self._contents else None
        return said.secrets if said is not None else frozenset()

    def _digest_from(self, start: str) -> None:
        """Codes for `start` and what it reaches. Files that import each other in a ring have all of the ring in theirs,
        and each once: Tarjan's strongly connected components, which come in the order that codes are made in.
        """
        order: dict[str, int] = {}
        lowest: dict[str, int] = {}
        ring: list[str] = []
        ahead = [(start, iter(self._imported(start)))]
        order[start] = lowest[start] = 0
        ring.append(start)
        while ahead:
            path, following = ahead[-1]
            for each in following:
                if each in self._codes:
                    continue
                if each not in order:
                    order[each] = lowest[each] = len(order)
                    ring.append(each)
                    ahead.append((each, iter(self._imported(each))))
                    break
                lowest[path] = min(lowest[path], order[each])
            else:
                ahead.pop()
                if ahead:
                    above = ahead[-1][0]
                    lowest[above] = min(lowest[above], lowest[path])
                if lowest[path] == order[path]:
                    at = ring.index(path)
                    self._settle_ring(ring[at:])
                    del ring[at:]

    def _settle_ring(self, ring: list[str]) -> None:
        """The one code of files that all reach each other, or of a single one."""
        digest = hashlib.sha256()
        for path in sorted(ring):
            digest.update(hashlib.sha256(path.encode()).digest() + self._digest(path))
        outside = {each for path in ring for each in self._imported(path)}.difference(ring)
        for code in sorted(self._codes[each] for each in outside):
            digest.update(code)
        self._codes |= dict.fromkeys(ring, digest.digest())

    def _reached(self, paths: Iterable[str]) -> set[str]:
        """Files of the folder among these, and what they import as far as that is known."""
        found: set[str] = set()
        waiting = [path for path in paths if path in self._contents]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += self._imported(current)
        return found

    def _is_known(self, path: str) -> bool:
        digest = self._digest(path)
        if digest not in self.known and digest in self._before:
            self.known[digest] = self._before[digest]
        return digest in self.known

    def _of(self, path: str) -> Said | None:
        """What a file says, as far as that is known and can be."""
        return self.known[self._digest(path)] if self._is_known(path) else None

    def _digest(self, path: str) -> bytes:
        if (known := self._digests.get(path)) is None:
            known = self._digests[path] = hashlib.sha256(self._contents.get(path, b"")).digest()
        return known

    def _imported(self, path: str) -> tuple[str, ...]:
        """Files of the folder that the file imports; none while its syntax is not known."""
        known = self._imports.get(path)
        if known is None:
            said = self._of(path) if path in self._contents else None
            if said is None:
                return ()
            known = tuple(dict.fromkeys(each for each in self._named(path, said) if each in self._contents))
            self._imports[path] = known
        return known

    def _named(self, path: str, said: Said) -> Iterator[str]:
        """Paths that the file may import, whether they exist or not."""
        for each in said.imports:
            base = _below(each.module, self._package) if not each.level else _base(path, each)
            if base is not None:
                yield from _files(base)
                for name in each.names:
                    yield from _files(".".join(filter(None, (base, name))))


def _refused(path: str, message: str) -> LoadError:
    return LoadError("", path, message, kind="refused")


def _base(path: str, said: Import) -> str | None:
    """The module that a relative `from … import` starts at, from the folder; None outside it."""
    folders, up = path.split("/")[:-1], (said.level or 1) - 1
    if up > len(folders):
        return None
    return ".".join([*folders[: len(folders) - up], *filter(None, [said.module])])


def _below(name: str, package: str) -> str | None:
    if name == package:
        return ""
    return name.removeprefix(f"{package}.") if name.startswith(f"{package}.") else None


def _files(module: str) -> Iterator[str]:
    if module:
        yield file_of(module)
        yield file_of(f"{module}.__init__")
