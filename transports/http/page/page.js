"use strict";
// Tables, then charts, of an agent or of a mount: both answer GET /v1/status. What comes from outside (names, errors) becomes
// text nodes only.
const PERIOD_MS = 2000, KEY = "wsync-token";
const at = id => document.getElementById(id);
const tables = new Map();
let timer = 0, charts = null, turn = 0;

function make(tag, text, kind) {
  const out = document.createElement(tag);
  if (text !== undefined) out.textContent = text;
  if (kind) out.className = kind;
  return out;
}

// --- figures as text; "" for what is not known ---

function size(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
  return i ? `${n.toFixed(n < 100 ? 1 : 0)} ${units[i]}` : `${n} ${units[i]}`;
}

function seconds(s) {
  if (s === null || s === undefined || !(s >= 0)) return "";
  return s < 0.001 ? `${Math.round(1e6 * s)} \u00b5s` : s < 0.1 ? `${(1000 * s).toFixed(1)} ms` : s < 100 ? `${s.toFixed(2)} s` : `${Math.round(s)} s`;
}

function moment(ms) {
  return ms ? new Date(ms).toLocaleString([], {dateStyle: "short", timeStyle: "medium"}) : "";
}

// --- tables ---

// A value is a text, a number, or {text, summary, more}: a text with more of it that is shown on demand.
function fill(cell, value) {
  const text = value?.text ?? value ?? "", all = make("div", text);
  if (text === "") return; // a narrow page leaves it out
  if (value.more) {
    const more = make("details");
    more.append(make("summary", value.summary), make("div", value.more));
    all.append(more);
  }
  cell.append(all);
}

// Makes a row's cells what they are to be; those that are so already stay, with what a reader has opened in them.
function update(out, columns, row) {
  out.className = row.bad ? "bad" : row.none ? "none" : "";
  row.cells.forEach((value, i) => {
    const text = JSON.stringify(value);
    if (out.shown[i] === text) return;
    out.shown[i] = text;
    const cell = make(i ? "td" : "th", undefined, row.none ? "" : columns[i][1] || "");
    cell.setAttribute("role", i ? "cell" : "rowheader");
    cell.dataset.column = columns[i][0];
    if (!i) cell.scope = "row";
    if (row.none) cell.colSpan = columns.length;
    fill(cell, value);
    if (out.cells[i]) out.cells[i].replaceWith(cell);
    else out.append(cell);
  });
}

function newRow() {
  const out = make("tr");
  out.setAttribute("role", "row");
  out.shown = [];
  return out;
}

// Rows are the same ones while their first cell is; none is moved, so that the focus and a reader's place are kept.
function arrange(table, columns, rows) {
  const count = new Map(), wanted = new Map(), body = table.tBodies[0];
  for (const row of rows) {
    const n = (count.get(row.cells[0]) ?? 0) + 1;
    count.set(row.cells[0], n);
    wanted.set(`${row.none} ${n} ${row.cells[0]}`, row);
  }
  for (const [key, out] of table.rowOf) {
    if (wanted.has(key)) continue;
    out.remove();
    table.rowOf.delete(key);
  }
  let place = body.firstChild;
  for (const [key, row] of wanted) {
    const out = table.rowOf.get(key) ?? newRow();
    table.rowOf.set(key, out);
    if (out === place) place = place.nextSibling;
    else body.insertBefore(out, place);
    update(out, columns, row);
  }
}

// Columns: [name, "number" or "long" where it is one]. A table stays in the document. Roles are said, as a narrow page shows
// rows as blocks.
function show(title, columns, rows) {
  let table = tables.get(title);
  if (!table) {
    table = make("table");
    table.setAttribute("role", "table");
    if (columns.length === 2) table.className = "pairs";
    table.append(make("caption", title), make("thead"), make("tbody"));
    const head = make("tr");
    head.setAttribute("role", "row");
    for (const [name, kind] of columns) {
      const cell = make("th", name, kind || "");
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      head.append(cell);
    }
    table.tHead.append(head);
    table.tHead.setAttribute("role", "rowgroup");
    table.tBodies[0].setAttribute("role", "rowgroup");
    at("main").append(table);
    tables.set(title, table);
    table.rowOf = new Map();
  }
  arrange(table, columns, rows.length ? rows : [{none: true, cells: ["none"]}]);
}

// How a version came, and why by no better way.
function came(how, whyNot) {
  return {text: how || "", summary: "why not by other ways", more: whyNot || ""};
}

class Refused extends Error {}

