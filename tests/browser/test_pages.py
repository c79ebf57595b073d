"""What a person does with the pages, in a real browser, against the real gateway and a real bus."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from playwright.async_api import Dialog, Page, Route, expect

from browser import sample
from browser.conftest import Opener
from echod.bus.answers import LogLine
from echod.gateway.pages import words
from echod.gateway.pages.draw import bars
from echod.model.ids import JobId
from echod.model.job import Done, Error
from unit.gateway.kit import ERRORS, FUNCTIONS, OLDER, VERSION, Rig, Valkey, function, hold, publish, serving

WIDTHS = (360, 768, 1440)


def base(rig: Rig) -> str:
    return str(rig.http.base_url).rstrip("/")


async def overflow(page: Page) -> list[str]:
    """What sticks out to the right, when the page can be scrolled sideways."""
    found: list[str] = await page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
           ['page ' + document.documentElement.scrollWidth, ...[...document.querySelectorAll('body *')]
             .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
             .filter((e) => !e.closest('.scroll, .tabs, .table-scroll, .log, pre'))
             .map((e) => e.tagName + '.' + e.getAttribute('class'))]"""
    )
    return found


async def background(page: Page) -> str:
    return str(await page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


LIGHT, DARK = "rgb(250, 250, 250)", "rgb(10, 10, 10)"


@pytest.mark.parametrize("width", WIDTHS)
async def test_no_page_scrolls_sideways_whatever_it_shows(preview: str, opened: Opener, width: int) -> None:
    async with opened(preview, width=width) as page:
        for path in sample.PAGES:
            await page.goto(preview + path)
            assert await overflow(page) == [], path


async def test_every_page_of_the_gateway_loads_without_a_complaint(rig: Rig, opened: Opener) -> None:
    id = await rig.mint("hello.greet", {"name": sample.ATTACK})
    await rig.run("hello.greet", {"html": sample.ATTACK})
    await rig.recur("tick.beat")
    async with opened(base(rig)) as page:
        for path in (
            "/",
            "/functions/hello.greet",
            "/functions/tick.beat",
            "/functions/odd%20name%2F%7Bx%7D%3A%23%3F%25%F0%9F%A6%8A",
            f"/jobs/{id}",
            "/jobs",
            "/schedules",
            "/morgue",
            "/versions",
            "/nodes",
            "/bus",
        ):
            await page.goto(base(rig) + path)
            await expect(page.locator("main h1")).to_be_visible()
            await expect(page.locator("[data-live]")).to_have_class("live on")


async def test_script_and_server_spell_alike(preview: str, opened: Opener) -> None:
    numbers = [
        0,
        0.4,
        1,
        4.26,
        9.99,
        42,
        999,
        1000,
        9_999,
        10_000,
        59_999,
        99_999,
        100_000,
        1e6,
        1_284_113,
        187_200_000,
        3e12,
    ]
    rates = [0, 0.0004, 0.0016, 0.05, 0.11, 0.166, 0.5, 1, 1.25, 9.99, 10, 212, 12_345]
    series = [0, 1, 2, 300, 0, 7] * 11
    async with opened(preview) as page:
        spoken = await page.evaluate(
            """([numbers, rates, series]) => ({
                count: numbers.map(echod.count), span: numbers.map(echod.span), until: numbers.map(echod.until),
                ago: numbers.map(echod.ago), rate: rates.map(echod.rate),
                share: rates.map((part) => echod.share(part, 300)),
                bars: echod.bars(series, [...series].reverse()) })""",
            [numbers, rates, series],
        )
    drawn = bars(series, series[::-1], width=120, height=28, gap=1, count=30)
    assert spoken == {
        "count": [words.count(n) for n in numbers],
        "span": [words.span(n) for n in numbers],
        "until": [words.until(n) for n in numbers],
        "ago": [words.ago(n) for n in numbers],
        "rate": [words.rate(n) for n in rates],
        "share": [words.share(n, 300) for n in rates],
        "bars": {"done": drawn.done, "failed": drawn.failed},
    }


async def test_a_new_job_shows_on_the_list_without_a_reload(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        await page.evaluate("globalThis.still = true")
        row = page.locator('tr[data-name="hello.any"]')
        await expect(row.locator('[data-v="pending"]')).to_have_text("0 waiting")
        await rig.mint("hello.any", 1)
        await expect(row.locator('[data-v="pending"]')).to_have_text("1 waiting")
        await rig.run("hello.any")
        await expect(row.locator('[data-v="hour"]')).to_have_text("1 in 1 h")
        assert await page.evaluate("globalThis.still"), "the page was loaded anew"


async def test_figures_change_without_moving_anything(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        last = page.locator("tr[data-name]").last
        before = await last.bounding_box()
        for _ in range(12):
            await rig.mint("hello.any", 1)
        await expect(page.locator('tr[data-name="hello.any"] [data-v="pending"]')).to_have_text("12 waiting")
        assert await last.bounding_box() == before


async def test_a_load_error_comes_and_goes_by_itself(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        await expect(page.locator(".errors")).to_have_count(0)
        await publish(rig.bus, FUNCTIONS, ERRORS, OLDER)
        await rig.registry.refresh()
        await expect(page.locator(".errors")).to_contain_text("broken.py:4:7")
        await expect(page.locator(".errors")).to_contain_text("line 4, column 7")
        await expect(page.locator(".errors")).to_contain_text("invalid syntax")
        await publish(rig.bus, FUNCTIONS, (), VERSION)
        await rig.registry.refresh()
        await expect(page.locator(".errors")).to_have_count(0)


async def test_a_new_function_joins_the_list_by_itself(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        await expect(page.locator("tr[data-name]")).to_have_count(len(FUNCTIONS))
        await publish(rig.bus, (*FUNCTIONS, function("late.comer")), (), OLDER)
        await rig.registry.refresh()
        await expect(page.locator('tr[data-name="late.comer"] .name')).to_be_visible()


async def test_a_due_time_lights_up_as_it_becomes_a_job(rig: Rig, opened: Opener) -> None:
    due = rig.bus.clock.now_ms() - 1_000
    await rig.recur("tick.beat", next_ms=due)
    (row,) = await rig.bus.recurrences("tick.beat")
    async with opened(base(rig)) as page:
        line = page.locator('[data-line="tick.beat"]')
        await expect(line.locator(".occ.due").first).to_be_attached()
        job = rig.bus.new_job_id()
        await rig.bus.occur("tick.beat", row.name, row.revision, due, next_ms=due + 20_000, job=job)
        await expect(line.locator(f'.occ[href="/jobs/{job}"]')).to_have_class(re.compile("lit"))
        await rig.run("tick.beat")
        await expect(line.locator(f'.occ[href="/jobs/{job}"]')).to_have_class(re.compile("done"))


async def test_the_run_button_creates_a_job_and_leads_to_it(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        await page.locator('tr[data-name="hello.greet"] [data-run]').click()
        payload = page.get_by_label("Payload, as JSON")
        await expect(payload).to_be_focused()
        assert json.loads(await payload.input_value()) == {"name": "Ada", "tags": [1]}
        await page.locator("#run button.primary").click()
        await page.wait_for_url("**/jobs/JOB*")
        await expect(page.locator(".sub .state")).to_have_text("Waiting")
        await expect(page.locator("pre.json").first).to_contain_text('"name": "Ada"')


async def test_what_is_wrong_with_a_payload_is_said_where_it_was_typed(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig), allowed=(422,)) as page:
        await page.locator('tr[data-name="hello.greet"] [data-run]').click()
        payload, wrong = page.get_by_label("Payload, as JSON"), page.locator("#run [role=alert]")
        await payload.fill("{")
        await page.locator("#run button.primary").click()
        await expect(wrong).to_contain_text("This is not JSON")
        await payload.fill('{"name": 3}')
        await page.locator("#run button.primary").click()
        await expect(wrong).to_contain_text("name")
        await expect(page.locator("#run button.primary")).to_be_enabled()
        assert (await rig.bus.stats(["hello.greet"]))["hello.greet"].pending == 0


async def test_the_form_and_the_json_are_two_views_of_one_payload(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig) + "/functions/hello.greet") as page:
        await page.get_by_label("name", exact=True).fill("Grace")
        await page.get_by_label("tags").fill("[7]")
        await page.get_by_role("tab", name="JSON").click()
        raw = page.locator("#invoke-payload")
        assert json.loads(await raw.input_value()) == {"name": "Grace", "tags": [7]}
        await raw.fill('{"name": "Edsger"}')
        await page.get_by_role("tab", name="Form").click()
        await expect(page.get_by_label("name", exact=True)).to_have_value("Edsger")
        await page.locator("#invoke button.primary").click()
        await page.wait_for_url("**/jobs/JOB*")
        await expect(page.locator("pre.json").first).to_contain_text("Edsger")


async def test_what_was_typed_survives_live_updates(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig) + "/functions/hello.greet") as page:
        field = page.get_by_label("name", exact=True)
        await field.fill("half a na")
        await rig.mint("hello.greet", {"name": "x"})
        await expect(page.locator(".jobs [data-row]")).to_have_count(1)
        await expect(field).to_have_value("half a na")
        await expect(field).to_be_focused()


async def test_pause_and_resume(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig) + "/functions/hello.any") as page:
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_role("button", name="Resume")).to_be_visible()
        await expect(page.locator(".notice")).to_contain_text("Paused")
        assert (await rig.bus.stats(["hello.any"]))["hello.any"].paused
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".notice")).to_have_count(0)
        assert not (await rig.bus.stats(["hello.any"]))["hello.any"].paused


