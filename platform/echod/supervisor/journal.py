"""What runs print, log and report of their progress, on its way to the bus: bounded per run, written in batches.

A lost bus costs lines, not runs: lines are buffered for a while, then dropped and counted.
"""

from __future__ import annotations

import asyncio
import codecs
import math
from collections.abc import Mapping

from echod import log
from echod.bus import Bus
from echod.bus.answers import LogLine
from echod.bus.rows import own_word
from echod.errors import BusError
from echod.model.ids import JobId
from echod.model.job import Error
from echod.supervisor.channel import Fault
from echod.supervisor.fanout import Spawn
from echod.supervisor.leases import Lease
from echofn import frames
from echofn.masking import Mask, leaves_of

_log = log.get("supervisor")

FLUSH_S = 0.2
RETRY_S = 2.0
MOST_WAITING_BYTES = 8 * 1024 * 1024  # in this process, all runs of a queue together
MOST_AT_ONCE = 64
LINE_OVERHEAD = 64  # what a line costs beside its text
NOTE_LENGTH = 500
MOST_UNFINISHED_BYTES = 65_536  # of a line that waits for its end
MOST_HEARD_BYTES = 64 * 1024 * 1024  # of a run; the runtime stops long before
MOST_PROGRESS = 1_000_000


class Journal:
    """The output of one queue's runs. One timer while there is something to write, none otherwise."""

    def __init__(self, queue: str, bus: Bus, spawn: Spawn, environ: Mapping[str, str]) -> None:
        self._queue, self._bus, self._spawn = queue, bus, spawn
        self._loop = asyncio.get_running_loop()
        self._lines: dict[JobId, list[LogLine]] = {}
        self._in_doubt: dict[JobId, tuple[str, list[LogLine]]] = {}  # sent under this word, and no reply came
        self._waiting_bytes = 0
        self._dropped = 0
        self._progress: dict[JobId, tuple[Lease, float, str]] = {}
        self._spill: dict[JobId, dict[str, bytes]] = {}  # by stream, what waits for its line's end
        self._environ, self._masks = environ, dict[JobId, Mask]()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def wrote(self, lease: Lease, output: frames.Output) -> None:
        """A line that the runtime caught."""
        if lease.output_bytes > MOST_HEARD_BYTES:
            raise Fault(f"expected at most {MOST_HEARD_BYTES} bytes of output, got more")
        stream = output.stream if output.stream in {"stdout", "stderr", "log"} else "log"
        self._line(lease, stream, output.level[:32], output.logger[:200], output.text)

    def spilled(self, lease: Lease, stream: str, data: bytes) -> None:
        """Bytes that bypassed Python: whole lines as they come, the rest with the end of the run."""
        if lease.output_bytes > frames.MAX_LOG_BYTES:
            lease.output_bytes += len(data)
            return
        mask, spill = self._mask_of(lease), self._spill.setdefault(lease.job.id, {})
        if stream not in spill:
            data = mask.unbegun(data)  # others ran here a moment ago: what they left unfinished may go on in this run
        *whole, rest = (spill.get(stream, b"") + data).split(b"\n")
        for line in whole:
            self._line(lease, stream, "", "", mask.text(line.decode(errors="replace")))
        if len(rest) > MOST_UNFINISHED_BYTES:
            text, used = codecs.utf_8_decode(rest, "replace", False)
            if at := mask.seam(text):
                self._line(lease, stream, "", "", mask.text(text[:at]))
                rest = text[at:].encode() + rest[used:]
        spill[stream] = rest

    def progressed(self, lease: Lease, progress: frames.Progress) -> None:
        """Only the latest word counts."""
        lease.progress_count += 1
        if lease.progress_count > MOST_PROGRESS:
            raise Fault(f"expected at most {MOST_PROGRESS} words of progress, got more")
        if math.isfinite(progress.fraction):
            note = progress.note[:NOTE_LENGTH]
            self._progress[lease.job.id] = (lease, min(max(progress.fraction, 0.0), 1.0), note)
            self._soon(FLUSH_S)

    def pointed(self, lease: Lease, lead: Lease) -> None:
        """Where the output of a batch is, in the log of one of its other jobs."""
        self._line(lease, "log", "info", "echod", f"ran in a batch with {lead.job.id}, whose log has the output")

    def explain(self, lease: Lease, error: Error) -> None:
        """Also write the error into the log: people look there, and the row keeps only the last attempt's."""
        told, trace = f"{error.type}: {error.message}", error.traceback.rstrip()
        text = trace if trace.endswith(error.message) and trace else f"{trace}\n{told}".lstrip()
        self._keep(lease.job.id, self._made(lease, "log", "error", "echod", text))

    def ended(self, lease: Lease) -> None:
        """The run is over: its last unfinished line, and what did not fit."""
        if not (lease.output_bytes or self._spill or self._progress):
            return
        for stream, rest in self._spill.pop(lease.job.id, {}).items():
            if rest:
                self._line(lease, stream, "", "", self._mask_of(lease).unended(rest.decode(errors="replace")))
        if lease.output_bytes > frames.MAX_LOG_BYTES:
            over = lease.output_bytes - frames.MAX_LOG_BYTES
            self._keep(
                lease.job.id,
                self._made(lease, "log", "warning", "echod", f"output cut: {over} bytes more were dropped"),
            )
        self._progress.pop(lease.job.id, None)
        self._masks.pop(lease.job.id, None)

    async def close(self) -> None:
        """Write what is left; where the bus is away it is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _mask_of(self, lease: Lease) -> Mask:
        """What the runtime masks in the lines that it catches."""
        mask = self._masks.get(lease.job.id)
        if mask is None:
            function = lease.function
            secrets = [value for name in function.secrets if (value := self._environ.get(name))]
            hidden = leaves_of(lease.job.payload, function.policy.redact)
            mask = self._masks[lease.job.id] = Mask(hidden, also=Mask(secrets), is_bounded=True)
        return mask

    def _line(self, lease: Lease, stream: str, level: str, logger: str, text: str) -> None:
        """Keep a line while its run is under the limit: the first MiB is what explains a run."""
        before = lease.output_bytes
        lease.output_bytes += len(text) + LINE_OVERHEAD
        if before > frames.MAX_LOG_BYTES:
            return
        if lease.output_bytes > frames.MAX_LOG_BYTES:
            text = text[: frames.MAX_LOG_BYTES - before]
        self._keep(lease.job.id, self._made(lease, stream, level, logger, text))

    def _made(self, lease: Lease, stream: str, level: str, logger: str, text: str) -> LogLine:
        attempt = lease.job.failures + 1
        return LogLine(self._bus.clock.now_ms(), attempt, stream, level, logger, text, lease.version)

    def _keep(self, job: JobId, line: LogLine) -> None:
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._dropped += 1
            return
        self._waiting_bytes += len(line.text) + LINE_OVERHEAD
        self._lines.setdefault(job, []).append(line)
        self._soon(FLUSH_S)

    def _soon(self, wait_s: float) -> None:
        if self._timer is None and self._flushing is None:
            self._timer = self._loop.call_later(wait_s, self._start)

    def _start(self) -> None:
        self._timer = None
        self._flushing = self._spawn(self._flush())

    async def _flush(self) -> None:
        wait_s = FLUSH_S
        try:
            progress, self._progress = self._progress, {}
            for lease, fraction, note in progress.values():
                await self._bus.progress(self._queue, lease.hold, fraction, note)
            while waiting := self._in_doubt | self._lines:
                some = list(waiting)[:MOST_AT_ONCE]
                calls = [self._write(job) for job in some]
                failed = [error for error in await asyncio.gather(*calls, return_exceptions=True) if error is not None]
                if failed:
                    raise failed[0]
        except BusError as error:
            _log.warning("output.not_written", queue=self._queue, error=str(error))
            wait_s = RETRY_S
        finally:
            self._flushing = None
        if self._dropped:
            _log.warning("output.dropped", queue=self._queue, lines=self._dropped)
            self._dropped = 0
        if self._lines or self._in_doubt or self._progress:
            self._soon(wait_s)

    async def _write(self, job: JobId) -> None:
        """Write what waits of a job; lines that may be there already go again as they went, and by themselves."""
        sent = job in self._in_doubt
        call, lines = self._in_doubt.pop(job) if sent else (own_word(), self._lines.pop(job))
        try:
            await self._bus.log(self._queue, job, lines, call=call)
        except BusError:
            self._in_doubt[job] = (call, lines)
            raise
        self._waiting_bytes -= sum(len(line.text) + LINE_OVERHEAD for line in lines)