async function get(path) {
  const token = sessionStorage.getItem(KEY);
  const reply = await fetch(path, {cache: "no-store", credentials: "omit", redirect: "error",
    signal: AbortSignal.timeout(10000), headers: token ? {Authorization: `Bearer ${token}`} : {}});
  if (reply.status === 401) throw new Refused(token ? "The token is wrong or has expired." : "A token is needed.");
  if (reply.status === 403) throw new Refused("The token does not have the role read, or not for all models.");
  return reply;
}

async function json(path) {
  const reply = await get(path);
  if (!reply.ok) throw new Error(`GET ${path} was answered ${reply.status}`);
  // Numbers that are too large for JavaScript's own stay the text that they were (where the browser tells it).
  return JSON.parse(await reply.text(), (key, value, of) => typeof value === "number" && !Number.isSafeInteger(value) && /^\d+$/.test(of?.source ?? "") ? of.source : value);
}

// --- an agent ---

// A version as the agent's JSON has it, a number or an object; or none.
function named(id) {
  return id ? id.version ?? id : "none";
}

function showModels(models) {
  show("Models", [["Model"], ["Newest", "number"], ["Run"], ["Ranks", "number"], ["Published", "number"], ["Abandoned", "number"], ["Copied how"]],
    models.map(m => ({cells: [m.name, m.newest, m.run, m.ranks, m.published, m.abandoned, m.how || ""]})));
}

// How many versions one of the same run is behind; "" where that cannot be told.
function lag(loaded, newest) {
  return loaded && loaded.run === newest.run && newest.version >= loaded.version ? newest.version - loaded.version : "";
}

function mountState(m) {
  if (m.silent) return "silent";
  if (m.error) return "failed";
  if (m.engines > m.serving) return "engines missing";
  return m.under_way ? "on its way" : "well";
}

function showMounts(mounts) {
  show("Mounts: who has which version", [["Mount"], ["Model"], ["Version", "number"], ["Behind", "number"], ["State"], ["Engines", "number"], ["Serving", "number"],
    ["How it came", "long"], ["Moved", "number"], ["Time to loaded", "number"]],
  mounts.map(({model, m, newest}) => ({bad: ["silent", "failed", "engines missing"].includes(mountState(m)), cells: [m.mount, model, named(m.loaded), lag(m.loaded, newest), mountState(m),
    m.engines, m.serving, m.came ? came(m.came.how, m.came.why_not) : m.loaded ? "not said" : "", m.came ? size(m.came.moved || 0) : "",
    m.came?.loaded_us ? seconds(m.came.loaded_us / 1e6) : ""]})));
}

function showReleases(releases) {
  show("Releases", [["Release", "number"], ["Versions"], ["Phase"], ["Missing", "long"], ["Why", "long"]], releases.map(r => {
    const missing = r.mounts.filter(m => ["waiting", "failed", "silent"].includes(m.state));
    return {bad: !!r.why, cells: [r.id, Object.entries(r.models).map(([name, v]) => `${name}/${v.version}`).join(", "), r.phase,
      missing.map(m => `${m.mount} (${m.state}${m.error ? ": " + m.error : ""})`).join("; "), r.why || ""]};
  }));
}

function showPublished(history) {
  show("Versions over time", [["Version"], ["Published"], ["Size", "number"], ["Delta", "number"], ["Moved to mounts", "number"], ["Mounts that loaded it", "number"],
    ["Published to last loaded", "number"]],
  history.map(h => ({cells: [`${h.model}/${h.version}`, moment(h.when), size(h.bytes), h.delta ? size(h.delta) : "", size(h.moved), h.mounts, seconds(h.loaded)]})));
}

function showAgentMemory(models) {
  show("Memory", [["Model"], ["Version", "number"], ["State"], ["Bytes", "number"], ["Leases", "number"], ["Held by", "long"]], models.flatMap(m => m.slots.map(s =>
    ({cells: [m.name, s.version, s.state, size(s.bytes), s.leases, s.holders]}))));
}

function showErrors(errors) {
  show("Last errors", [["Where"], ["When"], ["What", "long"]], errors.map(cells => ({bad: true, cells})));
}