async def test_a_schedule_is_backfilled_after_its_instants_were_counted(rig: Rig, opened: Opener) -> None:
    wanted = {"function": "hello.any", "name": "hourly", "every": "1h"}
    assert (await rig.http.post("/schedules", json=wanted)).status_code == 201
    async with opened(base(rig) + "/schedules") as page:
        await page.get_by_role("button", name="Backfill").click()
        dialog = page.get_by_role("dialog", name="Backfill hello.any/hourly")
        await dialog.get_by_label("From, in UTC").fill("2026-01-05T00:00:00")
        await dialog.get_by_label("To, in UTC").fill("2026-01-05T03:00:00")
        await dialog.get_by_role("button", name="Backfill").click()
        await expect(page.get_by_text("4 due times")).to_be_visible()
        assert (await rig.bus.jobs("hello.any"))[0] == []
        await dialog.get_by_label("Only count them").uncheck()
        await dialog.get_by_role("button", name="Backfill").click()
        await expect(page.get_by_text("4 jobs created, 0 there already")).to_be_visible()
        await expect(dialog).to_be_hidden()
    assert len((await rig.bus.jobs("hello.any"))[0]) == 4


async def test_a_job_is_followed_from_waiting_to_its_result(rig: Rig, opened: Opener) -> None:
    id = await rig.mint("hello.any", {"a": 1})
    async with opened(f"{base(rig)}/jobs/{id}") as page:
        state = page.locator(".sub .state")
        await expect(state).to_have_text("Waiting")
        job = await rig.claim("hello.any")
        await expect(state).to_have_text("Running")
        await rig.bus.progress("hello.any", hold(job), 0.4, "row 4 of 10")
        await expect(page.locator("progress")).to_have_attribute("value", "0.4")
        line = LogLine(at_ms=job.claimed_ms, attempt=1, stream="log", level="INFO", logger="x", text="half <b>way</b>")
        await rig.bus.log("hello.any", job.id, [line])
        await expect(page.locator(".log-line .text")).to_have_text("half <b>way</b>")
        await rig.settle("hello.any", Done(hold(job), rig.record(job), msgspec.msgpack.encode({"b": 2})))
        await expect(state).to_have_text("Done")
        await expect(page.locator("pre.json").nth(1)).to_contain_text('"b": 2')
        await expect(page.locator(".timeline .span-run.done")).to_have_count(1)
        await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_what_a_functions_jobs_write_shows_on_its_page_as_it_is_written(rig: Rig, opened: Opener) -> None:
    first, second = [await rig.mint("hello.any", number) for number in range(2)]

    async def wrote(job: str, text: str) -> None:
        line = LogLine(at_ms=rig.bus.clock.now_ms(), attempt=1, stream="log", level="INFO", logger="x", text=text)
        await rig.bus.log("hello.any", JobId(job), [line])

    await wrote(first, "before")
    async with opened(f"{base(rig)}/functions/hello.any") as page:
        lines, heads = page.locator(".log-line .text"), page.locator(".log-try a")
        await expect(lines).to_have_text(["before"])
        await wrote(second, "an <b>other</b>")
        await expect(lines).to_have_count(2)
        await wrote(first, "the first again")
        await expect(lines).to_have_text(["before", "an <b>other</b>", "the first again"])
        await expect(heads).to_have_text([first, second, first])
        await rig.run("hello.any")  # the page is drawn anew; the log stays
        await expect(page.locator("tr[data-row] .state.done")).to_have_count(1)
        await expect(lines).to_have_count(3)
        await heads.nth(1).click()
        await page.wait_for_url(f"**/jobs/{second}")


