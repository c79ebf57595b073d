"""Output: every line lands in the job that wrote it, bounded, and never in another's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from echofn import frames
from echofn.manifest import Policy
from unit.runtime.driving import Base, job, write


def test_print_logging_and_the_contexts_log_are_told_apart(shared: Base) -> None:
    answer = shared.serve(
        """
        import logging, sys
        def f(payload, ctx):
            print("out", 1)
            print("err", file=sys.stderr)
            sys.stdout.buffer.write(b"bytes \\xff\\n")
            logging.getLogger("lib.db").warning("slow %s", "query", extra={"ms": 12})
            logging.getLogger("lib").debug("not kept")
            ctx.log.info("hello")
            try: 1 / 0
            except ZeroDivisionError: logging.exception("failed")
            logging.info("%d", "bad format")
            print("no line end", end="")
        """
    ).one()
    told = [(line.stream, line.level, line.logger, line.text) for line in answer.output]
    assert told[:5] == [
        ("stdout", "", "", "out 1"),
        ("stderr", "", "", "err"),
        ("stdout", "", "", "bytes \\xff"),
        ("log", "WARNING", "lib.db", "slow query ms=12"),
        ("log", "INFO", "m.f", "hello"),
    ]
    assert told[5][:3] == ("log", "ERROR", "root")
    assert told[5][3].startswith("failed\nTraceback")
    assert "ZeroDivisionError" in told[5][3]
    assert "cannot be formatted" in told[6][3]
    assert told[7] == ("stdout", "", "", "no line end")
    assert [line.since_us for line in answer.output] == sorted(line.since_us for line in answer.output)


def test_lines_are_told_while_the_run_goes_on(shared: Base) -> None:
    worker = shared.serve("import sys\ndef f():\n    print('first')\n    while True: pass\n")
    worker.begin()
    assert worker.printed() == "first"


def test_each_job_of_a_batch_gets_its_own_lines(shared: Base) -> None:
    worker = shared.serve("def f(payload):\n    print('job', payload)\n    print('end', payload, end='')\n")
    for number, answer in enumerate(worker.run(*(job(n) for n in range(5)))):
        assert answer.text("stdout") == f"job {number}\nend {number}"


def test_a_thread_and_a_pools_thread_write_to_the_job_that_asked(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, concurrent.futures, threading
        pool = concurrent.futures.ThreadPoolExecutor(1)
        def f(payload):
            thread = threading.Thread(target=print, args=("thread", payload))
            thread.start(); thread.join()
            pool.submit(print, "pool", payload).result()
            list(pool.map(print, [f"map {payload}"]))
        async def g(payload):
            await asyncio.to_thread(print, "to_thread", payload)
            await asyncio.get_running_loop().run_in_executor(None, print, f"executor {payload}")
            await asyncio.gather(*[asyncio.create_task(say(payload)) for _ in range(2)])
        async def say(payload):
            print("task", payload)
        """
    )
    for number, answer in enumerate(worker.run(job(0), job(1))):
        assert answer.text("stdout") == f"thread {number}\npool {number}\nmap {number}"
    for number, answer in enumerate(shared.ready("g").run(job(0), job(1))):
        assert answer.text("stdout") == f"to_thread {number}\nexecutor {number}\ntask {number}\ntask {number}"


def test_what_a_run_leaves_running_writes_into_no_other_job(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, threading, time
        written = threading.Event()
        def chatter(ctx, written):
            while not written.is_set():
                print("from the past")
                ctx.log.info("from the past")
                try: ctx.progress(0.5)
                except Exception: pass
        def f(payload, ctx):
            if payload == "leave":
                for _ in range(3):
                    threading.Thread(target=chatter, args=(ctx, written), daemon=True).start()
            time.sleep(0.02)
            print("mine", payload)
        """
    )
    worker.one("leave")
    for number, answer in enumerate(worker.run(*(job(n) for n in range(10)))):
        assert answer.text("stdout") == f"mine {number}"
        assert answer.text("log") == ""
        assert answer.progress == []


def test_a_task_left_on_the_loop_writes_into_no_other_job(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio
        tasks = []
        async def chatter():
            while True:
                print("from the past")
                await asyncio.sleep(0)
        async def f(payload):
            if payload == "leave": tasks.append(asyncio.create_task(chatter()))
            await asyncio.sleep(0.01)
            print("mine")
        """
    )
    worker.one("leave")
    for answer in worker.run(job(1), job(2)):
        assert answer.text("stdout") == "mine"


