"use strict";
// Tables, then charts, of an agent (its JSON) or of a mount (its metrics). What comes from outside (names, errors)
// becomes text nodes only.
const PERIOD_MS = 2000, MOST_POINTS = 300, KEY = "wsync-token";
const at = id => document.getElementById(id);
const tables = new Map(), history = [];
let timer = 0, charts = null, turn = 0;

function make(tag, text, kind) {
  const out = document.createElement(tag);
  if (text !== undefined) out.textContent = text;
  if (kind) out.className = kind;
  return out;
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return i ? `${n.toFixed(1)} ${units[i]}` : `${n} ${units[i]}`;
}

// A table stays in the document and only its rows change, so that the focus and a reader's place are kept.
function show(title, columns, rows, numbers = []) {
  let table = tables.get(title);
  if (!table) {
    const frame = make("div", undefined, "scroll");
    table = make("table");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", title);
    table.append(make("caption", title), make("thead"), make("tbody"));
    const head = make("tr");
    for (const column of columns) {
      const cell = make("th", column);
      cell.scope = "col";
      if (numbers.includes(column)) cell.className = "number";
      head.append(cell);
    }
    table.tHead.append(head);
    frame.append(table);
    at("main").append(frame);
    tables.set(title, table);
  }
  const text = JSON.stringify(rows);
  if (table.shown === text) return;
  table.shown = text;
  table.tBodies[0].replaceChildren(...(rows.length ? rows : [{cells: ["none"]}]).map(row => {
    const out = make("tr", undefined, row.bad ? "bad" : "");
    row.cells.forEach((value, i) => {
      const cell = make(i ? "td" : "th", value, numbers.includes(columns[i]) ? "number" : "");
      if (!i) cell.scope = "row";
      out.append(cell);
    });
    return out;
  }));
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
  return reply.json();
}

// --- an agent ---

function showModels(models) {
  show("Models", ["Model", "Newest", "Run", "Ranks", "Published", "Abandoned", "How"], models.map(m =>
    ({cells: [m.name, m.newest, m.run, m.ranks, m.published, m.abandoned, m.how || ""]})), ["Newest", "Ranks", "Published", "Abandoned"]);
  show("Memory", ["Model", "Version", "State", "Bytes", "Leases", "Held by"], models.flatMap(m => m.slots.map(s =>
    ({cells: [m.name, s.version, s.state, size(s.bytes), s.leases, s.holders]}))), ["Version", "Bytes", "Leases"]);
}

// A version as the agent's JSON has it, a number or an object; or none.
function named(id) {
  return id ? id.version ?? id : "none";
}

function showMounts(mounts) {
  show("Mounts", ["Mount", "Model", "Loaded", "Under way", "Engines", "Serving", "State", "Last error"], mounts.map(({model, m}) => {
    const lacks = m.engines > m.serving;
    return {bad: m.silent || lacks || !!m.error, cells: [m.mount, model, named(m.loaded), m.under_way ? "yes" : "no", m.engines, m.serving,
      m.silent ? "silent" : lacks ? "engines missing" : m.error ? "failed" : "well", m.error || ""]};
  }), ["Engines", "Serving"]);
}

function showReleases(releases) {
  show("Releases", ["Release", "Models", "Phase", "Missing", "Why"], releases.map(r => {
    const missing = r.mounts.filter(m => ["waiting", "failed", "silent"].includes(m.state));
    return {bad: !!r.why, cells: [r.id, Object.entries(r.models).map(([name, v]) => `${name}/${v.version}`).join(", "), r.phase,
      missing.map(m => `${m.mount} (${m.state}${m.error ? ": " + m.error : ""})`).join("; "), r.why || ""]};
  }));
}

async function agent(status) {
  const [metrics, listed] = await Promise.all([get("/metrics").then(r => r.text()), json("/v1/releases")]);
  const asked = await Promise.all(status.models.map(async m => {
    const reply = await json(`/v1/${encodeURIComponent(m.name)}/mounts`);
    return (Array.isArray(reply) ? reply : reply.mounts).map(one => ({model: m.name, m: one}));
  }));
  showModels(status.models);
  showMounts(asked.flat());
  showReleases(Array.isArray(listed) ? listed : listed.releases);
  return {versions: status.models.map(m => [m.name, m.newest]), moved: parse(metrics).find(s => s.name === "wsync_agent_sent_bytes_total")?.value ?? 0};
}

// --- a mount ---