async def test_a_functions_log_is_left_while_nobody_looks_and_keeps_within_bounds(rig: Rig, opened: Opener) -> None:
    job = JobId(await rig.mint("hello.any", 1))
    lines = [LogLine(at_ms=1, attempt=1, stream="log", level="INFO", logger="x", text=str(n)) for n in range(700)]
    await rig.bus.log("hello.any", job, lines[:100])
    async with opened(f"{base(rig)}/functions/hello.any") as page:
        shown = page.locator(".log-line")
        await expect(shown).to_have_count(100)
        await page.evaluate(
            """() => { globalThis.away = true;
            Object.defineProperty(document, 'hidden', {get: () => globalThis.away, configurable: true});
            document.dispatchEvent(new Event('visibilitychange')); }"""
        )
        await rig.bus.log("hello.any", job, lines[100:120])
        await page.evaluate("() => { globalThis.away = false; document.dispatchEvent(new Event('visibilitychange')); }")
        await expect(shown.last.locator(".text")).to_have_text("119")
        await expect(shown).to_have_count(100)  # the newest, and none twice
        await rig.bus.log("hello.any", job, lines[120:])
        await expect(shown.last.locator(".text")).to_have_text("699")
        assert await shown.count() <= 500


async def test_a_job_that_failed_for_good_shows_why_and_can_be_redriven(rig: Rig, opened: Opener) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.fail("hello.any", Error("ValueError", "no <such> row", "Traceback …\nValueError: no <such> row", "error"))
    async with opened(f"{base(rig)}/jobs/{id}") as page:
        await expect(page.locator(".errors")).to_contain_text("ValueError")
        await expect(page.locator(".trace")).to_contain_text("no <such> row")
        await page.get_by_role("button", name="Redrive").click()
        await expect(page.locator(".sub .state")).to_have_text("Waiting")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator(".sub .state")).to_have_text("Cancelled")