function agent(status, listed) {
  const mounts = status.models.flatMap(model => model.mounts.map(m => ({model: model.name, m, newest: {version: model.newest, run: model.run}})));
  const history = status.models.flatMap(m => m.history.map(h => ({model: m.name, version: h.version, when: h.published_us / 1000, bytes: h.bytes,
    delta: h.delta_bytes, moved: h.moved, mounts: h.mounts, loaded: h.loaded_us ? (h.loaded_us - h.published_us) / 1e6 : null})));
  showModels(status.models);
  showMounts(mounts);
  showReleases(Array.isArray(listed) ? listed : listed.releases);
  showPublished([...history].sort((a, b) => b.when - a.when));
  showErrors(mounts.flatMap(({model, m}) => [
    ...(m.error ? [[m.mount, "", `${model}/${named(m.failed)}: ${m.error}`]] : []),
    ...(m.last_error ? [[m.mount, moment(m.last_error.at_us / 1000), `${model}: ${m.last_error.command}: ${m.last_error.message}`]] : []),
    ...(m.machine?.source_error ? [[m.mount, "", `its source ${m.machine.source}: ${m.machine.source_error}`]] : [])]));
  showAgentMemory(status.models);
  return history;
}

// --- a mount ---

function behind(m) {
  const [now, newest] = [m.current, m.latest].map(v => /^\d+$/.test(v ?? "") ? BigInt(v) : null);
  return now === null || newest === null || newest < now ? "" : String(newest - now);
}

function showMountModels(models) {
  show("Models", [["Model"], ["Version", "number"], ["Newest", "number"], ["Behind", "number"], ["Policy"], ["Switches", "number"], ["Failed", "number"], ["State"]],
    models.map(m => ({bad: m.quarantined || !!m.lacking, cells: [m.model, m.current ?? "none", m.latest ?? "none", behind(m), m.policy, m.switches, m.switches_failed,
      m.quarantined ? "in quarantine" : m.lacking ? `lacking ${m.lacking}` : m.switching ? "switching" : "well"]})));
}

function showEngines(models) {
  show("Engines and their pauses", [["Engine"], ["Model"], ["State"], ["Serves", "number"], ["Kind"], ["Pauses", "number"], ["Last pause", "number"], ["Mean pause", "number"]],
    models.flatMap(m => m.engines.map(e => ({bad: ["broken", "unreachable", "stale"].includes(e.state), cells: [e.name, m.model, e.state, e.serving, e.kind, e.pauses,
      e.pauses ? seconds(e.pause) : "", e.pauses ? seconds(e.paused / e.pauses) : ""]}))));
}

function showVersions(models) {
  show("Versions here", [["Version"], ["State"], ["Size", "number"], ["Here", "number"], ["How it came", "long"]],
    models.flatMap(m => m.versions.map(v => ({bad: v.state === "failed", cells: [`${m.model}/${v.name}`, v.state + (v.at_source ? "" : ", gone at its source"),
      v.bytes ? size(v.bytes) : "", v.bytes ? `${Math.floor(100 * v.have / v.bytes)} %` : "", v.error || came(v.how || "not yet", v.why_not)]})).reverse()));
}

function showArrivals(history) {
  show("Versions over time", [["Version"], ["Came"], ["Size", "number"], ["Moved", "number"], ["Fetched in", "number"], ["Known to loaded", "number"], ["How it came", "long"]],
    history.map(h => ({bad: !!h.error, cells: [`${h.model}/${h.version}`, moment(h.when), size(h.bytes), size(h.moved), seconds(h.took), seconds(h.loaded),
      h.error ? `failed${h.pulls > 1 ? ` ${h.pulls} times` : ""}: ${h.error}` : came(h.how, h.whyNot)]})));
}

function showSources(sources) {
  show("Sources", [["Source"], ["State"], ["By"], ["Heard of", "number"], ["Round trip", "number"]], sources.map(s =>
    ({bad: !s.up, cells: [s.url, s.up ? "up" : "down", s.transport, s.contact >= 0 ? `${Math.round(s.contact)} s ago` : "never", seconds(s.rtt)]})));
}

function showMountMemory(status) {
  show("Memory and counts", [["Figure"], ["Value", "number"]], [["used", size(status.used_bytes)], ["may be used", size(status.cache_bytes)],
    ["held by readers only", size(status.waiting_bytes)], ["moved", size(status.moved_bytes)], ["measured speed", status.link_bytes_s ? `${size(status.link_bytes_s)}/s` : ""],
    ["pulls", status.pulls], ["pulls that failed", status.pulls_failed], ["requests tried again", status.retries], ["bad blocks", status.bad_blocks]].map(cells => ({cells})));
}

function errorsOf(status) {
  const last = (where, e) => e ? [[where, moment(Date.parse(e.time)), `${e.command}: ${e.message} (${e.errno})`]] : [];
  const said = (where, text) => text ? [[where, "", text]] : [];
  return [...last("mount", status.last_error), ...said("config", status.config_error), ...status.sources.flatMap(s => said(s.url, s.error)),
    ...status.models.flatMap(m => [...last(m.model, m.last_error), ...m.engines.flatMap(e => said(`engine ${e.name}`, e.error)),
      ...m.versions.flatMap(v => said(`${m.model}/${v.name}`, v.error))])];
}

