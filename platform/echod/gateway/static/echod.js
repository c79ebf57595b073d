/* What the pages do in a browser. One script, no framework, no build step. It is loaded before the body, so that the
   theme is right in the first paint; the rest starts when the document is there.

   - Live: one stream, GET /events. The list of functions is patched from its JSON. Any other page is asked for again
     (same address, as HTML) when something of its own changed, and only what differs is exchanged: no second renderer.
   - `count`, `span`, … spell as pages/words.py does, `bars` draws as pages/draw.py does; a test holds them together.
   - No inline style anywhere: the policy forbids it. Shapes are SVG attributes. */
"use strict";

/**
 * @typedef {{name: string, pending: number, active: number, scheduled: number, dead: number, paused?: boolean,
 *   rate?: number, p50?: number | null, p95?: number | null, oldest_ms?: number | null, next?: string[],
 *   series?: {done: number[], failed: number[]}}} FunctionJson  as in GET /functions
 * @typedef {{function: string, recurrence: string, due: string, job: string | null, state: string}} OccurrenceJson
 * @typedef {{at: string, attempt: number, stream: string, level: string, logger: string, text: string,
 *   job?: string}} LogJson  of a job's own page without its id
 */

(() => {
  const THEME = "echod-theme";
  const root = document.documentElement;
  try {
    const chosen = localStorage.getItem(THEME);
    if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  } catch {
    /* storage is off: the system's theme it is */
  }

  // — spelling —

  const NONE = "–";
  const MOST_LINES = 500; // of a function's log, which has no end
  /** @param {number} value @param {number} digits */
  const floorTo = (value, digits) => (Math.trunc(value * 10 ** digits) / 10 ** digits).toFixed(digits);

  /** @param {number | null | undefined} number */
  function count(number) {
    if (number == null) return NONE;
    if (number < 10_000) return String(Math.trunc(number)).replace(/\B(?=(\d{3})+$)/g, ",");
    for (const [size, unit] of /** @type {[number, string][]} */ ([
      [1e9, "B"],
      [1e6, "M"],
      [1e3, "k"],
    ])) {
      if (number >= size) return floorTo(number / size, number / size >= 100 ? 0 : 1) + unit;
    }
    return NONE;
  }

  /** @param {number} value */
  const shortOf = (value) => floorTo(value, 1).replace(/\.0$/, "");

  /** @param {number | null | undefined} ms */
  function span(ms) {
    if (ms == null) return NONE;
    if (ms < 1) return "<1 ms";
    if (ms < 10) return `${shortOf(ms)} ms`;
    if (ms < 1000) return `${Math.trunc(ms)} ms`;
    if (ms < 10_000) return `${shortOf(ms / 1000)} s`;
    const seconds = Math.floor(ms / 1000);
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
    if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
    return `${count(Math.floor(seconds / 86_400))}d ${Math.floor((seconds % 86_400) / 3600)}h`;
  }

  /** @param {number | null | undefined} perSecond */
  function rate(perSecond) {
    if (perSecond == null) return NONE;
    if (perSecond >= 1) return `${perSecond >= 10 ? count(perSecond) : floorTo(perSecond, 1)}/s`;
    const perMinute = perSecond * 60;
    if (perMinute >= 10) return `${Math.trunc(perMinute + 0.001)}/min`;
    if (perMinute >= 0.1) return `${floorTo(perMinute + 0.001, 1).replace(/\.0$/, "")}/min`;
    return perMinute > 0 ? "<0.1/min" : "0/min";
  }

  /** @param {number} part @param {number} whole */
  function share(part, whole) {
    if (whole <= 0) return NONE;
    const percent = (part / whole) * 100;
    if (percent === 0) return "0%";
    if (percent < 0.1) return "<0.1%";
    return percent < 10 ? `${floorTo(percent, 1)}%` : `${Math.trunc(percent)}%`;
  }

  /** @param {number} ms */
  const until = (ms) => (ms <= 0 ? "now" : `in ${span(Math.max(1000, Math.ceil(ms / 1000) * 1000))}`);

  /** @param {number} ms */
  function ago(ms) {
    const seconds = Math.floor(ms / 1000);
    if (seconds < 1) return "just now";
    for (const [length, unit] of /** @type {[number, string][]} */ ([
      [86_400, "d"],
      [3600, "h"],
      [60, "min"],
    ])) {
      if (seconds >= length) return `${count(Math.floor(seconds / length))} ${unit} ago`;
    }
    return `${seconds} s ago`;
  }

  /** Paths of the sparkline, as pages/draw.py draws them. @param {number[]} done @param {number[]} failed */
  function bars(done, failed, width = 120, height = 28, count = 30, gap = 1) {
    /** @param {number[]} values */
    const binned = (values) => {
      const minutes = [...Array(Math.max(0, 60 - values.length)).fill(0), ...values.slice(-60)];
      return Array.from({ length: count }, (_, bin) =>
        sum(minutes.slice((bin * 60) / count, ((bin + 1) * 60) / count)),
      );
    };
    const well = binned(done),
      ill = binned(failed);
    const peak = Math.max(0, ...well.map((value, index) => value + ill[index]));
    /** @param {number} value */
    const high = (value) => (value ? Math.max(1.5, (value / peak) * height * 0.9) : 0);
    /** @param {number} value */
    const n = (value) => String(Number(value.toFixed(2)));
    const step = width / count;
    let good = "",
      bad = "";
    for (let index = 0; index < count; index++) {
      const low = high(well[index]),
        top = high(ill[index]),
        left = index * step,
        wide = step - gap;
      if (low) good += `M${n(left)} ${n(height - low)}h${n(wide)}v${n(low)}h-${n(wide)}z`;
      if (top) bad += `M${n(left)} ${n(Math.max(0, height - low - top))}h${n(wide)}v${n(top)}h-${n(wide)}z`;
    }
    return { done: good, failed: bad };
  }

  // — small things —

  /** @param {string} selector @param {ParentNode} [within] @returns {HTMLElement | null} */
  const one = (selector, within = document) => within.querySelector(selector);
  /** @param {string} selector @param {ParentNode} [within] @returns {HTMLElement[]} */
  const all = (selector, within = document) =>
    [...within.querySelectorAll(selector)].map((found) => /** @type {HTMLElement} */ (found));
  /** @param {Element | null} element @param {string} text */
  const say = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };
  const sum = (/** @type {number[]} */ values) => values.reduce((total, value) => total + value, 0);

  let skew = 0; // the bus's clock minus this machine's
  const now = () => Date.now() + skew;
  /** @param {string | undefined} instant */
  const setClock = (instant) => {
    const at = Date.parse(instant ?? "");
    if (at) skew = at - Date.now();
  };

  /** @param {string} text @param {boolean} [bad] */
  function toast(text, bad = false) {
    const line = document.createElement("div");
    line.className = bad ? "toast bad" : "toast";
    line.textContent = text;
    one("#toasts")?.append(line);
    setTimeout(() => line.remove(), bad ? 8000 : 3500);
  }

  /**
   * POST; the answer's JSON, or an Error with the sentence of its problem+json.
   * @param {string} url @param {string | null} [body] @param {Record<string, string>} [headers]
   */
  async function post(url, body = null, headers = {}) {
    let answer;
    try {
      answer = await fetch(url, {
        method: "POST",
        body,
        headers: {
          Accept: "application/json",
          ...(body === null ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
      });
    } catch {
      throw new Error("echod does not answer. Is it still running?");
    }
    const json = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(json.detail || json.title || `The answer was ${answer.status}.`);
    return json;
  }

  /**
   * Create a job and go to it.
   * @param {string} functionUrl @param {string | null} payload @param {Record<string, string>} [headers]
   */
  async function run(functionUrl, payload, headers) {
    const job = await post(functionUrl, payload, headers);
    location.href = job.url ?? `/jobs/${encodeURIComponent(job.id)}`;
  }

  // — exchange what differs —

  /**
   * Make `old` like `fresh`, in place: focus, selection, what is filtered out and what is folded stay.
   * @param {Element} old @param {Element} fresh
   */
  function morph(old, fresh) {
    if (old.isEqualNode(fresh) || old.hasAttribute("data-keep")) return;
    for (const { name, value } of [...fresh.attributes])
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      if (name !== "open" && name !== "hidden" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    const keyed = new Map(
      [...old.children]
        .filter((child) => child.hasAttribute("data-key"))
        .map((child) => [child.getAttribute("data-key"), child]),
    );
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = wanted instanceof Element ? wanted.getAttribute("data-key") : null;
      const known = key === null ? undefined : keyed.get(key);
      if (known && known !== at) old.insertBefore(known, at);
      const here = known ?? at;
      const alike =
        here &&
        here.nodeName === wanted.nodeName &&
        (key === null ? !(here instanceof Element && here.hasAttribute("data-key")) : here === known);
      if (!here || !alike) {
        old.insertBefore(wanted, at);
        continue;
      }
      if (here instanceof Element && wanted instanceof Element) morph(here, wanted);
      else if (here.nodeValue !== wanted.nodeValue) here.nodeValue = wanted.nodeValue;
      at = here.nextSibling;
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  let refreshing = false,
    again = false,
    last = 0;
  /** Ask for this page once more, at most once a second. */
  async function refresh() {
    if (refreshing || document.hidden) {
      again = true;
      return;
    }
    refreshing = true;
    await new Promise((done) => setTimeout(done, Math.max(0, last + 1000 - performance.now())));
    last = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status === 401) location.reload(); // signed out meanwhile
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const old = one("#main"),
          fresh = page.querySelector("#main");
        setClock(page.body.dataset.now);
        if (old && fresh) {
          morph(old, fresh);
          applyFilter();
          tick();
        }
      }
    } catch {
      /* away: the stream says so, and its return asks again */
    }
    refreshing = false;
    catchUp();
  }

  /** What was asked for while it could not be done. */
  function catchUp() {
    if (!again || document.hidden) return;
    again = false;
    void refresh();
  }

  // — the list of functions —

  /** @type {Map<string, string>} what was last seen of each function */
  const seen = new Map();

  /** @param {{functions: FunctionJson[], errors: unknown[], occurrences?: OccurrenceJson[], now?: string}} json */
  function showFunctions(json) {
    setClock(json.now);
    const rows = new Map(all("tr[data-name]").map((row) => [row.dataset.name, row]));
    const errors = JSON.stringify(json.errors);
    const sameShape = rows.size === json.functions.length && json.functions.every(({ name }) => rows.has(name));
    if (!sameShape || (seen.get("\0errors") ?? errors) !== errors || json.errors.length > 0 !== Boolean(one(".errors")))
      void refresh();
    seen.set("\0errors", errors);
    for (const f of json.functions) {
      const row = rows.get(f.name);
      if (row) showFunction(row, f);
    }
    const add = (/** @type {(f: FunctionJson) => number} */ pick) => sum(json.functions.map(pick));
    const failed = add((f) => sum(f.series?.failed ?? [])),
      dead = add((f) => f.dead);
    const totals = {
      rate: rate(add((f) => f.rate ?? 0)),
      done: count(add((f) => sum(f.series?.done ?? []))),
      failed: count(failed),
      active: count(add((f) => f.active)),
      pending: count(add((f) => f.pending)),
      dead: count(dead),
    };
    for (const [key, text] of Object.entries(totals)) say(one(`[data-t="${key}"]`), text);
    one('[data-t="failed"]')?.classList.toggle("bad", failed > 0);
    one('[data-t="dead"]')?.classList.toggle("bad", dead > 0);
    showDue(json.functions);
    for (const occurrence of json.occurrences ?? []) lightUp(occurrence); // said while we were away
  }

  /** @param {HTMLElement} row @param {FunctionJson} f */
  function showFunction(row, f) {
    const before = seen.get(f.name),
      text = JSON.stringify(f);
    seen.set(f.name, text);
    if (before === text) return;
    const done = sum(f.series?.done ?? []),
      failed = sum(f.series?.failed ?? []);
    /** @param {string} key @param {string} value @param {boolean} [bad] */
    const set = (key, value, bad = false) => {
      const place = one(`[data-v="${key}"]`, row);
      say(place, value);
      place?.classList.toggle("bad", bad);
    };
    set("rate", rate(f.rate));
    set("hour", `${count(done + failed)} in 1 h`);
    set("errors", share(failed, done + failed), failed > 0);
    set("failed", `${count(failed)} failed${f.dead ? `, ${count(f.dead)} for good` : ""}`);
    set("p50", span(f.p50));
    set("p95", `p95 ${span(f.p95)}`);
    set("pending", `${count(f.pending)} waiting`);
    const oldest =
      f.oldest_ms != null ? `oldest ${span(f.oldest_ms)}` : f.active ? `${count(f.active)} running` : "idle";
    set("oldest", f.paused ? "paused" : oldest);
    one('[data-v="oldest"]', row)?.classList.toggle("warn", Boolean(f.paused));
    set("scheduled", f.scheduled ? `${count(f.scheduled)} scheduled` : "");
    const drawn = bars(f.series?.done ?? [], f.series?.failed ?? []);
    one('[data-d="done"]', row)?.setAttribute("d", drawn.done);
    one('[data-d="failed"]', row)?.setAttribute("d", drawn.failed);
    showNext(one('[data-v="next"]', row), f);
  }

  /** @param {HTMLElement | null} place @param {FunctionJson} f */
  function showNext(place, f) {
    if (!place) return;
    const next = f.next?.[0];
    const shown = place.querySelector("time");
    if (next && shown) {
      shown.dateTime = next;
      shown.title = "";
      return tick();
    }
    const element = document.createElement(next ? "time" : "span");
    if (element instanceof HTMLTimeElement) {
      element.dateTime = next ?? "";
      element.dataset.until = "";
    } else {
      element.className = "none";
      element.textContent = NONE;
    }
    place.replaceChildren(element);
    tick();
  }

  // — the strip of due times —

  const BEFORE = 300_000,
    AFTER = 120_000;
  const SVG = "http://www.w3.org/2000/svg";

  /** The mark of a due instant, made if it is not there. @param {Element} track @param {string} due */
  function markOf(track, due) {
    const at = Date.parse(due);
    const known = all("[data-due]", track).find((mark) => Date.parse(mark.dataset.due ?? "") === at);
    if (known) return known;
    const mark = document.createElementNS(SVG, "a"),
      dot = document.createElementNS(SVG, "circle");
    mark.setAttribute("class", "occ due");
    mark.setAttribute("data-due", due);
    dot.setAttribute("cy", "10");
    dot.setAttribute("r", "4");
    mark.append(dot);
    track.append(mark);
    return mark;
  }

  /** @param {FunctionJson[]} functions */
  function showDue(functions) {
    for (const f of functions) {
      const track = one(`[data-line="${CSS.escape(f.name)}"] .track`);
      if (!track) continue;
      const ahead = f.next ?? [];
      const wanted = new Set(ahead.map((due) => Date.parse(due)));
      for (const mark of all(".occ.due", track)) {
        // a due time that is no longer in the rule, or was dropped
        const at = Date.parse(mark.dataset.due ?? "");
        if (!wanted.has(at) && at > now()) mark.remove();
      }
      for (const due of ahead) if (Date.parse(due) - now() < AFTER) markOf(track, due);
    }
    moveStrip();
  }

  /** @param {OccurrenceJson} occurrence */
  function lightUp(occurrence) {
    const track = one(`[data-line="${CSS.escape(occurrence.function)}"] .track`);
    if (!track) return;
    const mark = markOf(track, occurrence.due);
    // what was on the page already does not flash
    const lit = !mark.hasAttribute("href") || mark.classList.contains("lit");
    mark.setAttribute("class", `occ ${occurrence.state || "pending"}${lit ? " lit" : ""}`);
    if (occurrence.job) mark.setAttribute("href", `/jobs/${encodeURIComponent(occurrence.job)}`);
    mark.setAttribute("tabindex", "-1");
    moveStrip();
  }

  function moveStrip() {
    for (const mark of all(".track [data-due]")) {
      const left = ((Date.parse(mark.dataset.due ?? "") - now() + BEFORE) / (BEFORE + AFTER)) * 100;
      if (left < 0) mark.remove();
      else mark.firstElementChild?.setAttribute("cx", `${left.toFixed(2)}%`);
    }
  }

  // — clocks —

  function tick() {
    for (const element of all("time[data-until]"))
      say(element, until(Date.parse(element.getAttribute("datetime") ?? "") - now()));
    for (const element of all("time[data-ago]"))
      say(element, ago(now() - Date.parse(element.getAttribute("datetime") ?? "")));
    moveStrip();
  }

  // — live —

  /** @param {"on" | "off"} state @param {string} text */
  function showLive(state, text) {
    const light = one("[data-live]");
    light?.classList.remove("on", "off");
    light?.classList.add(state);
    say(one("[data-live-text]"), text);
  }

  let opened = 0;
  function follow() {
    const page = document.body.dataset.page;
    if (page === "login" || page === "problem") return;
    const stream = new EventSource("/events");
    stream.onopen = () => {
      showLive("on", "Live");
      if (opened++) void refresh();
    };
    stream.onerror = () => {
      showLive("off", "Reconnecting");
      // a browser tries again by itself after a break, but not after an answer that was no stream
      if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
    };
    stream.addEventListener("functions", (event) => {
      const json = JSON.parse(event.data);
      if (page === "functions") showFunctions(json);
      else {
        setClock(json.now);
        onChange(json.functions);
      }
    });
    stream.addEventListener("occurrence", (event) => {
      if (page === "functions") lightUp(JSON.parse(event.data));
      if (page === "schedules") void refresh();
    });
  }

  /** A page other than the list: ask again when what it shows has changed. @param {FunctionJson[]} functions */
  function onChange(functions) {
    const page = document.body.dataset.page;
    const name = one("[data-self]")?.dataset.self;
    const mine = page === "function" ? functions.filter((f) => f.name === name) : functions;
    if (page === "job" || page === "versions" || page === "bus") return;
    const text = JSON.stringify(mine),
      counts = JSON.stringify(mine.map((f) => ({ ...f, rate: 0, oldest_ms: 0 })));
    const moved = seen.get("\0counts") !== counts,
      drifted = seen.get("\0mine") !== text;
    const first = !seen.has("\0mine");
    seen.set("\0counts", counts).set("\0mine", text);
    // a rate that fades and an age that grows are not worth a page each second
    if (!first && (moved || (drifted && performance.now() - last > 5000))) void refresh();
  }

  /** A job that has not ended is asked for once a second, one that starts much later every quarter of a minute. */
  function followJob() {
    let turn = 0;
    setInterval(() => {
      const state = one("[data-job]")?.dataset.state;
      const due = Date.parse(one("[data-job] .notice time")?.getAttribute("datetime") ?? "") || 0;
      const soon = state === "pending" || state === "active" || (state === "scheduled" && due - now() < 3000);
      if (soon || (state === "scheduled" && ++turn % 15 === 0)) void refresh();
    }, 1000);
  }

  function followLog() {
    const box = one("[data-log]");
    if (!box) return;
    const keep = /** @type {HTMLInputElement | null} */ (one("[data-follow]"));
    let fresh = true,
      run = "";
    /** @param {MessageEvent<string>} event */
    const add = (event) => {
      /** @type {LogJson} */ const line = JSON.parse(event.data);
      if (fresh) {
        all(".log-line, .log-try", box).forEach((old) => old.remove());
        fresh = false;
      }
      const empty = one("[data-log-empty]", box);
      if (empty) empty.hidden = true;
      const mine = `${line.job ?? ""} ${line.attempt}`;
      if (line.attempt && mine !== run) box.append(logHead(line));
      run = mine;
      box.append(logLine(line));
      while (line.job && box.childElementCount > MOST_LINES) all(".log-line, .log-try", box)[0]?.remove();
      if (keep?.checked) box.scrollTop = box.scrollHeight;
    };
    const open = () => {
      const stream = new EventSource(box.dataset.log ?? "");
      stream.addEventListener("log", add);
      stream.addEventListener("end", () => stream.close());
      // as with /events: after an answer that was no stream a browser does not try again
      stream.onerror = () => {
        if (stream.readyState === EventSource.CLOSED) setTimeout(again, 2000, stream);
      };
      return stream;
    };
    // A function's never ends, and a browser has six connections for all tabs: one that is not looked at gives its own back.
    const leaves = document.body.dataset.page === "function";
    /** @param {EventSource} lost */
    const again = (lost) => {
      if (lost !== stream || (leaves && document.hidden)) return;
      fresh = true;
      run = "";
      stream = open();
    };
    let stream = open();
    if (!leaves) return;
    document.addEventListener("visibilitychange", () => {
      stream.close();
      again(stream);
    });
  }

  /** Whose lines follow: a try of this job, or one of the function's jobs. @param {LogJson} line */
  function logHead(line) {
    const head = document.createElement("div");
    head.className = "log-try";
    head.textContent = `Try ${line.attempt}`;
    if (line.job) {
      const link = document.createElement("a");
      link.href = `/jobs/${encodeURIComponent(line.job)}`;
      link.textContent = line.job;
      head.prepend(link, " ");
    }
    return head;
  }

  /** @param {LogJson} line */
  function logLine(line) {
    const element = document.createElement("div"),
      at = document.createElement("time"),
      level = document.createElement("span"),
      text = document.createElement("span");
    element.className = `log-line ${(line.level || "").toLowerCase()}`;
    at.dateTime = line.at;
    at.textContent = new Date(line.at).toISOString().slice(11, 23);
    level.className = "level";
    level.textContent = line.level || line.stream;
    text.className = "text";
    text.textContent = line.text;
    element.append(at, level, text);
    return element;
  }

  // — forms —

  /** The payload as JSON text. Throws an Error that says what is wrong. @param {HTMLElement} form */
  function payloadOf(form) {
    const json = /** @type {HTMLTextAreaElement | null} */ (one("[data-json]", form));
    if (!json) return null;
    if (one("[data-pane=json]", form)?.hidden) return fieldsOf(form);
    try {
      JSON.parse(json.value);
    } catch (error) {
      throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
    }
    return json.value;
  }

  /** The fields as JSON text; numbers as they were typed, since a double loses digits. @param {HTMLElement} form */
  function fieldsOf(form) {
    /** @type {string[]} */ const pairs = [];
    for (const field of all("[data-field]", form)) {
      const { field: name = "", kind } = field.dataset;
      const input = /** @type {HTMLInputElement} */ (one("input, select, textarea", field));
      if (kind !== "checkbox" && input.value === "" && !("required" in field.dataset)) continue; // its default holds
      let value = input.value.trim();
      if (kind === "checkbox") value = String(input.checked);
      else if (kind === "text") value = JSON.stringify(input.value);
      else if (!isJson(value))
        throw new Error(`${name}: expected ${kind === "json" ? "JSON" : "a number"}, got “${value}”.`);
      pairs.push(`  ${JSON.stringify(name)}: ${value}`);
    }
    return pairs.length ? `{\n${pairs.join(",\n")}\n}` : "{}";
  }

  /** @param {string} text */
  function isJson(text) {
    try {
      JSON.parse(text);
      return true;
    } catch {
      return false;
    }
  }

  /** Throws an Error where the form cannot hold what the JSON says. @param {HTMLElement} form @param {string} text */
  function fillFields(form, text) {
    if (!isJson(text)) throw new Error("The JSON cannot be read; mend it first.");
    const payload = JSON.parse(text) ?? {};
    const fields = all("[data-field]", form);
    const stranger = Object.keys(payload).find((key) => !fields.some((field) => field.dataset.field === key));
    if (typeof payload !== "object" || stranger !== undefined)
      throw new Error(`“${stranger ?? text}” has no field in the form.`);
    if (/[0-9]{16}/.test(text)) throw new Error("A number is too long for the form; run it from here.");
    for (const field of fields) {
      const { field: name = "", kind } = field.dataset;
      const input = /** @type {HTMLInputElement} */ (one("input, select, textarea", field));
      const value = payload[name];
      if (kind === "checkbox") input.checked = value === true;
      else if (value === undefined) input.value = "";
      else input.value = kind === "text" && typeof value === "string" ? value : JSON.stringify(value);
    }
  }

  /** @param {HTMLElement} form @param {string} text */
  function complain(form, text) {
    const place = one("[data-wrong]", form);
    if (!place) return;
    place.hidden = !text;
    place.textContent = text;
  }

  /** @param {HTMLElement} tab */
  function turnTo(tab) {
    const form = one("[data-invoke]");
    const json = /** @type {HTMLTextAreaElement | null} */ (form && one("[data-json]", form));
    if (!form || !json || tab.getAttribute("aria-selected") === "true") return;
    complain(form, "");
    try {
      if (tab.dataset.tab === "json") json.value = fieldsOf(form);
      else fillFields(form, json.value);
    } catch (error) {
      return complain(form, /** @type {Error} */ (error).message);
    }
    for (const other of all("[data-tab]")) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      const pane = one(`[data-pane="${other.dataset.tab}"]`, form);
      if (pane) pane.hidden = !chosen;
    }
    tab.focus();
  }

  /**
   * Do it, with the button off meanwhile; what goes wrong is said in the form, else in a toast.
   * @param {HTMLElement} form @param {() => Promise<void>} act
   */
  async function submit(form, act) {
    const button = /** @type {HTMLButtonElement | null} */ (one("button:not([type=button])", form));
    if (button) button.disabled = true;
    complain(form, "");
    try {
      await act();
    } catch (error) {
      const text = /** @type {Error} */ (error).message;
      if (one("[data-wrong]", form)) complain(form, text);
      else toast(text, true);
    }
    if (button) button.disabled = false;
  }

  /** @param {HTMLElement} row */
  function askRun(row) {
    const dialog = /** @type {HTMLDialogElement | null} */ (one("#run")),
      form = one("[data-run-form]");
    const url = `/functions/${encodeURIComponent(row.dataset.name ?? "")}`;
    if (!dialog || !form) return;
    if ("noPayload" in row.dataset) {
      run(url, null).catch((error) => toast(error.message, true));
      return;
    }
    say(one("[data-run-name]"), row.dataset.name ?? "");
    const text = /** @type {HTMLTextAreaElement} */ (one("textarea", form));
    text.value = row.dataset.sample ?? "null";
    form.dataset.url = url;
    complain(form, "");
    dialog.showModal();
    text.focus();
  }

  /**
   * All parts of what is done to many jobs: its numbers added up.
   * @param {string} url @param {URLSearchParams} query @returns {Promise<Record<string, number>>}
   */
  async function swept(url, query) {
    /** @type {Record<string, number>} */
    const total = {};
    for (let cursor = ""; cursor !== null; ) {
      query.set("cursor", cursor);
      const part = await post(`${url}?${query}`);
      for (const [name, value] of Object.entries(part))
        total[name] = (total[name] ?? 0) + (Array.isArray(value) ? value.length : Number(value) || 0);
      cursor = part.cursor;
    }
    return total;
  }

  /**
   * Count what the form means, ask, do it.
   * @param {HTMLFormElement} form @param {HTMLElement} button
   */
  async function sweep(form, button) {
    const url = button.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) query.set(name, String(value).trim());
    if (url.endsWith("/purge")) query.delete("rate");
    if (form.dataset.ask) {
      const to = prompt("Move to which share? “-” is the one without a name.");
      if (!to) return;
      query.set(form.dataset.ask, to);
    }
    const jobs = (/** @type {number} */ n) => `${n.toLocaleString("en")} job${n === 1 ? "" : "s"}`;
    const { matched = 0 } = await swept(url, new URLSearchParams([...query, ["dry_run", "1"]]));
    if (!matched) return toast("No job is meant by this", true);
    if (!confirm((button.dataset.question ?? "").replace("%", jobs(matched)))) return;
    const { cancelled = 0, moved = 0, purged = 0, redriven = 0, refused = 0 } = await swept(url, query);
    const left = refused ? `; ${jobs(refused)} refused: another job has the unique key` : "";
    toast(`${jobs(cancelled + moved + purged + redriven)} ${button.dataset.done}${left}`, Boolean(refused));
    await refresh();
  }

  /** @param {HTMLElement} button */
  function askBackfill(button) {
    const dialog = /** @type {HTMLDialogElement | null} */ (one("#backfill")),
      form = one("[data-backfill-form]"),
      name = one("[data-backfill-name]");
    if (!dialog || !form || !name) return;
    name.textContent = button.dataset.id ?? "";
    form.dataset.url = button.dataset.backfill ?? "";
    complain(form, "");
    dialog.showModal();
  }

  /**
   * A job for each past due time of the window; or only how many those are.
   * @param {HTMLFormElement} form
   */
  async function backfill(form) {
    const input = (/** @type {string} */ part) => /** @type {HTMLInputElement} */ (one(`[data-${part}]`, form));
    const at = (/** @type {string} */ part) => {
      const typed = input(part).value; // without its seconds where they are zero
      return typed && `${typed}${typed.length === 16 ? ":00" : ""}Z`;
    };
    const plan = input("plan").checked,
      to = at("to");
    const did = await post(form.dataset.url ?? "", JSON.stringify({ from: at("from"), ...(to ? { to } : {}), plan }));
    toast(plan ? `${did.instants} due times` : `${did.minted} jobs created, ${did.already} there already`);
    if (plan) return;
    /** @type {HTMLDialogElement | null} */ (form.closest("dialog"))?.close();
    await refresh();
  }

  /** @param {SubmitEvent} event */
  function onSubmit(event) {
    const form = /** @type {HTMLFormElement} */ (event.target);
    if (event.submitter && "shows" in event.submitter.dataset) return; // a page of its own
    if ("sweep" in form.dataset && event.submitter) {
      event.preventDefault();
      const button = event.submitter;
      void submit(form, () => sweep(form, button));
      return;
    }
    if ("action" in form.dataset) {
      event.preventDefault();
      if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
      void submit(form, async () => {
        await post(form.getAttribute("action") ?? "");
        toast(form.dataset.done ?? "Done");
        await refresh();
      });
    } else if (form.dataset.invoke) {
      event.preventDefault();
      void submit(form, async () => {
        const delay = /** @type {HTMLInputElement | null} */ (one("[data-delay]", form))?.value.trim();
        await run(form.dataset.invoke ?? "", payloadOf(form), delay ? { "Echo-Delay": delay } : {});
      });
    } else if ("backfillForm" in form.dataset) {
      event.preventDefault();
      void submit(form, () => backfill(form));
    } else if ("runForm" in form.dataset) {
      event.preventDefault();
      void submit(form, async () => {
        const text = /** @type {HTMLTextAreaElement} */ (one("textarea", form)).value;
        try {
          JSON.parse(text);
        } catch (error) {
          throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
        }
        await run(form.dataset.url ?? "", text);
      });
    }
  }

  /** @param {HTMLElement} button */
  async function redriveAll(button) {
    const ids = all("[data-dead]", /** @type {HTMLElement} */ (button.closest("section")))
      .filter((row) => !row.hidden)
      .map((row) => row.dataset.dead ?? "");
    /** @type {HTMLButtonElement} */ (button).disabled = true;
    let failed = "";
    for (const id of ids)
      await post(`/jobs/${encodeURIComponent(id)}/redrive`).catch((error) => {
        failed = error.message;
      });
    toast(failed || `${ids.length} back in the queue`, Boolean(failed));
    /** @type {HTMLButtonElement} */ (button).disabled = false;
    void refresh();
  }

  /**
   * What the button holds, or that part of the page's JSON: the page itself may show less.
   * @param {HTMLElement} button
   */
  async function copy(button) {
    try {
      const part = button.dataset.copyPart;
      const json = part && (await (await fetch(location.href, { headers: { Accept: "application/json" } })).json());
      await navigator.clipboard.writeText(part ? JSON.stringify(json[part], null, 2) : (button.dataset.copy ?? ""));
      toast("Copied");
    } catch {
      toast("The browser did not allow it", true);
    }
  }

  /** @param {MouseEvent} event */
  function onClick(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const hit = (/** @type {string} */ selector) => /** @type {HTMLElement | null} */ (target.closest(selector));
    const runner = hit("[data-run]"),
      copier = hit("[data-copy], [data-copy-part]"),
      tab = hit("[data-tab]"),
      redriver = hit("[data-redrive-all]"),
      filler = hit("[data-backfill]");
    if (runner) askRun(/** @type {HTMLElement} */ (runner.closest("[data-name]")));
    else if (copier) void copy(copier);
    else if (tab) turnTo(tab);
    else if (redriver) void redriveAll(redriver);
    else if (filler) askBackfill(filler);
    else if (hit("[data-theme-toggle]")) turnTheme();
    else if (hit("[data-help]")) help();
    else if (target instanceof HTMLDialogElement)
      target.close(); // on the veil
    else if (!hit(".pop")) all(".pop[open]").forEach((open) => open.removeAttribute("open"));
  }

  // — keyboard, filter, theme —

  function help() {
    /** @type {HTMLDialogElement | null} */ (one("#help"))?.showModal();
  }

  function turnTheme() {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem(THEME, root.dataset.theme);
    } catch {
      /* holds for this page only */
    }
  }

  function applyFilter() {
    const field = /** @type {HTMLInputElement | null} */ (one("[data-filter]"));
    if (!field) return;
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of all("[data-row]")) {
      const text = (row.textContent ?? "").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown++;
    }
    const nothing = one("[data-nothing]");
    if (nothing) nothing.hidden = shown > 0;
  }

  /** @param {number} step */
  function moveRow(step) {
    const rows = all("[data-row]").filter((row) => !row.hidden);
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
    if (!row) return;
    one(".lead a, .lead [tabindex]", row)?.focus();
    row.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("[role=tab]") && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      const other = all("[data-tab]").find((tab) => tab !== target);
      if (other) turnTo(other);
      return;
    }
    if (target.matches("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (one("dialog[open]")) return;
    const row = /** @type {HTMLElement | null} */ (target.closest("[data-name]"));
    /** @type {Record<string, () => void>} */ const keys = {
      "/": () => one("[data-filter]")?.focus(),
      "?": help,
      t: turnTheme,
      j: () => moveRow(1),
      ArrowDown: () => moveRow(1),
      k: () => moveRow(-1),
      ArrowUp: () => moveRow(-1),
      r: () => {
        if (row) askRun(row);
        else if (one("#invoke")) one("#invoke input, #invoke textarea, #invoke button")?.focus();
      },
    };
    const act = keys[event.key];
    if (!act || (event.key.startsWith("Arrow") && (!one("[data-row]") || target.closest(".log, .scroll, .tabs"))))
      return;
    event.preventDefault();
    act();
  }

  document.addEventListener("DOMContentLoaded", () => {
    setClock(document.body.dataset.now);
    document.addEventListener("submit", onSubmit);
    document.addEventListener("click", onClick);
    document.addEventListener("keydown", onKey);
    document.addEventListener("visibilitychange", catchUp);
    document.addEventListener("input", (event) => {
      if (/** @type {HTMLElement} */ (event.target).matches("[data-filter]")) applyFilter();
    });
    document.addEventListener("change", (event) => {
      const form = /** @type {HTMLElement} */ (event.target).closest("form");
      if (form && "choose" in form.dataset) form.requestSubmit();
    });
    one(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
    follow();
    if (document.body.dataset.page === "job") followJob();
    followLog();
    tick();
    setInterval(tick, 1000);
  });

  // for the test that compares spellings
  Object.assign(globalThis, { echod: { count, span, rate, share, until, ago, bars } });
})();