async def test_the_morgue_redrives_a_group_at_once(rig: Rig, opened: Opener) -> None:
    for _ in range(3):
        await rig.mint("hello.any", 1)
        await rig.fail("hello.any", Error("ValueError", "no such row", "", "error"))
    async with opened(base(rig) + "/morgue") as page:
        await page.get_by_role("button", name="Redrive 3 jobs").click()
        await expect(page.locator(".empty")).to_contain_text("Nobody here")
        assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 3


async def answering(page: Page, *answers: str | None) -> list[str]:
    """Accept what is asked from here on, in this order with these texts; what was asked."""
    asked, left = list[str](), list(answers)

    async def say(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await dialog.accept(left.pop(0) or "")

    page.on("dialog", say)
    return asked


async def test_the_morgues_form_redrives_or_deletes_what_it_means(rig: Rig, opened: Opener) -> None:
    """It counts, asks, and then does it; the rate spreads what is redriven."""
    for cause in ("timeout", "timeout", "error"):
        await rig.mint("hello.any", 1)
        await rig.fail("hello.any", Error("E", f"because of {cause}", "", cause))
    async with opened(base(rig) + "/morgue") as page:
        asked = await answering(page, None, None)
        await page.get_by_label("Cause").fill("timeout")
        await page.get_by_label("Rate").fill("1/h")
        await page.get_by_role("button", name="Redrive these").click()
        await expect(page.locator("[data-dead]")).to_have_count(1)
        stats = (await rig.bus.stats(["hello.any"]))["hello.any"]
        assert (stats.pending, stats.scheduled, stats.dead) == (1, 1, 1)
        await page.get_by_label("Cause").fill("")
        await page.get_by_label("Error has").fill("of ERROR")
        await page.get_by_role("button", name="Delete these").click()
        await expect(page.locator(".empty")).to_contain_text("Nobody here")
        assert asked == ["Redrive 2 jobs?", "Delete 1 job and their logs? This cannot be undone."]


async def test_the_morgues_form_shows_what_it_means_at_an_address_of_its_own(rig: Rig, opened: Opener) -> None:
    for cause in ("timeout", "error"):
        await rig.mint("hello.any", 1)
        await rig.fail("hello.any", Error("E", f"because of {cause}", "", cause))
    async with opened(base(rig) + "/morgue") as page:
        await page.get_by_label("Cause").fill("timeout")
        await page.get_by_role("button", name="Show these").click()
        await expect(page.locator("[data-dead]")).to_have_count(1)
        assert "cause=timeout" in page.url
        await expect(page.get_by_label("Cause")).to_have_value("timeout")
        await page.get_by_label("Cause").fill("memory")
        await page.get_by_label("Cause").press("Enter")
        await expect(page.locator(".empty")).to_contain_text("None matches what you chose")


async def test_a_share_is_moved_and_drained_after_a_question(rig: Rig, opened: Opener) -> None:
    for who in ("Al", "Al", "Bo"):
        await rig.mint("shop.pack", {"customer": {"id": who}})
    async with opened(base(rig) + "/lanes") as page:
        asked = await answering(page, "Bo", None, None)
        row = page.locator('tr[data-key="shop.pack/Al"]')
        await row.get_by_role("button", name="Move").click()
        await expect(row).to_have_count(0)
        assert [(lane.lane, lane.pending) for lane in await rig.bus.lanes("shop.pack")] == [("Bo", 3)]
        await page.get_by_role("button", name="Drain").click()
        await expect(page.locator(".empty")).to_contain_text("No share is in use")
        assert asked[1:] == ["Move 2 jobs there?", "Cancel 3 jobs that wait in this share? What runs, runs on."]


async def test_a_function_is_drained_only_after_a_yes(rig: Rig, opened: Opener) -> None:
    await rig.mint("hello.any", 1)
    async with opened(base(rig) + "/functions/hello.any") as page:
        page.once("dialog", lambda dialog: dialog.dismiss())
        await page.get_by_role("button", name="Drain").click()
        await expect(page.get_by_role("button", name="Drain")).to_be_enabled()
        assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 1
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Drain").click()
        await expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 0


async def test_the_keyboard_is_enough(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig)) as page:
        await page.keyboard.press("/")
        await expect(page.get_by_label("Filter functions")).to_be_focused()
        await page.keyboard.type("shop")
        await expect(page.locator("tr[data-name]:visible")).to_have_count(5)
        await page.keyboard.press("Escape")
        names = [await row.get_attribute("data-name") for row in await page.locator("tr[data-name]:visible").all()]
        await page.keyboard.press("j")
        await expect(page.locator(f'tr[data-name="{names[0]}"] .name')).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await expect(page.locator(f'tr[data-name="{names[1]}"] .name')).to_be_focused()
        ring = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid", "where the keyboard is must be seen"
        await page.keyboard.press("?")
        await expect(page.locator("#help")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#help")).to_be_hidden()
        await page.keyboard.press("r")
        await expect(page.locator("#run")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.locator(f'tr[data-name="{names[1]}"] .name').focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/functions/{names[1]}")


async def test_a_filter_holds_over_live_updates(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig) + "/jobs") as page:
        await page.get_by_label("Filter these jobs").fill("no such thing")
        await rig.mint("hello.any", 1)
        await page.goto(base(rig) + "/jobs")
        await page.get_by_label("Filter these jobs").fill("no such thing")
        await expect(page.locator("[data-nothing]")).to_be_visible()
        await rig.mint("hello.any", 1)
        await expect(page.locator("[data-row]")).to_have_count(2)
        await expect(page.locator("[data-row]:visible")).to_have_count(0)


@pytest.mark.parametrize(("dark", "first", "second"), [(False, LIGHT, DARK), (True, DARK, LIGHT)])
async def test_the_theme_follows_the_system_until_it_is_chosen(
    preview: str, opened: Opener, dark: bool, first: str, second: str
) -> None:
    async with opened(preview, dark=dark) as page:
        assert await background(page) == first
        await page.get_by_role("button", name="Dark or light").click()
        assert await background(page) == second
        await page.reload()
        assert await background(page) == second, "the choice is kept"
        await page.keyboard.press("t")
        assert await background(page) == first


async def test_a_stream_that_was_refused_is_asked_for_again(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig), allowed=(503,)) as page:
        await page.route("**/events", lambda route: route.fulfill(status=503))
        await page.reload()
        await expect(page.locator("[data-live-text]")).to_have_text("Reconnecting")
        await page.unroute("**/events")
        await expect(page.locator("[data-live-text]")).to_have_text("Live")