def test_a_late_enqueue_is_refused(shared: Base) -> None:
    worker = shared.serve(
        """
        kept, told = [], []
        def f(payload, ctx):
            if not kept:
                kept.append(ctx)
                return None
            try: kept[0].enqueue("x")
            except RuntimeError as error: return str(error)
        """
    )
    worker.one()
    assert "run has ended" in worker.one().result


def test_a_megabyte_of_output_is_kept_and_the_cut_is_told(shared: Base) -> None:
    answer = shared.serve("def f():\n    for n in range(40_000): print(f'{n:06} ' + 'x' * 93)\n").one()
    assert answer.outcome == "done"
    kept = sum(len(line.text) for line in answer.output)
    assert 500_000 < kept <= 1 << 20
    assert answer.output[0].text.startswith("000000 ")
    note = answer.output[-1]
    assert (note.stream, note.level, note.logger) == ("log", "WARNING", "echod")
    cut = int("".join(char for char in note.text.partition(":")[2] if char.isdigit()))
    assert kept - len(note.text) + cut == 40_000 * 100


def test_a_single_endless_line_and_a_flood_of_empty_ones_are_bounded_too(shared: Base) -> None:
    worker = shared.serve(
        """
        def f(payload):
            if payload: print("x" * (30 << 20), end="")
            else:
                for _ in range(100_000): print()
        """
    )
    line, empty = worker.run(job(1), job(0))
    assert sum(len(told.text) for told in line.output) <= (1 << 20) + 100
    assert "cut" in line.output[-1].text
    assert len(empty.output) <= 20_000


def test_text_that_utf8_cannot_hold_is_escaped(shared: Base) -> None:
    answer = shared.serve("import logging\ndef f(ctx):\n    print('a\\ud800')\n    ctx.log.info('b\\ud800')\n").one()
    assert [line.text for line in answer.output] == ["a\\ud800", "b\\ud800"]


def test_tracebacks_name_files_as_their_author_knows_them_whoever_writes_them(shared: Base) -> None:
    write(shared.folder, lib__deep="def fail():\n    return 1 / 0\n")
    answer = shared.serve(
        """
        import json, logging, threading, traceback
        from .lib import deep
        def f(ctx):
            try: deep.fail()
            except ZeroDivisionError: logging.exception("failed", stack_info=True)
            try: json.loads("{")
            except ValueError: traceback.print_exc()
            thread = threading.Thread(target=deep.fail)
            thread.start(); thread.join()
            print(__file__)
        """
    ).one()
    *lines, own = [line.text for line in answer.output]
    text = "\n".join(lines)
    assert text.count('File "m.py", line ') >= 3
    assert text.count('File "lib/deep.py", line 2, in fail') == 2
    assert 'File "json/__init__.py", line ' in text
    assert str(shared.folder.parent) not in text
    assert own.endswith("/m.py")  # what a handler prints of itself is its own affair


