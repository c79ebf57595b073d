"""docs/demo.cast (asciicast v2), made by `make demo`: somebody types into a shell, and real processes answer.

A save runs new code a second later; `echod clock next` fires Monday's report now; a worker that is killed is charged to
its job, whose second run says so. Nothing is typed before what came before it is there. Nothing of the machine is in
it: the folder is called ~/shop, the port 8321.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from nodes import Terminal, free_port, until

WIDTH, HEIGHT = 110, 36
LETTER_S, LOOK_S, LONGEST_S = 0.035, 1.5, 3.0  # typing; reading before the next command; the longest wait that is shown
PROMPT = "~/shop $ "
REPORT = """\
import time
from echofn import cron, queue

@queue
def greet():
    return "hello"

@cron("0 6 * * mon", tz="Europe/Berlin")
def monday(payload, ctx):
    return f"the report of {ctx.due:%A, %d %B}"

@queue(backoff=["1s"])
def rows(payload, ctx):
    time.sleep(60 if ctx.attempt == 1 else 0)
    return f"all rows, on attempt {ctx.attempt}"
"""


class Recording:
    """A shell in a folder of its own, and what was seen of it: (seconds since the last, text)."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "shop"
        (self.folder / "functions").mkdir(parents=True)
        (self.folder / "functions/report.py").write_text(REPORT)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.seen: list[tuple[float, str]] = []
        self._hidden = {
            str(self.folder): "~/shop",
            self.url.rpartition(":")[2]: "8321",
            PROMPT: f"\x1b[32m{PROMPT}\x1b[0m",
        }
        port, path = self.url.rpartition(":")[2], f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._shell = Terminal(
            "--norc", "--noprofile", "--noediting", "-i", program=["/bin/bash"], cwd=self.folder,
            PATH=path, HOME=str(home), PS1=PROMPT, ECHOD_PORT=port, ECHOD_URL=self.url, ECHOD_SANDBOX="auto",
        )  # fmt: skip
        self._shell.read_until(PROMPT)
        self._shell.type(f"stty -echo cols {WIDTH} rows {HEIGHT}\n")
        self._shell.read_until(PROMPT)
        self._show(0.0, PROMPT)

    def type(self, command: str, awaited: str = "") -> str:
        """Type a command; what is said until the prompt is back, and `awaited` is there."""
        for letter in command:
            self._show(LETTER_S, letter)
        self._show(LETTER_S * 10, "\r\n")
        start = time.monotonic()
        self._shell.type(command + "\n")
        said = self._shell.read_until(PROMPT, 60)
        if awaited and awaited not in said:
            said += self._shell.read_until(awaited, 60)
        self._show(min(time.monotonic() - start, LONGEST_S), said)
        if not said.endswith(PROMPT):  # something was said behind the prompt's back
            self._shell.type("\n")
            self._show(0.1, self._shell.read_until(PROMPT))
        self._show(LOOK_S, "")
        return said

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=90) as answer:
            return json.load(answer)

    def close(self) -> None:
        self._shell.type("kill %1; wait; exit\n")
        self._shell.wait()
        self._shell.close()

    def _show(self, after_s: float, text: str) -> None:
        for ours, shown in self._hidden.items():
            text = text.replace(ours, shown)
        self.seen.append((after_s, text))


def play(home: Path) -> list[tuple[float, str]]:
    """The demonstration, in an empty folder. Raises AssertionError where it does not come out as it should."""
    demo = Recording(home)
    try:
        demo.type("cat functions/report.py")
        demo.type("echod dev --clock < /dev/null &", "report.rows")
        demo.type("# a save: a second later new code runs")
        assert '"hello"' in demo.type("echod invoke report.greet --wait")
        demo.type("sed -i 's/hello/good morning/' functions/report.py", "serving DEP")
        assert '"good morning"' in demo.type("echod invoke report.greet --wait")

        demo.type("# Monday's report, now")
        assert "due: report.monday" in demo.type("echod clock next")
        until(lambda: demo.get("/jobs?function=report.monday&state=done")["jobs"])
        (report,) = demo.get("/jobs?function=report.monday&state=done")["jobs"]
        assert "the report of Monday" in demo.type(f"echod job {report['id']}")

        demo.type("# a worker dies: its job is charged, with the cause, and runs again")
        demo.type("echod invoke report.rows | tee job")
        until(lambda: demo.get("/jobs?function=report.rows&state=active")["jobs"])
        (rows,) = demo.get("/jobs?function=report.rows")["jobs"]
        until(lambda: demo.get(f"/jobs/{rows['id']}")["started"])  # a worker that has not begun is charged to nobody
        demo.type("""kill -9 $(curl -s $ECHOD_URL/functions/report.rows | grep -oP '"pids":\\[\\K\\d+')""")
        until(lambda: demo.get(f"/jobs/{rows['id']}")["state"] == "done")
        told = demo.type("echod job $(cat job)")
        assert "signal:KILL" in told, told
        assert "all rows, on attempt 2" in told, told
    finally:
        demo.close()
    return demo.seen


def cast(seen: list[tuple[float, str]]) -> str:
    """As asciicast v2: a head, then a line for each piece of output."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "echod: a save, next Monday, a killed worker"}
    lines, at_s = [json.dumps(head)], 0.0
    for after_s, text in seen:
        at_s += after_s
        lines.append(json.dumps([round(at_s, 3), "o", text], ensure_ascii=False))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        Path(sys.argv[1]).write_text(cast(play(Path(place))))