async def test_signing_in_and_out(server: Valkey, opened: Opener) -> None:
    async with serving(server, token="correct horse") as rig, opened(base(rig) + "/jobs", allowed=(401,)) as page:
        await expect(page.get_by_label("Token")).to_be_focused()
        await page.keyboard.type("battery staple")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Token").fill("correct horse")
        await page.keyboard.press("Enter")
        await expect(page.locator("main h1")).to_have_text("Jobs")
        await expect(page.locator("[data-live-text]")).to_have_text("Live")
        await page.get_by_role("button", name="Sign out").click()
        await page.goto(base(rig))
        await expect(page.get_by_label("Token")).to_be_visible()


async def test_a_form_keeps_every_digit_and_refuses_what_it_cannot_hold(rig: Rig, opened: Opener) -> None:
    async with opened(base(rig) + "/functions/hello.greet") as page:
        form, raw = page.get_by_role("tab", name="Form"), page.get_by_role("tab", name="JSON")
        await page.get_by_label("tags").fill("[9007199254740993]")
        await raw.click()
        await expect(page.locator("#invoke-payload")).to_have_value(re.compile("9007199254740993"))
        await form.click()
        await expect(page.locator("#invoke [role=alert]")).to_contain_text("too long for the form")
        await page.locator("#invoke-payload").fill('{"name": "x", "other": 1}')
        await form.click()
        await expect(page.locator("#invoke [role=alert]")).to_contain_text("“other” has no field")
        await expect(raw).to_have_attribute("aria-selected", "true")


async def test_a_log_comes_back_after_an_answer_that_was_no_stream(rig: Rig, opened: Opener) -> None:
    id = await rig.mint("hello.any", 1)
    written = [LogLine(at_ms=1, attempt=1, stream="log", level="INFO", logger="x", text=text) for text in ("a", "b")]
    await rig.bus.log("hello.any", JobId(id), written[:1])
    async with opened(f"{base(rig)}/healthz", allowed=(503,)) as page:
        refused: list[str] = []

        async def busy(route: Route) -> None:
            refused.append(route.request.url)
            await (route.fulfill(status=503, body="{}") if len(refused) == 1 else route.continue_())

        await page.route("**/logs", busy)
        await page.goto(f"{base(rig)}/jobs/{id}")
        await expect(page.locator(".log-line .text")).to_have_text(["a"])
        await rig.bus.log("hello.any", JobId(id), written[1:])
        await expect(page.locator(".log-line .text")).to_have_text(["a", "b"])
        assert len(refused) == 2