function parse(text) {
  const out = [];
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, key, value] of (found[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = value.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    out.push({name: found[1], labels, value: Number(found[3])});
  }
  return out;
}

function mount(samples) {
  const of = name => samples.filter(s => s.name === name);
  const one = (name, labels) => of(name).find(s => Object.entries(labels).every(([k, v]) => s.labels[k] === v))?.value ?? 0;
  const versions = of("wsync_current_version");
  const state = ({labels: {state}, value}) => value > 0 && state === "broken";
  show("Models", ["Model", "Version", "Behind", "Age"], versions.map(s =>
    ({bad: one("wsync_behind", s.labels) > 0, cells: [s.labels.model, s.value, one("wsync_behind", s.labels), `${Math.round(one("wsync_age_seconds", s.labels))} s`]})), ["Version", "Behind", "Age"]);
  show("Engines", ["Model", "State", "Engines"], of("wsync_engines").filter(s => s.value > 0).map(s =>
    ({bad: state(s), cells: [s.labels.model, s.labels.state, s.value]})), ["Engines"]);
  show("Pauses", ["Engine", "Model", "Switches", "Mean pause"], of("wsync_pause_seconds_count").map(s =>
    ({cells: [s.labels.engine, s.labels.model, s.value, s.value ? `${(1000 * one("wsync_pause_seconds_sum", s.labels) / s.value).toFixed(1)} ms` : "-"]})), ["Switches", "Mean pause"]);
  show("Memory", ["Figure", "Value"], [["used", "wsync_used_bytes"], ["may be used", "wsync_cache_bytes"], ["held by readers only", "wsync_waiting_bytes"],
    ["moved", "wsync_moved_bytes_total"]].filter(([, name]) => of(name).length).map(([label, name]) => ({cells: [label, size(one(name, {}))]})), ["Value"]);
  show("Counts", ["Metric", "Value"], samples.filter(s => /_total$/.test(s.name) && !/_bytes_total$/.test(s.name)).map(s =>
    ({bad: /failed|bad/.test(s.name) && s.value > 0, cells: [s.name.replace(/^wsync_/, "") + Object.values(s.labels).map(v => ` ${v}`).join(""), s.value]})), ["Value"]);
  return {versions: versions.map(s => [s.labels.model, s.value]), moved: one("wsync_moved_bytes_total", {}) + one("wsync_relay_sent_bytes_total", {})};
}

// --- charts ---

function canvas(label) {
  const frame = make("div", undefined, "chart"), out = make("canvas", label);
  out.setAttribute("role", "img");
  out.setAttribute("aria-label", `${label}; the tables above have the same figures`);
  frame.append(out);
  at("charts").append(frame);
  return new Chart(out, {type: "line", data: {labels: [], datasets: []}, options: {animation: false, maintainAspectRatio: false,
    scales: {y: {beginAtZero: true}},
    plugins: {title: {display: true, text: label}}, elements: {point: {radius: 2}}}});
}

function draw(point) {
  history.push({when: new Date().toLocaleTimeString(), ...point});
  if (history.length > MOST_POINTS) history.shift();
  at("charts").hidden = false;
  if (typeof Chart === "undefined") {
    at("charts-note").textContent = "Tables only: this wsync was built without chart.js.";
    return;
  }
  charts ??= {versions: canvas("Versions"), moved: canvas("MiB moved")};
  const colors = ["#2a78d6", "#d6722a", "#2a9d5c", "#a33bb5", "#8a7a1c"];
  const line = (label, i, value) => ({label, borderColor: colors[i % colors.length], backgroundColor: colors[i % colors.length], data: history.map(value)});
  const names = [...new Set(history.flatMap(h => h.versions.map(([name]) => name)))];
  charts.versions.data.datasets = names.map((name, i) => line(name, i, h => h.versions.find(([n]) => n === name)?.[1] ?? null));
  charts.moved.data.datasets = [line("moved", 0, h => h.moved / 1048576)];
  for (const chart of Object.values(charts)) {
    chart.data.labels = history.map(h => h.when);
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
    const status = await get("/v1/status");
    const point = status.ok ? await agent(await status.json()) : mount(parse(await (await get("/metrics")).text()));
    if (mine !== turn) return;
    at("main").hidden = false;
    at("login").hidden = true;
    at("leave").hidden = !sessionStorage.getItem(KEY);
    draw(point);
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
  history.length = 0;
  tables.clear();
  at("main").replaceChildren();
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
