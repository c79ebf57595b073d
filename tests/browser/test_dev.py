"""The whole of it: `echod dev` on a folder, a browser on its pages, an editor on its files."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from browser.conftest import Opener
from nodes import free_port

FOLDER = {
    "hello.py": '''
from echofn import queue

@queue
def greet(payload: dict) -> dict:
    """Say hello."""
    print("greeting", payload["name"])
    return {"hello": payload["name"]}

@queue
def nothing() -> str:
    return "done"
''',
    "clock.py": """
from echofn import every

@every("1s")
def beat() -> None:
    print("tick")
""",
    "billing.py": """
from echofn import queue

@queue(retries=1, backoff="100ms")
def charge(payload: int) -> int:
    raise RuntimeError(f"no such account: {payload}")
""",
}
BROKEN = "from echofn import queue\n\n@queue\ndef greet(payload: dict -> dict:\n    return payload\n"


@dataclass
class Dev:
    url: str
    folder: Path


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    """A node of its own, ready."""
    folder = tmp_path / "functions"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text)
    port = free_port()
    program = Path(sys.executable).with_name("echod")
    args = ("dev", str(folder), "--port", str(port), "--state", str(tmp_path / "state"))
    process = await asyncio.create_subprocess_exec(program, *args, stdin=DEVNULL, stdout=DEVNULL, stderr=STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(180), httpx.AsyncClient() as http:
            ready = False
            while not ready:
                assert process.returncode is None, "echod dev ended"
                with contextlib.suppress(httpx.TransportError):
                    ready = (await http.get(f"{url}/readyz")).status_code == 200
                await asyncio.sleep(0.05)
            # What a fresh installation compiles at its first page and first run is not what is tried here.
            assert (await http.get(url, headers={"Accept": "text/html"}, timeout=60)).status_code == 200
            await http.post(f"{url}/functions/hello.nothing", headers={"Prefer": "wait=30"}, timeout=60)
        yield Dev(url, folder)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_the_clock_can_be_watched_and_a_run_followed_to_its_end(dev: Dev, opened: Opener) -> None:
    async with opened(dev.url) as page:
        await page.evaluate("globalThis.still = true")
        done = page.locator('[data-line="clock.beat"] .occ.done')
        await expect(done).not_to_have_count(0)
        before = await done.count()
        await expect(done.nth(before)).to_be_attached()  # one more, and it flashed
        await expect(done.nth(before)).to_have_class(re.compile("lit"))
        await expect(page.locator('tr[data-name="clock.beat"] [data-v="next"]')).to_have_text(re.compile("in 1 s|now"))
        assert await page.evaluate("globalThis.still"), "the page was loaded anew"

        await page.locator('tr[data-name="hello.greet"] [data-run]').click()
        await page.get_by_label("Payload, as JSON").fill('{"name": "<b>Ada</b>"}')
        await page.locator("#run button.primary").click()
        await page.wait_for_url("**/jobs/JOB*")
        await expect(page.locator(".sub .state")).to_have_text("Done")
        await expect(page.locator(".log-line .text")).to_have_text("greeting <b>Ada</b>")
        await expect(page.locator("pre.json").nth(1)).to_contain_text('"hello": "<b>Ada</b>"')

        await page.goto(dev.url)
        await page.locator('tr[data-name="hello.nothing"] [data-run]').click()
        await page.wait_for_url("**/jobs/JOB*")
        await expect(page.locator("pre.json").nth(1)).to_have_text('"done"')


async def test_a_failure_is_followed_through_its_retries_to_the_morgue(dev: Dev, opened: Opener) -> None:
    async with opened(f"{dev.url}/functions/billing.charge") as page:
        await page.get_by_label("Payload, as JSON").first.fill("7")
        await page.locator("#invoke button.primary").click()
        await page.wait_for_url("**/jobs/JOB*")
        await expect(page.locator(".sub .state")).to_have_text("Failed for good")
        await expect(page.locator(".timeline li")).to_have_count(2)
        await expect(page.locator(".trace")).to_contain_text("no such account: 7")
        await page.goto(f"{dev.url}/morgue")
        await expect(page.locator("[data-dead]")).to_have_count(1)


async def test_a_broken_save_shows_where_and_a_fixed_one_clears_it(dev: Dev, opened: Opener) -> None:
    async with opened(dev.url) as page:
        await expect(page.locator('tr[data-name="hello.greet"]')).to_be_visible()
        (dev.folder / "hello.py").write_text(BROKEN)
        await expect(page.locator(".errors")).to_contain_text("hello.py:4")
        await expect(page.locator(".errors")).to_contain_text("SyntaxError")
        await expect(page.locator('tr[data-name="hello.greet"]')).to_be_visible()  # the last good version serves on
        (dev.folder / "hello.py").write_text(FOLDER["hello.py"])
        await expect(page.locator(".errors")).to_have_count(0)
