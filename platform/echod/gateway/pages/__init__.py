"""The pages, as pure functions: JSON objects of the gateway in, HTML out. No bus, no clock, no request in here.

    from echod.gateway import pages
    html = pages.render("function", **answer, now=now, shell=shell)   # answer: the dict that the JSON route would send
    headers = {"Content-Security-Policy": pages.CSP, **pages.HEADERS}
    Mount("/static", StaticFiles(directory=pages.STATIC))             # pages refer to /static/<file>?v=<digest>

What the gateway gives: `now` (RFC 3339, the bus's time), `shell`, and per page the keys of design §11 plus the extras
marked `+`. Whatever is missing shows as "–"; unknown keys are ignored; a wrong type raises msgspec.ValidationError.

  shell      (every page) {"version": "DEP…"|null, "sandbox": "minimal", "mode": "dev"|"start"|"gateway",
             "degraded": [text], "clock": "driven"|"frozen"|null, "signed_in": bool}: signed_in shows a "Sign out"
             button (POST /logout)
  functions  GET /functions: {"functions": [F], "errors": [{"module", "file"+, "line", "column", "message", "kind"+}],
             "off"+: [{"function", "kind", "module", "file", "line", "why"}] of annotations that do not count here,
             "occurrences"+: [{"function", "recurrence", "due", "job", "state"}] of the last 5 minutes, any order}
             F has these extras:
             + "paused": bool, "doc", "file", "line", "takes_payload": bool, "payload_schema": JSON Schema | null
             + "series": {"done": [60 ints], "failed": [60 ints]}: ended runs per minute, oldest first, last = this one
             + "rate": runs ended per second over the last minute; "p50", "p95": duration in ms over the last hour
             + "oldest_ms": for how long the longest-waiting pending job waits (null: none)
             + "next": up to five instants, soonest first
             triggers: {"kind": "queue"}, {"kind": "cron", "name", "rule", "tz"}, {"kind": "every", "name", "period_ms"}
             policy: the manifest's Policy as a dict (retries, backoff, timeout_ms, lane, workers_max, …)
  function   GET /functions/{name}?window=…: F and "metrics", "next", "recent" of §11
             + "windows": {"900": metrics, "3600": metrics, "86400": metrics}
             + "schedules": [rows of GET /schedules for this function, each + "upcoming": up to five instants,
               "starts": of their jobs]
             + "workers": {"count", "busy", "rss_bytes", "cpu_s", "cold_starts"} of this node, null where it runs none
             + "lanes": rows as on the lanes page; "limits": those that count over all nodes, and which of them stands
             against a start
  job        GET /jobs/{id}; + "progress": [fraction, note]|null, "cancelling": bool, "retries": int|null (policy)
             + "log": [lines as in the stream below] for the first paint (may be left out)
  jobs       GET /jobs: {"jobs", "cursor"}; + "filter": {"function", "state", "lane"} (as asked; null: any)
             + "names": every function's name, for the filter
  morgue     GET /morgue: {"jobs": [dead jobs, with error], "cursor"}; the page groups them by function and cause
             + "names": every function's name, for the form
  schedules  GET /schedules: {"schedules": [rows]}
  lanes      {"lanes": [{"function", "lane", "pending", "active", "weight", "share", "paused", "why", "until_ms",
             "concurrency", "rate", "by_hand", "path"+: the policy's lane path}]}
  versions   {"versions": [{"id", "activated", "active": bool, "functions": [name],
             "changes": {"lines": [{"mark": "+"|"~"|"-", "text"}]}|null: of the one before}], "takes_deploys": bool}
  nodes      {"nodes": [{"id", "number", "roles": [text], "host", "pid", "seen", "sandbox", "workers": int|null}]}
  bus        a flat or nested dict of facts: address, version, memory, persistence, policy, clients, …
  problem    the problem+json object: {"status", "title", "detail", …}
  login      {"next": "/", "error": ""}; posts `token` and `next` as a form to /login

Live: one stream for all pages, `GET /events` (text/event-stream, no parameters, `retry: 1000`, a comment every 15 s).
  event: functions   data: GET /functions with the extras above and "now": at once on connect, then at most once a
                     second, only when something but `now` has changed
  event: occurrence  data: {"function", "recurrence", "due", "job", "state", "manual"}: an occurrence is a job now, or
                     that job's state has changed
  event: job         data: {"id", "function", "state"}: a job has changed. May be left out: the page of a job that has
                     not ended asks once a second
`GET /jobs/{id}/logs` (text/event-stream, resumable by Last-Event-ID; first everything kept, then live):
  event: log         id: the entry's id   data: {"at": instant, "attempt", "stream", "level", "logger", "text"}
  event: end         the job has ended and every line was sent; the page closes the stream
The script patches `/` from the `functions` event. Other pages are asked for again (same address, text/html) when
something of theirs changed, and only what differs is exchanged in the document.

Buttons: POST (Accept: application/json, JSON body or none) to /functions/{name} · /functions/{name}/pause|resume ·
/jobs/{id}/cancel|redrive · /schedules/{id}/run|pause|resume (ids percent-encoded whole, `/` as %2F) ·
/versions/{DEP}/activate. Those for many jobs (/functions/{name}/drain|move, /morgue/redrive|purge) count first, with
`dry_run=1`, ask, and go on at the answer's cursor. They show problem+json `detail`, or `title`, when the answer is not
2xx.
"""

from __future__ import annotations

from echod.gateway.pages.rendering import CSP, HEADERS, STATIC, render

__all__ = ["CSP", "HEADERS", "STATIC", "render"]
