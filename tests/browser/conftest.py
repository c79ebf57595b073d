"""A real browser, watched: whatever it complains about fails the test that opened the page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Response, async_playwright, expect

from browser.preview import previewing
from echod.bus import link
from unit.gateway.kit import Rig, Valkey, serving

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_MS = 60_000  # of a machine that does much else
expect.set_options(timeout=PATIENCE_MS)

Opener = Callable[..., AbstractAsyncContextManager[Page]]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Chromium of this machine."""
    program = next((found for found in map(shutil.which, NAMES) if found), None)
    assert program, f"no browser found: install one of {', '.join(NAMES)}"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
def opened(browser: Browser) -> Opener:
    """`async with opened(url, width=…, dark=…) as page`: fails at its end on what the browser complained about."""

    @contextlib.asynccontextmanager
    async def open(
        url: str, *, width: int = 1280, dark: bool = False, allowed: tuple[int, ...] = ()
    ) -> AsyncIterator[Page]:
        context = await browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        faults: list[str] = []
        host = urlsplit(url).netloc

        def answered(response: Response) -> None:
            if response.status >= 400 and response.status not in allowed:
                faults.append(f"{response.status} {response.url}")

        page.on("response", answered)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("request", lambda request: faults.append(request.url) if urlsplit(request.url).netloc != host else None)
        page.on(
            "console",
            lambda message: (
                faults.append(f"console: {message.text}")
                if message.type in ("error", "warning") and "Failed to load resource" not in message.text
                else None
            ),
        )
        await page.goto(url)
        yield page
        await context.close()
        assert faults == []

    return open


@pytest.fixture
async def rig(server: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """The real gateway over a real bus; the test itself plays the workers."""
    monkeypatch.setattr(link, "CALL_TIMEOUT_S", 10.0)  # a busy machine is no bus that is away
    async with serving(server) as rig:
        yield rig


@pytest.fixture
async def preview() -> AsyncIterator[str]:
    """The address of the pages over sample data."""
    async with previewing() as url:
        yield url