def test_what_no_run_writes_is_told_apart(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, logging, os, threading
        print("at import")
        logging.warning("logged at import")
        def beside():
            print("from a thread of the module")
        async def f(payload, ctx):
            thread.start(); thread.join()
            print("of the run")
        thread = threading.Thread(target=beside)
        """,
        secrets={"KEY": "a-secret-that-is-long"},
    )
    answer = worker.one()
    assert answer.text("stdout") == "from a thread of the module\nof the run"  # a thread is whose run starts it
    assert [(line.stream, line.level, line.text) for line in worker.outside] == [
        ("stdout", "", "at import"),
        ("log", "WARNING", "logged at import"),
    ]


def test_what_is_written_past_us_goes_to_the_pipe(shared: Base) -> None:
    worker = shared.serve(
        """
        import os, subprocess, sys
        def f():
            os.write(1, b"raw out\\n")
            os.write(2, b"raw err\\n")
            subprocess.run(["echo", "from a child"])
            subprocess.run(["echo", "redirected"], stdout=sys.stdout)
            print("captured")
        """
    )
    assert worker.one().text("stdout") == "captured"
    assert worker.raw().decode().splitlines() == ["raw out", "from a child", "redirected", "raw err"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_between_what_runs_write_past_us_is_whose_it_is(shared: Base, kind: str) -> None:
    """In both streams, before the first byte; and even where the handler has put a file of its own there."""
    worker = shared.serve(
        f"""
        import os
        {kind} f(payload):
            os.write(1, payload)
            os.write(2, payload)
            if payload == b"b":
                os.dup2(os.open("own", os.O_CREAT | os.O_WRONLY), 1)
        """,
        policy=Policy(per_worker=1),
    )
    worker.run(job(b"a"), job(b"b"), job(b"c"))
    marks = [frames.MARK + frames.POSITION.pack(index) for index in range(3)]
    out, err = (os.read(pipe, 1 << 16) for pipe in worker.pipes)
    assert err == marks[0] + b"a" + marks[1] + b"b" + marks[2] + b"c"
    assert out == marks[0] + b"a" + marks[1] + b"b" + marks[2]
    assert Path(shared.tmp, "own").read_bytes() == b"c"


def test_of_several_runs_side_by_side_none_is_said_to_write(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, os
        both = asyncio.Event()
        async def f(payload):
            await both.wait() if payload == 0 else both.set()
            os.write(1, b"of %d" % payload)
            for _ in range(9 if payload == 0 else 1): await asyncio.sleep(0)
            if payload == 0: os.write(1, b"alone")
        """,
        policy=Policy(per_worker=2),
    )
    worker.at_once = 2
    worker.begin(0)
    first = worker.hand(job(1)) - 1
    worker.collect_rest(first, 1)
    out = os.read(worker.pipes[0], 1 << 16).split(frames.MARK)
    whose = [(frames.POSITION.unpack_from(part)[0], part[frames.POSITION.size :]) for part in out[1:]]
    assert whose == [(0, b""), (frames.OUTSIDE, b"of 1of 0"), (0, b"alone")]


def test_a_handler_of_user_code_on_the_root_logger_keeps_ours(shared: Base) -> None:
    answer = shared.serve(
        "import logging\nlogging.basicConfig(level=logging.DEBUG)\ndef f():\n    logging.info('once')\n"
    ).one()
    assert [line.text for line in answer.output] == ["once"]


def test_a_print_that_is_no_text_is_the_callers_error(shared: Base) -> None:
    answer = shared.serve("import sys\ndef f():\n    sys.stdout.write(5)\n").one()
    assert answer.fault.exception == "TypeError"


def test_a_secret_that_is_a_number_leaves_as_none(shared: Base) -> None:
    source = """
        import os
        def f(payload, ctx):
            number = int(os.environ["KEY"])
            if payload == "enqueue":
                ctx.enqueue("m.g", {"account": number})
            return {"account": number, "rate": float(number), "of": str(number), "count": 7}
    """
    worker = shared.serve(source, secrets={"KEY": "4111111111111111"})
    assert worker.one().result == {**dict.fromkeys(("account", "rate", "of"), "[redacted]"), "count": 7}
    assert "expected a payload without the value of a secret" in worker.one("enqueue").fault.message


def test_a_secret_is_masked_wherever_a_long_line_is_cut(shared: Base) -> None:
    """The handler never ends its line: it goes out in parts, and a secret lies across the end of each."""
    key = "planted-0123456789-abcdefghij"
    source = """
        import os, sys
        def f(payload):
            key = os.environ["KEY"]
            for size in range(len(key)):
                sys.stdout.write("x" * 65_500 + key[:size])
                sys.stdout.write("x" * 40 + key[:size] if size % 2 else "")
                sys.stdout.write(key[size:])
    """
    answer = shared.serve(source, secrets={"KEY": key}).one()
    kept = "".join(line.text for line in answer.output).partition("output limit")[0]
    whole = "".join("x" * 65_500 + (key[:n] + "x" * 40 if n % 2 else "") + key for n in range(len(key)))
    assert len(answer.output) > 8
    assert whole.replace(key, "[redacted]").startswith(kept)
