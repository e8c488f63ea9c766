// The dashboard: asks /api/status every five seconds and shows what it says. Every text of the
// server's is put in as text, never as markup.
"use strict";

(() => {
  const EVERY_MS = 5000, PATIENCE_MS = 8000, KEPT = 720, WINDOW_S = 60, MOST_QUOTAS = 16;
  const byId = (id) => document.getElementById(id);
  let points = [], told = null, minutes = 15, lost = "", isAsking = false;

  // --- numbers for people ---------------------------------------------------------------------

  function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
    return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
  }
  const rate = (value) => (value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1));
  const whole = (value) => value.toLocaleString("en");
  const counted = (value, one, more) => `${whole(value)} ${value === 1 ? one : more}`;
  const percent = (value) => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
  function duration(seconds) {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} days`;
  }
  function took(micros) {
    if (micros === null) return "–";
    if (micros < 1000) return `${Math.round(micros)} µs`;
    if (micros < 1e6) return `${(micros / 1000).toFixed(micros < 1e4 ? 1 : 0)} ms`;
    return `${(micros / 1e6).toFixed(1)} s`;
  }

  // --- elements -------------------------------------------------------------------------------

  function element(name, options, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(options || {})) {
      if (key === "text") made.textContent = value;
      else if (key === "class") made.className = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }
  const mark = (text, state) => element("span", { class: "mark", "data-state": state, text });
  /** A long name that may be broken after its underscores. */
  const breakable = (text) => element("span", {}, ...text.split("_").flatMap((part, index) => (index ? ["_", element("wbr"), part] : [part])));
  const empty = (text) => element("p", { class: "empty", text });

  /**
   * A table. On a narrow screen its rows become cards, and roles stay what they were; or, if it
   * fits there, columns marked as `extra` go.
   */
  function table(caption, columns, rows, fits) {
    const head = element("tr", { role: "row" });
    for (const column of columns) {
      head.append(element("th", { scope: "col", role: "columnheader", class: column.kind || "", text: column.title }));
    }
    const body = element("tbody", { role: "rowgroup" });
    for (const row of rows) {
      const line = element("tr", { role: "row" });
      row.forEach((value, index) => {
        const kind = columns[index].kind || "";
        const cell = index === 0
          ? element("th", { scope: "row", role: "rowheader", class: kind })
          : element("td", { role: "cell", class: kind, "data-label": columns[index].title });
        // One box for it all, so that a narrow screen has two: the column's name and this.
        cell.append(element("span", {}, ...(Array.isArray(value) ? value : [value])));
        line.append(cell);
      });
      body.append(line);
    }
    return element("table", { class: fits ? "fit" : "stack", role: "table" },
      element("caption", { text: caption }), element("thead", { role: "rowgroup" }, head), body);
  }

  // --- what is told, as series ----------------------------------------------------------------

  const figure = (name) => told.history.figures.indexOf(name);

  /** How much a counter rose between two points; null over a gap or another start of the server. */
  function risen(before, after, read) {
    if (!before || !after || before.length < 2 || after.length < 2) return null;
    const rise = read(after) - read(before);
    return rise >= 0 ? rise : null;
  }
  const counter = (name) => { const index = figure(name); return (point) => point[1][index]; };
  /** What made room: for others of its namespace, and with a whole extent. */
  const EVICTED = ["evicted_chunks", "reclaimed_chunks"];
  const evictions = () => { const parts = EVICTED.map(counter); return (point) => parts.reduce((sum, part) => sum + part(point), 0); };

  function rates(reads) {
    return points.slice(1).map((point, index) => {
      const before = points[index], passed = point[0] - before[0];
      // Points lie five seconds apart; a longer way is a time in which nobody looked.
      const isGap = passed <= 0 || passed > 30;
      return [point[0], ...reads.map((read) => {
        const rise = isGap ? null : risen(before, point, read);
        return rise === null ? null : rise / passed;
      })];
    });
  }

  /** The point that lies so many seconds before another, in one unbroken life of the server. */
  function earlier(index, seconds) {
    let found = index;
    while (found > 0 && points[index][0] - points[found][0] < seconds) {
      if (risen(points[found - 1], points[found], counter("requests")) === null) break;
      found--;
    }
    return found;
  }

  function ratios() {
    const requested = counter("requested_tokens");
    const parts = ["hit_tokens", "loaded_tokens", "hit_tokens_l1"].map(counter);
    return points.map((point, index) => {
      const before = points[earlier(index, WINDOW_S)];
      const asked = risen(before, point, requested);
      return [point[0], ...parts.map((part) => (asked ? risen(before, point, part) / asked : null))];
    });
  }

  /** Over the last seconds: how much a counter, or what reads points, rose, and in how long. */
  function lately(what, seconds) {
    if (!points.length) return null;
    const last = points.length - 1, first = earlier(last, seconds);
    const rise = risen(points[first], points[last], typeof what === "string" ? counter(what) : what);
    const passed = points[last][0] - points[first][0];
    return rise === null || !passed ? null : { rise, passed };
  }

  /** By how much a gauge is below the most that it was over the last seconds, in this life of the server. */
  function fewer(name, now, seconds) {
    if (!points.length) return 0;
    const last = points.length - 1, index = figure(name);
    const before = points.slice(earlier(last, seconds)).filter((point) => point.length > 1).map((point) => point[1][index]);
    return Math.max(0, ...before.map((value) => value - now));
  }

  // --- the parts of the page ------------------------------------------------------------------

  function showState() {
    const pill = byId("state"), notice = byId("notice");
    const failed = told ? told.checks.filter((check) => !check.good) : [];
    let text = "ready", state = "good", why = "";
    if (lost) {
      [text, state] = ["no answer", "bad"];
      why = `This page gets no answer: ${lost}. It is served beside the server and ends with it.`;
    } else if (!told.answers) {
      [text, state] = ["no answer", "bad"];
      why = `The server does not answer: ${told.why}.`;
    } else if (failed.length) {
      [text, state] = ["not ready", "warn"];
    }
    if (why && told && told.answered_at) why += ` What is shown below is from ${Charts.clock(told.answered_at, true)}.`;
    if (pill.textContent !== text) pill.textContent = text;
    pill.dataset.state = state;
    if (notice.textContent !== why) notice.textContent = why;
    notice.hidden = !why;
    document.title = text === "ready" ? "kvkeep" : `kvkeep: ${text}`;
  }

  /** What is wrong and what is worth knowing, above all figures: whoever comes at night reads this first. */
  function showTrouble() {
    const failed = told.answers && !lost ? told.checks.filter((check) => !check.good) : [];
    const remarks = told.answers && !lost ? told.remarks : [];
    const line = (text, state, name) => element("li", {}, mark(text, state), element("span", {}, ...name));
    byId("troubles").replaceChildren(
      ...failed.map((check) => line("wrong", "bad", [element("strong", { text: check.name }), ` ${check.text}`])),
      ...remarks.map((text) => line("note", "warn", [text])));
    byId("trouble-title").textContent = failed.length ? "What is wrong" : "Worth knowing";
    byId("trouble").hidden = !(failed.length || remarks.length);
  }

  function tile(name, value, below) {
    return element("div", {}, element("dt", { text: name }), element("dd", { text: value }), element("dd", { text: below }));
  }

  function showTiles() {
    const status = told.status, stats = told.stats;
    const asked = lately("requested_tokens", 300), hits = lately("hit_tokens", 300);
    const requests = lately("requests", WINDOW_S), evicted = lately(evictions(), WINDOW_S);
    const held = stats.arena_held_bytes || 0;
    const engines = status ? status.engines.filter((engine) => engine.state !== "operator") : [];
    const serving = engines.filter((engine) => engine.state === "serving").length;
    const lookup = status ? status.latency.ops.LOOKUP : undefined;
    const gone = status ? fewer("instances", stats.instances || 0, 300) : 0;
    const processes = status ? engines.length + status.engines_more : 0;
    byId("tiles").replaceChildren(
      tile("Hit ratio, 5 min", asked && asked.rise ? percent(hits.rise / asked.rise) : "–",
        asked && asked.rise ? `of ${whole(asked.rise)} tokens asked for` : "nothing was asked for"),
      tile("Cached in L1", bytes(held), `of ${bytes(stats.arena_bytes || 0)}, ${whole(stats.chunks || 0)} chunks`),
      tile("Engines", status ? whole(serving) : whole(stats.instances || 0),
        status ? (processes ? `serving, of ${counted(processes, "process", "processes")} here` : "none is connected") +
          (gone ? `; ${whole(gone)} left in the last 5 min` : "") : "registered"),
      tile("Requests a second", requests ? rate(requests.rise / requests.passed) : "–", `${whole(stats.requests || 0)} in all`),
      tile("Evicted a second", evicted ? rate(evicted.rise / evicted.passed) : "–", `${whole(EVICTED.reduce((sum, name) => sum + (stats[name] || 0), 0))} chunks in all`),
      tile("LOOKUP, p99", lookup ? took(lookup.p99_us) : "–", lookup ? `of ${whole(lookup.recent)}, 5 min` : "none so far"),
    );
  }

  function showCharts() {
    const to = told.now, from = to - minutes * 60;
    const shown = (rows) => rows.filter((row) => row[0] >= from);
    const common = { from, to };
    const names = told.status ? told.status.tiers.map((tier) => tier.name).slice(0, 4) : [];
    // Without lower tiers, all that is hit is in L1.
    const parts = names.length ? ["hit", "loaded", "in L1 at once"] : ["hit", "loaded"];
    Charts.draw(byId("chart-ratio"), { ...common, label: "Hit ratio", series: parts,
      rows: shown(ratios()).map((row) => row.slice(0, 1 + parts.length)), format: percent, most: 1 });
    Charts.draw(byId("chart-chunks"), { ...common, label: "Chunks a second", series: ["stored", "evicted"],
      rows: shown(rates([counter("published_chunks"), evictions()])), format: rate });
    Charts.draw(byId("chart-copies"), { ...common, label: "Copied a second", series: ["copied"],
      rows: shown(rates([counter("copied_bytes")])), format: bytes, base: 1024 });
    byId("card-tiers").hidden = !names.length;
    if (!names.length) return;
    const got = told.history.tier_figures.indexOf("get_bytes");
    const reads = names.map((name) => (point) => (point[2][name] ? point[2][name][got] : 0));
    Charts.draw(byId("chart-tiers"), { ...common, label: "Brought up a second", series: names, rows: shown(rates(reads)), format: bytes, base: 1024 });
  }

  /** Up and silent for too long is as bad as down. */
  const stateOf = (row, most) => (row.state === "up" && row.silent_s >= most ? `silent ${duration(row.silent_s)}` : row.state);

  function tierRow(name, kind, state, isGood, used, capacity, more, why) {
    const head = element("div", { class: "tier-head" },
      element("span", {}, element("b", { text: name }), element("span", { class: "quiet", text: kind })),
      told.answers ? mark(state, isGood ? "good" : "bad") : mark(`was ${state}`, "plain"));
    const row = element("div", { class: "tier" }, head);
    const share = capacity ? used / capacity : 0;
    if (capacity) row.append(Charts.meter(share, `${name} is full to`));
    const fill = capacity ? `${bytes(used)} of ${bytes(capacity)}, ${percent(share)}` : used ? bytes(used) : "fill unknown";
    row.append(element("p", { class: "quiet", text: [fill, ...more].join(" · ") }));
    if (why) row.append(element("p", { class: isGood ? "why note" : "why", text: why }));
    return row;
  }

  function showTiers() {
    const stats = told.stats, status = told.status;
    const held = stats.arena_held_bytes || 0;
    const quarantined = stats.arena_quarantined_bytes || 0;
    const pinned = status ? status.pinned_bytes : 0;
    const rows = [tierRow("L1", "shared memory", "up", true, held, stats.arena_bytes || 0, [
      counted(stats.pinned_prefixes || 0, "pinned prefix", "pinned prefixes") + (pinned ? `: ${bytes(pinned)}` : ""), counted(stats.leases || 0, "lease", "leases"),
      ...(quarantined ? [`${bytes(quarantined)} in quarantine`] : [])])];
    for (const tier of status ? status.tiers : []) {
      const of = (name) => stats[`tier_${tier.name}_${name}`] || 0;
      const state = stateOf(tier, status.silent.tier_s);
      rows.push(tierRow(tier.name, tier.kind, state, state === "up", tier.used_bytes, tier.capacity_bytes, [
        `${counted(of("hit_chunks"), "chunk", "chunks")} brought up`, `${bytes(of("put_bytes"))} written`,
        counted(tier.jobs, "job", "jobs"), `${counted(tier.waiting_puts, "waits", "wait")} to be written`,
        ...(of("errors") ? [counted(of("errors"), "error", "errors")] : [])], tier.why || tier.warning));
    }
    byId("tiers").replaceChildren(...rows);
  }

  function showCopiers() {
    const status = told.status;
    if (!status) return byId("copiers").replaceChildren(empty("This server does not tell."));
    const columns = [{ title: "Copier", kind: "whole" }, { title: "State" }, { title: "Pieces it has", kind: "num" }, { title: "Started again", kind: "num" },
      { title: "Do not end", kind: "num" }];
    byId("copiers").replaceChildren(table(counted(status.copiers.length, "process", "processes"), columns, status.copiers.map((copier) => {
      const state = stateOf(copier, status.silent.copier_s);
      const look = state === "up" ? "good" : state === "ending" ? "plain" : "bad";
      return [copier.name, told.answers ? mark(state, look) : mark(`was ${copier.state}`, "plain"),
        whole(copier.jobs), whole(copier.restarts), copier.stuck ? mark(whole(copier.stuck), "bad") : "0"];
    })));
  }

  const ENGINE_MARKS = { serving: "good", leaving: "warn" };

  function showEngines() {
    const status = told.status;
    if (!status) return byId("engines").replaceChildren(empty("This server does not tell who is there."));
    const engines = status.engines.filter((engine) => engine.state !== "operator");
    const operators = status.engines.length - engines.length;
    const caption = `${counted(engines.length, "process", "processes")} of engines, ${whole(operators)} of operators` +
      (status.engines_more ? `, ${whole(status.engines_more)} more not shown` : "");
    if (!engines.length) return byId("engines").replaceChildren(empty(`No engine is here. ${caption}.`));
    const columns = [{ title: "Client" }, { title: "State" }, { title: "Process", kind: "num" }, { title: "Last heard", kind: "num" },
      { title: "Here for", kind: "num" }, { title: "Hit", kind: "num" }, { title: "Leases", kind: "num" }, { title: "Quarantine", kind: "num" }, { title: "Namespaces", kind: "mono whole" }];
    byId("engines").replaceChildren(table(caption, columns, engines.map((engine) => [
      engine.client || "not introduced yet",
      told.answers ? mark(engine.state, ENGINE_MARKS[engine.state] || "plain") : mark(`was ${engine.state}`, "plain"), String(engine.pid || "–"),
      `${duration(engine.idle_s)} ago`, duration(engine.connected_s),
      engine.requested_chunks ? `${percent(engine.hit_chunks / engine.requested_chunks)} of ${whole(engine.requested_chunks)}` : "–",
      whole(engine.leases), bytes(engine.quarantined_bytes), engine.namespaces.join(" ") || "–"])));
  }

  function showNamespaces() {
    const status = told.status;
    if (!status) return byId("namespaces").replaceChildren(empty("This server does not tell."));
    if (!status.namespaces.length) return byId("namespaces").replaceChildren(empty("Nothing is cached and no engine has registered."));
    // What was used within the same ten seconds counts as equally hot.
    const heat = (space) => Math.floor(space.idle_s / 10);
    const spaces = [...status.namespaces].sort((one, other) => heat(one) - heat(other) || other.bytes - one.bytes);
    const caption = counted(spaces.length, "namespace", "namespaces") + (status.namespaces_more ? `, ${whole(status.namespaces_more)} smaller ones not shown` : "");
    const columns = [{ title: "Model" }, { title: "Namespace", kind: "mono" }, { title: "Last used", kind: "num" }, { title: "In L1", kind: "num" },
      { title: "Chunks", kind: "num" }, { title: "Tokens a chunk", kind: "num" }, { title: "Pinned", kind: "num" }, { title: "Ranks here", kind: "num" }];
    byId("namespaces").replaceChildren(table(caption, columns, spaces.map((space) => [
      space.name || "unnamed", space.fingerprint, `${duration(space.idle_s)} ago`, bytes(space.bytes), whole(space.chunks),
      whole(space.chunk_tokens), whole(space.pinned_chunks), whole(space.sessions)])));
  }

  function showPrefixes() {
    const status = told.status, rows = status ? status.prefixes : [];
    if (!rows.length) return byId("prefixes").replaceChildren(empty("Nothing that L1 holds was found of late."));
    const columns = [{ title: "Begins with", kind: "mono" }, { title: "Model", kind: "extra" }, { title: "Namespace", kind: "mono extra" }, { title: "Hits", kind: "num" },
      { title: "Chunks", kind: "num" }, { title: "Unused for", kind: "num" }];
    byId("prefixes").replaceChildren(table(counted(rows.length, "prefix", "prefixes"), columns, rows.map((row) => [
      row.head, row.name || "unnamed", row.fingerprint, whole(row.hits), whole(row.chunks), duration(row.idle_s)]), true));
  }

  function showQuotas() {
    byId("card-quotas").hidden = !told.quotas.length;
    if (!told.quotas.length) return;
    const columns = [{ title: "Tenant" }, { title: "Name", kind: "mono" }, { title: "In" }, { title: "Held", kind: "num" },
      { title: "Left by others", kind: "num" }, { title: "At most", kind: "num" }];
    // Those at their limit first; else as the server has them.
    const rows = [...told.quotas].sort((one, other) => other.at_limit - one.at_limit).slice(0, MOST_QUOTAS);
    const more = told.quotas.length - rows.length;
    const caption = counted(told.quotas.length, "quota", "quotas") + (more ? `, ${whole(more)} of them not shown: kvkeep quota list` : "");
    byId("quotas").replaceChildren(table(caption, columns, rows.map((row) => [
      row.kind, row.tenant, row.tier === "l1" ? "L1" : row.tier, row.at_limit ? mark(`${bytes(row.held_bytes)}, at its limit`, "warn") : bytes(row.held_bytes),
      bytes(row.floor_bytes), row.limit_bytes ? bytes(row.limit_bytes) : "no limit"])));
  }

  function showLatency() {
    const latency = told.status && told.status.latency;
    const ops = latency ? Object.entries(latency.ops).sort((one, other) => (other[1].p99_us || 0) - (one[1].p99_us || 0)) : [];
    byId("latency-note").textContent = ops.length
      ? `The server's own time from a request to its answer, in the last ${duration(latency.recent_s || told.status.server.uptime_s)}; a request that waits for a lower tier waits on purpose.`
      : "";
    if (!ops.length) return byId("latency").replaceChildren(empty("Nothing was asked yet."));
    const columns = [{ title: "Request" }, { title: "p50", kind: "num extra" }, { title: "p99", kind: "num" }, { title: "Answered", kind: "num" },
      { title: `Over ${took(latency.slow_us)}`, kind: "num" }, { title: "Answered ever", kind: "num extra" }, { title: "Mean ever", kind: "num extra" }];
    byId("latency").replaceChildren(table("The slowest first", columns, ops.map(([op, row]) => [
      breakable(op), took(row.p50_us), took(row.p99_us), whole(row.recent), row.slow ? mark(whole(row.slow), "warn") : "0", whole(row.count), took(row.mean_us)]), true));
  }

  function showSlow() {
    const status = told.status, rows = status ? status.slow : [];
    byId("slow-note").textContent = status
      ? `The last that took over ${took(status.latency.slow_us)}, waits that were asked for left out. Request is the engine's number of it; message and engine are as the log has them.`
      : "";
    if (!rows.length) return byId("slow").replaceChildren(empty("None since the server started."));
    const columns = [{ title: "Operation", kind: "whole" }, { title: "Took", kind: "num" }, { title: "Ended", kind: "num" }, { title: "Request", kind: "num" },
      { title: "Message", kind: "num" }, { title: "Client" }, { title: "Engine", kind: "mono whole" }, { title: "Namespace", kind: "mono whole" }];
    byId("slow").replaceChildren(table(counted(rows.length, "request", "requests") + ", the newest first", columns, rows.map((row) => [
      breakable(row.op), row.wait_ms ? `${took(row.spent_us)}, up to ${took(row.wait_ms * 1000)} asked for` : took(row.spent_us),
      `${duration(row.age_s)} ago`, row.request || "–", String(row.seq), row.client || "not known any more", row.instance.slice(0, 12) || "–", row.fingerprint || "–"])));
  }

  function showChecks() {
    byId("checks").replaceChildren(...told.checks.map((check) => element("li", {},
      mark(check.good ? "good" : "failed", check.good ? "good" : "bad"),
      element("span", {}, element("strong", { text: check.name }), ` ${check.text}`))));
  }

  function showStats() {
    const rows = Object.entries(told.stats).map(([name, value]) => [breakable(name), whole(value)]);
    byId("stats").replaceChildren(table("As STATS gives them", [{ title: "Name", kind: "mono" }, { title: "Value", kind: "num" }], rows, true));
  }

  function showServer() {
    const server = told.status && told.status.server;
    byId("server").textContent = server
      ? `${server.version} · up for ${duration(server.uptime_s)} · process ${server.pid} · ${server.endpoint}`
      : told.answers ? "a server of an earlier version: who is there is not told" : "nothing is known of the server yet";
  }

  function show() {
    showState();
    if (!told) return;
    showTrouble();
    showServer(); showTiles(); showCharts(); showTiers(); showCopiers(); showEngines(); showNamespaces(); showPrefixes(); showQuotas(); showLatency(); showSlow(); showChecks(); showStats();
  }

  // --- asking ---------------------------------------------------------------------------------

  async function ask() {
    if (isAsking) return;
    isAsking = true;
    const since = points.length ? points[points.length - 1][0] : 0;
    const ending = new AbortController();
    const timer = setTimeout(() => ending.abort(), PATIENCE_MS);
    try {
      const answer = await fetch(`api/status?since=${since}`, { signal: ending.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`it says ${answer.status}`);
      told = await answer.json();
      points = points.concat(told.history.points).slice(-KEPT);
      lost = "";
    } catch (error) {
      lost = error.name === "AbortError" ? "nothing within 8 s" : error.message;
    } finally {
      clearTimeout(timer);
      isAsking = false;
    }
    show();
  }

  async function keepAsking() {
    if (!document.hidden) await ask();
    setTimeout(keepAsking, EVERY_MS);
  }

  byId("spans").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    minutes = Number(button.dataset.minutes);
    for (const other of byId("spans").children) other.setAttribute("aria-pressed", String(other === button));
    if (told) showCharts();
  });
  let resizing = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => { if (told) showCharts(); });
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  keepAsking();
})();
