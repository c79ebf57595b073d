"""docs/reference/, made from docstrings and from the program: `python -m echod.cli.reference`.

Docstrings and signatures are read from the source: that way they are what an editor shows, those that are there only
for type checkers too, and nothing of `echofn.testing` is imported.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

import echod
import echofn
from echod.cli.app import VERBS, group

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MADE = "<!-- Made by `python -m echod.cli.reference`; a test keeps it current. -->\n"
_OPTION = re.compile(r"^(\w+): (.*(?:\n {2,}.*)*)$", re.M)
_MADE_BY_PEOPLE = {"Retry", "Snooze", "Fail", "Cancel", "Backoff", "Request", "AsyncClient"}
_SOURCE = "echofn/annotations.py"
_ANNOTATIONS = ("queue", "cron", "every", "webhook", "lifespan")


def documents() -> dict[str, str]:
    """The text of each page by its name."""
    pages = {
        "annotations.md": _annotations(),
        "context.md": _classes("What a handler is given, what it may raise, and `Backoff`.", {
            "echofn/context.py": ("Context", "BatchJob"), "echofn/request.py": ("Request",),
            "echofn/verdicts.py": ("Retry", "Snooze", "Fail", "Cancel"), "echofn/backoff.py": ("Backoff",),
        }),
        "testing.md": _classes("`echofn.testing`: tests of functions. [The guide](../guide/testing.md) has examples.", {
            "echofn/testing/fake.py": ("fake_context", "FakeContext", "Enqueued"),
            "echofn/testing/kit.py": ("Bus", "Job"),
        }),
        "client.md": _classes(
            "`echod.AsyncClient`; `echod.Client` and `echod.Job` are the same without `await`. "
            "[The guide](../guide/calling.md#from-other-programs) has an example.",
            {
                "echod/client/asynchronous.py": ("AsyncClient", "AsyncJob"),
                "echod/client/orders.py": ("Options", "ManyOptions", "Record"),
                "echod/client/repeats.py": ("RepeatOptions", "CronOptions", "EveryOptions", "RuleOptions", "Schedule"),
            },
        ),
        "command-line.md": _command_line(),
    }  # fmt: skip
    return {name: f"# {_title(name)}\n\n{_MADE}\n{text.strip()}\n" for name, text in pages.items()}


def options_of(annotation: str) -> dict[str, tuple[str, str, str]]:
    """What an annotation takes by name: type, default and meaning (empty: nobody wrote it down)."""
    signature, text = _signature(annotation), _text(annotation)
    meant = {name: " ".join(said.split()) for name, said in _OPTION.findall(text)}
    if annotation in ("webhook", "cron", "every"):
        meant = {**options_meant_by_queue(), **meant}
    taken = zip(signature.args.kwonlyargs, signature.args.kw_defaults, strict=True)
    return {
        each.arg: (_spelled(each.annotation), "" if default is None else _spelled(default), meant.get(each.arg, ""))
        for each, default in taken
    }


def options_meant_by_queue() -> dict[str, str]:
    return {name: meaning for name, (_, _, meaning) in options_of("queue").items()}


def _annotations() -> str:
    parts = [
        'An option that a version does not enforce is refused at load, never ignored. Durations are `"250ms"`, '
        '`"30s"`, `"5m"`, `"2h"`, `"1d"`, `"1w"`, a timedelta, or seconds; sizes `"64MB"`, or bytes. Of these types\n',
        *(f"- `{name}` is `{kind}`" for name, kind in _aliases()),
        "",
    ]
    for name in _ANNOTATIONS:
        given = [f"{each.arg}: {_spelled(each.annotation)}" for each in _signature(name).args.posonlyargs]
        parts.append(f"## @{name}\n")
        parts.append(_OPTION.sub("", _text(name)).strip() + "\n")
        parts += [f"- `{each}`, first and without its name" for each in given if not each.startswith("function")]
        for option, (kind, default, meaning) in options_of(name).items():
            is_left_open = default in ("", "...")
            parts.append(f"- `{option}: {kind}" + ("`" if is_left_open else f" = {default}`") + f" {meaning}".rstrip())
        parts.append("")
    return "\n".join(parts)


def _aliases() -> Iterator[tuple[str, str]]:
    """The types that have a name of their own in the signatures."""
    for each in ast.walk(_tree(_SOURCE)):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.BinOp | ast.Subscript):
            name = _spelled(each.targets[0])
            if name[0].isupper() and not name.isupper():
                yield name, _spelled(each.value)


def _signature(annotation: str) -> Function:
    """What type checkers read: of several, the one with the options."""
    found = [each for each in _functions(_tree(_SOURCE)) if each.name == annotation]
    return max(found, key=lambda each: len(each.args.kwonlyargs))


def _text(annotation: str) -> str:
    """The docstring that editors show."""
    found = (each for each in _functions(_tree(_SOURCE)) if each.name == annotation)
    return next(text for each in found if (text := ast.get_docstring(each)))


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (each for each in ast.walk(tree) if isinstance(each, Function))


def _classes(preface: str, named: Mapping[str, tuple[str, ...]]) -> str:
    parts = [preface, ""]
    for file, names in named.items():
        body = {each.name: each for each in _tree(file).body if isinstance(each, ast.ClassDef | Function)}
        for name in names:
            each = body[name]
            said = ast.get_docstring(each) or ""
            if isinstance(each, Function):
                parts += [f"## {name}\n", _call(each), said, ""]
                continue
            above = [owner for base in each.bases if isinstance(owner := body.get(_spelled(base)), ast.ClassDef)]
            members = [member for owner in (*above, each) for member in _members(owner)]
            parts += [f"## {name}\n", *_made(each), said, "", *_fields(each), *members]
    return "\n".join(parts)


def _made(given: ast.ClassDef) -> Iterator[str]:
    """How one is made, where that is for everybody."""
    for each in given.body:
        if isinstance(each, Function) and each.name == "__init__" and given.name in _MADE_BY_PEOPLE:
            yield _fenced(f"{given.name}({_arguments(each)})")


def _fields(given: ast.ClassDef) -> Iterator[str]:
    """Of a value: its fields."""
    fields = [each for each in given.body if isinstance(each, ast.AnnAssign)]
    for each in fields:
        default = f" = {_spelled(each.value)}" if each.value else ""
        yield f"- `{_spelled(each.target)}: {_spelled(each.annotation)}{default}`"
    if fields:
        yield ""


def _members(given: ast.ClassDef) -> Iterator[str]:
    """Of a class: what everybody may use, and somebody has written a word about."""
    for each in given.body:
        if not isinstance(each, Function) or each.name.startswith("_") or not (said := ast.get_docstring(each)):
            continue
        is_property = "property" in {_spelled(decorator) for decorator in each.decorator_list}
        call = f"`{_spelled(each.returns)}`\n" if is_property else _call(each)
        yield f"### {each.name}\n\n{call}\n{said.strip()}\n"


def _call(given: Function) -> str:
    before = "await " if isinstance(given, ast.AsyncFunctionDef) else ""
    return _fenced(f"{before}{given.name}({_arguments(given)}) -> {_spelled(given.returns)}")


def _arguments(given: Function) -> str:
    return _spelled(given.args).removeprefix("self").removeprefix(", ")


def _fenced(line: str) -> str:
    """A signature; a long one with a line for each argument."""
    if len(line) > 100 and "(" in line:
        head, _, rest = line.partition("(")
        inner, _, tail = rest.rpartition(")")
        words = re.split(r", (?![^\[(]*[\])])", inner)
        line = f"{head}(\n" + "".join(f"    {word},\n" for word in words) + f"){tail}"
    return f'```python title="signature"\n{line}\n```\n'


def _command_line() -> str:
    parts = [
        "Verbs act over HTTP, on `--url` (`ECHOD_URL`, else `http://127.0.0.1:8321`), with the token in `ECHOD_TOKEN`; "
        "only those that serve open the bus. `echod VERB --help` says the same as this page.\n",
        "Exit codes: 0 done, 1 the run failed, 2 usage or refused input, 3 nothing listening, 4 timed out.\n",
    ]
    root = click.Context(group, info_name="echod")
    for name in VERBS:
        command = group.get_command(root, name)
        assert command is not None
        parts.append(_verb(command, click.Context(command, root, name), "##"))
    return "\n".join(parts)


def _verb(command: click.Command, context: click.Context, level: str) -> str:
    parts = [f"{level} {context.command_path}\n"]
    parts.append(f"    {' '.join((context.command_path, *command.collect_usage_pieces(context)))}\n")
    parts.append(inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n")
    for each in command.get_params(context):
        record = each.get_help_record(context)
        if record and "--help" not in record[0]:
            parts.append(f"- `{record[0]}` {record[1]}".rstrip())
    parts.append("")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts.append(_verb(inner, click.Context(inner, context, name), level + "#"))
    return "\n".join(parts)


def _tree(file: str) -> ast.Module:
    package, _, path = file.partition("/")
    folder = Path(str({"echod": echod, "echofn": echofn}[package].__file__)).parent
    return ast.parse((folder / path).read_text())


def _spelled(node: ast.AST | None) -> str:
    return "None" if node is None else ast.unparse(node).replace("'", '"')


def _title(name: str) -> str:
    return name.removesuffix(".md").replace("-", " ").capitalize()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
