"""The group of all verbs: their names and one-line helps here, their code in the module that is imported when used."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import cast

import click

from echod.errors import EchodError

VERBS = {
    "init": ("project", "Write a small project to start from."),
    "dev": ("serve", "Serve a folder with reload, on the embedded bus."),
    "start": ("serve", "Serve a folder, or the active version, without reload."),
    "gateway": ("serve", "Run the HTTP gateway alone."),
    "pump": ("serve", "Run a pump alone: due jobs, schedules, recovery."),
    "worker": ("serve", "Run a worker node alone."),
    "run": ("run", "Run one call in the foreground, without a bus, for a debugger."),
    "deploy": ("deploy", "Store a folder as a version and switch to it."),
    "versions": ("deploy", "List stored versions with what each changed."),
    "rollback": ("deploy", "Switch back to the version before, or to a named one."),
    "functions": ("functions", "List functions: those served, or those of a folder."),
    "invoke": ("invoke", "Call a function; with --wait print its result."),
    "jobs": ("jobs", "List jobs, newest first."),
    "job": ("jobs", "Show one job."),
    "logs": ("logs", "Print what a job, or a function's jobs, wrote."),
    "cancel": ("jobs", "Cancel a job."),
    "morgue": ("bulk", "List jobs that failed for good, with why."),
    "redrive": ("bulk", "Run dead jobs again: named ones, or by a filter and at a rate."),
    "drain": ("bulk", "Cancel what waits in a function, or in one lane of it."),
    "move": ("bulk", "Move waiting jobs, or a whole lane, to another lane."),
    "purge": ("bulk", "Delete ended jobs and their logs."),
    "schedules": ("schedules", "List schedules; register, remove or run one."),
    "cron": ("cron", "Print the next instants of a cron rule."),
    "pause": ("schedules", "Pause a function, or one schedule of it."),
    "resume": ("schedules", "Resume a function, or one schedule of it."),
    "lanes": ("lanes", "List lanes: their shares, limits, and which wait for what."),
    "set": ("lanes", "Set weight and limits of a function, or of one lane of it."),
    "clock": ("clock", "Drive the clock of an `echod dev --clock`."),
    "sandbox": ("sandbox", "Try the walls here; print each, and what a function opens."),
    "token": ("token", "Make, list and revoke tokens, and one-time login links."),
    "doctor": ("doctor", "Look at the bus: what a crash can lose, and what to mend."),
    "bus": ("project", "Print the address of the bus in use."),
    "config": ("project", "Print the settings in use, secrets masked."),
}


class Verbs(click.Group):
    """Loads a verb's module when the verb is named, so that each starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"echod.cli.{VERBS[cmd_name][0]}")
        found = vars(module)
        return cast("click.Command", found.get(cmd_name) or found[f"{cmd_name}_"])  # `set` is a builtin's name

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, 1)
            ctx.fail(
                f"no verb {args[0]!r}" + (f"; did you mean `echod {near[0]}`?" if near else "; see `echod --help`")
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb that is named. A pipe whose reader has gone, as `| head` does, ends it as the signal would."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
            raise click.exceptions.Exit(141) from None  # click itself would say 1: the run failed

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 the run failed, 2 usage or refused input, 3 nothing listening, 4 timed out.",
)
@click.version_option(package_name="echofn", prog_name="echod")
def group() -> None:
    """A serverless-style function platform on a job bus."""


def run(arguments: Sequence[str]) -> int:
    """Run one verb; the exit code. Errors that are expected become one line on stderr."""
    try:
        result = group.main(list(arguments), prog_name="echod", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except EchodError as error:
        click.echo(f"echod: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