function mount(status) {
  const history = status.models.flatMap(m => m.history.map(h => ({model: m.model, version: h.name, when: Date.parse(h.at), bytes: h.bytes, moved: h.moved,
    took: h.seconds, loaded: h.loaded, how: h.how, whyNot: h.why_not, error: h.error, pulls: h.pulls})));
  showMountModels(status.models);
  showEngines(status.models);
  showVersions(status.models);
  showArrivals([...history].sort((a, b) => b.when - a.when));
  showErrors(errorsOf(status));
  showSources(status.sources);
  showMountMemory(status);
  return history;
}

// --- charts of the table of versions over time ---

const COLORS = ["#3f87d9", "#d9792b", "#3aa06a", "#a957bd", "#9a8a26"];

function canvas(label) {
  const frame = make("div", undefined, "chart"), out = make("canvas", label);
  out.setAttribute("role", "img");
  out.setAttribute("aria-label", `${label}; the table of versions over time has the same figures`);
  frame.append(out);
  at("canvases").append(frame);
  return new Chart(out, {type: "bar", data: {labels: [], datasets: []}, options: {animation: false, maintainAspectRatio: false,
    scales: {x: {ticks: {maxRotation: 0, autoSkip: true}, grid: {display: false}}, y: {beginAtZero: true}},
    plugins: {title: {display: true, text: label}, legend: {position: "bottom"}}}});
}

function draw(history) {
  at("charts").hidden = history.length === 0;
  if (typeof Chart === "undefined") {
    at("charts-note").textContent = "Tables only: this wsync was built without chart.js.";
    return;
  }
  const color = getComputedStyle(document.body).color; // of the scheme, dark or light
  const text = JSON.stringify([history, color]);
  if (charts?.shown === text) return;
  charts ??= {drawn: {moved: canvas("MB moved, by version"), loaded: canvas("Seconds to loaded, by version")}};
  charts.shown = text;
  const sorted = [...history].sort((a, b) => a.when - b.when), models = [...new Set(sorted.map(h => h.model))];
  const labels = sorted.map(h => models.length > 1 ? `${h.model}/${h.version}` : String(h.version));
  for (const [chart, value] of [[charts.drawn.moved, h => h.moved / 1e6], [charts.drawn.loaded, h => h.loaded]]) {
    chart.data.labels = labels;
    chart.data.datasets = models.map((model, i) => ({label: model, backgroundColor: COLORS[i % COLORS.length], maxBarThickness: 18, grouped: false,
      data: sorted.map(h => h.model === model ? value(h) : null)}));
    chart.options.plugins.legend.display = models.length > 1;
    chart.options.color = chart.options.plugins.title.color = color;
    for (const axis of Object.values(chart.options.scales)) {
      axis.ticks = {...axis.ticks, color};
      axis.grid = {...axis.grid, color: "#8884"};
    }
    chart.update("none");
  }
}

// --- the page's life ---

function say(text) {
  if (at("state").textContent !== text) at("state").textContent = text; // a screen reader says each change
}

async function look() {
  const mine = ++turn; // an answer that comes after the token was forgotten is not shown
  clearTimeout(timer);
  let again = true;
  try {
    const status = await json("/v1/status");
    const releases = "mountpoint" in status ? null : await json("/v1/releases");
    if (mine !== turn) return;
    const history = releases ? agent(status, releases) : mount(status);
    at("main").hidden = false;
    at("login").hidden = true;
    at("leave").hidden = !sessionStorage.getItem(KEY);
    draw(history);
    say("Live.");
  } catch (e) {
    if (mine !== turn) return;
    if (e instanceof Refused) {
      leave();
      again = false;
      say(e.message);
    } else {
      say(`No answer, the tables are old: ${e.message}. Trying again.`);
    }
  }
  if (again) timer = setTimeout(look, PERIOD_MS);
}

function leave() {
  turn++;
  clearTimeout(timer);
  sessionStorage.removeItem(KEY);
  tables.clear();
  at("main").replaceChildren();
  at("canvases").replaceChildren();
  Object.values(charts?.drawn ?? {}).forEach(chart => chart.destroy());
  charts = null;
  at("main").hidden = at("charts").hidden = at("leave").hidden = true;
  at("login").hidden = false;
  say("A token is needed.");
}

at("login").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  at("token").value = "";
  look();
});
at("leave").addEventListener("click", () => { leave(); at("token").focus(); });
at("where").textContent = location.host;
look();
