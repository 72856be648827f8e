// The page: asks for what it shows every two seconds, and draws anew what has changed.

import { bars, line } from "./charts.js";
import { bytes, count, counted, cut, duration, h, part, rate, table, utc, viewLink } from "./dom.js";
import { graph } from "./graph.js";

const EVERY_MS = 2000; // between two looks
const RATE_MS = 30000; // over which rates are counted
const SILENT_MS = 15000; // after which sources that say nothing are told of, as on the live screen
const STAGES = ["net", "mirrors", "views", "stage", "intent", "commit", "publish", "memory"];

const data = { views: [], epochs: [], run: null, status: null, ready: null, at: 0, error: "", skew: 0 };
const drawn = new Map();

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (date) data.skew = Math.abs(date - Date.now()) < 2000 ? 0 : date - Date.now();
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.text);
  return told;
}

const now = () => Date.now() + data.skew;

async function look() {
  try {
    const [status, ready, epochs, run, views] = await Promise.all(
      ["api/status", "api/ready", "api/epochs", "api/run", "api/views"].map(ask));
    Object.assign(data, { status, ready, epochs, run, views, at: Date.now(), error: "" });
  } catch (error) {
    data.error = error instanceof TypeError ? "mview cannot be reached: nobody serves this page any more" : error.message;
  }
  await draw();
}

/** Who runs the store, as [text, class]. */
function runner(status) {
  if (!status.running) return ["stopped: nobody runs it", "bad"];
  const silent = status.watermark === null ? 0 : now() - status.watermark;
  if (silent > SILENT_MS) return [`runs; its sources are silent for ${duration(silent)}`, "warn"];
  return ["runs", "good"];
}

function head() {
  const { status } = data;
  const said = [h("h1", {}, h("a", { href: "#/" }, "mview"))];
  if (data.error) said.push(h("span", { class: "badge bad" }, "not reached"));
  else if (status) {
    const [text, how] = runner(status);
    said.push(h("span", { class: `badge ${how}`, id: "runner" }, text));
  }
  if (status) {
    if (status.running) said.push(h("span", { class: "soft" }, status.running));
    if (status.published_ms) said.push(h("span", {}, `epoch ${count(status.epoch)}`), h("span", { class: "soft" }, `published ${duration(Math.max(0, now() - status.published_ms))} ago`));
    said.push(h("span", { class: "soft" }, status.store));
  }
  document.title = !status ? "mview" : data.error ? "mview: not reached" : data.ready.ready ? "mview" : "(!) mview";
  return said;
}

function notices() {
  const parts = [];
  if (data.error) parts.push(h("section", { class: "bad", id: "lost" }, h("h2", {}, "No answer"), h("pre", {}, data.error), data.at ? h("p", {}, `What is shown is of ${utc(data.at)} UTC.`) : null));
  const { status, ready } = data;
  if (!status) return parts;
  if (ready.reasons.length) parts.push(h("section", { class: "warn", id: "reasons" }, h("h2", {}, "Not all is fresh"), h("ul", {}, ready.reasons.map((reason) => h("li", {}, reason)))));
  if (status.failure) {
    const { at_ms, subject, what, where, got, allowed, safe, hint } = status.failure;
    const lines = [["in", subject], ["where", where], ["got", got], ["allowed", allowed], ["data", safe], ["next", hint]].filter(([, text]) => text).map(([name, text]) => `${name}: ${text}`);
    parts.push(h("section", { class: "bad", id: "failure" }, h("h2", {}, `The last run ended by an error, ${utc(at_ms)} UTC`), h("pre", {}, [what, ...lines].join("\n"))));
  }
  for (const view of status.views.filter((each) => each.degraded)) parts.push(h("section", { class: "bad" }, h("h2", {}, h("a", { href: viewLink(view.name) }, view.name), " is degraded"), h("pre", {}, `${view.degraded}: mview quarantine list`)));
  for (const view of status.views.filter((each) => each.halted)) parts.push(h("section", { class: "bad" }, h("h2", {}, h("a", { href: viewLink(view.name) }, view.name), " has halted"), h("pre", {}, view.halted)));
  const failing = [...status.views.flatMap((view) => view.sinks.map((sink) => ({ view: view.name, name: sink.name, ...sink }))), ...status.lights.map((light) => ({ ...light, name: light.sink }))].filter((sink) => sink.error);
  for (const sink of failing) parts.push(h("section", { class: "bad" }, h("h2", {}, `Sink ${sink.name} of ${sink.view} does not get on, since ${utc(sink.error_since_ms)} UTC`), h("pre", {}, sink.error)));
  return parts;
}

/** Changed rows a second, of late: of a view, or of a table where a run tells. */
function viewRate(name) {
  const since = now() - RATE_MS;
  const rows = data.epochs.filter((epoch) => epoch.published_ms > since && epoch.views[name]).reduce((sum, { views: { [name]: of } }) => sum + of.inserted + of.updated + of.deleted, 0);
  return rate(rows / (RATE_MS / 1000));
}

/** The epochs of which it is known what they took. */
const noted = () => data.epochs.filter((epoch) => epoch.took_ms !== null);

function tableRate(name) {
  const since = now() - RATE_MS, known = noted();
  if (!known.length) return null;
  return rate(known.filter((epoch) => epoch.published_ms > since).reduce((sum, epoch) => sum + (epoch.changes[name] ?? 0), 0) / (RATE_MS / 1000));
}

const isBad = (view) => Boolean(view.halted || view.missed || view.degraded);

/** How old a view is, and what is wrong with it. promised: what stands behind the age. */
const lagOf = (view, promised = "") => (view.halted ? "HALTED" : `${duration(view.lag_ms)}${promised}${view.missed ? ", MISSED" : ""}${view.degraded ? ", DEGRADED" : ""}`);

function nodesAndEdges() {
  const { status } = data, nodes = [], edges = [];
  const tables = new Map(status.tables.map((each) => [each.name, each]));
  const states = new Map(status.views.map((each) => [each.name, each]));
  const names = new Set([...data.views.map((view) => view.name), ...states.keys()]);
  const read = new Set(data.views.flatMap((view) => view.reads).filter((name) => !names.has(name)));
  for (const name of new Set([...tables.keys(), ...read])) {
    const state = tables.get(name), per = tableRate(name);
    const rows = state ? `${counted(state.rows, "row")}${state.phase === "loaded" ? "" : `, ${state.held && state.phase !== "halted" ? "held" : state.phase}`}` : "not copied";
    nodes.push({ id: `t:${name}`, name, kind: "table", state: state && state.phase !== "loaded" ? "warn" : "", lines: [[rows, "soft"], ...(per ? [[`${per} changed rows`, "soft"]] : [])] });
  }
  const reads = new Map(data.views.map((view) => [view.name, view.reads]));
  const lights = new Map(status.lights.map((light) => [`${light.view}\n${light.sink}`, light]));
  const sinksOf = new Map(data.views.map((view) => [view.name, view.sinks]));
  for (const name of names) {
    const view = states.get(name);
    const light = !view;
    const late = view && isBad(view);
    const lag = !view ? "" : view.halted ? "HALTED" : `lag ${lagOf(view, view.freshness_ms === null ? "" : ` of ${duration(view.freshness_ms)}`)}, ${viewRate(name)}`;
    nodes.push({ id: `v:${name}`, name, kind: "view", state: late ? "bad" : "", href: viewLink(name),
      lines: light ? [["light", "soft"]] : [[`${counted(view.rows, "row")}, ${view.strategy}`, "soft"], [lag, late ? "bad" : "soft"]] });
    for (const other of reads.get(name) ?? []) edges.push([names.has(other) ? `v:${other}` : `t:${other}`, `v:${name}`]);
    for (const sink of sinksOf.get(name) ?? []) {
      const follows = view?.sinks.find((each) => each.name === sink), brought = lights.get(`${name}\n${sink}`);
      let lines = [["the view's own table", "soft"]], state = "";
      if (follows) {
        state = follows.error ? "bad" : "";
        const behind = follows.epoch === null ? "not filled yet" : follows.waiting ? `${follows.waiting < 0 ? "some epochs" : counted(follows.waiting, "epoch")} behind, ${bytes(follows.waiting_bytes)}` : "up to date";
        lines = [[follows.table, "soft"], [follows.error ? "does not get on" : follows.waits_for ? `waits for its ${follows.waits_for}` : behind, follows.error ? "bad" : "soft"]];
      } else if (brought) {
        state = brought.error ? "bad" : "";
        lines = [[`${brought.phase}, ${counted(brought.rows, "row")} brought`, "soft"], [brought.error ? "does not get on" : brought.waits_for ? `waits for its ${brought.waits_for}` : `lag ${duration(brought.lag_ms)}`, brought.error ? "bad" : "soft"]];
      }
      nodes.push({ id: `s:${name}\n${sink}`, name: sink, kind: "sink", state, lines });
      edges.push([`v:${name}`, `s:${name}\n${sink}`]);
    }
  }
  for (const name of status.unbuilt) if (!names.has(name)) nodes.push({ id: `v:${name}`, name, kind: "view", state: "warn", lines: [["asked for, not built yet", "warn"]] });
  return [nodes, edges];
}

const inner = (share = 1) => Math.max(200, Math.floor((Math.min(document.documentElement.clientWidth, 1240) - 24 - (share < 1 ? 12 : 0)) * share - 26)); // a window may have no width at all
const half = () => (document.documentElement.clientWidth > 760 ? inner(0.5) : inner());

function loads() {
  const run = new Map((data.run?.loads ?? []).map((load) => [load.table, load]));
  const open = data.status.tables.filter((each) => each.phase !== "loaded");
  if (!open.length) return [];
  return [part("Loading", open.map((each) => {
    const said = [];
    if (each.phase === "absent") said.push("not begun");
    else said.push(`${count(each.rows)}${each.rows_expected === null ? "" : ` of about ${count(each.rows_expected)}`} rows count, ${count(each.chunks_released)}${each.chunks === null ? "" : ` of ${count(each.chunks)}`} chunks`);
    const read = run.get(each.name);
    if (read && read.read > each.rows) said.push(`${counted(read.read, "row")} read`);
    if (each.held) said.push(`held: ${each.held}`);
    return [h("div", {}, each.name, ": ", h("span", { class: each.held ? "warn" : "soft" }, said.join("; "))),
      each.chunks ? h("progress", { max: each.chunks, value: each.chunks_released, "aria-label": `load of ${each.name}` }) : null];
  }))];
}

/** Where each connection is, if there are several: which of them keeps the views waiting. */
function sources() {
  const { sources: told } = data.status;
  if (!told.length) return [];
  const whole = (source) => source.whole === null ? "not told by the log" : source.whole ? "whole" : "a part of one is shown";
  return [part("Sources", table([["", ""], ["read up to", "number"], ["transactions", ""]], told.map((source) => [source.name, source.lag_ms === null ? "unknown" : `${duration(source.lag_ms)} ago`, whole(source)])))];
}

function freshness(epochs, limit) {
  const points = epochs.filter((epoch) => epoch.lag_ms !== null).map((epoch) => ({ x: epoch.published_ms, y: epoch.lag_ms, end: utc(epoch.published_ms).slice(11), label: `epoch ${count(epoch.epoch)}, ${utc(epoch.published_ms)} UTC: ${duration(epoch.lag_ms)}` }));
  return part("How old it was when published", line(half(), "age at publishing, by epoch", points, duration, limit));
}

function stages() {
  const known = noted();
  if (!known.length) return part("Time of epochs, by stage", h("p", { class: "soft" }, "It is not known of any epoch: a run notes it in the store's folder logs."));
  const these = known.map((epoch) => ({ end: `epoch ${count(epoch.epoch)}`, label: `epoch ${count(epoch.epoch)}`, parts: epoch.stages }));
  return part("Time of epochs, by stage", bars(half(), "milliseconds by stage and epoch", these, STAGES, duration));
}

function viewList() {
  const rows = data.status.views.map((view) => [h("a", { href: viewLink(view.name) }, view.name), count(view.rows), view.strategy,
    h("span", { class: isBad(view) ? "bad" : "" }, lagOf(view)), view.freshness_ms === null ? "-" : duration(view.freshness_ms), viewRate(view.name),
    view.runs.length ? `${view.runs[0].strategy}, ${view.runs[0].executor}, ${duration(view.runs[0].seconds * 1000)}` : "-"]);
  if (!rows.length) return [];
  return part("Views", table([["", ""], ["rows", "number"], ["", ""], ["lag", "number"], ["promised", "number"], ["changed rows", "number"], ["last epoch", ""]], rows));
}

function changesOf(views) {
  const total = { inserted: 0, updated: 0, deleted: 0 };
  for (const view of Object.values(views)) for (const kind of Object.keys(total)) total[kind] += view[kind];
  return `+${count(total.inserted)} ~${count(total.updated)} -${count(total.deleted)}`;
}

function history(epochs) {
  const rows = epochs.slice(-15).reverse().map((epoch) => [count(epoch.epoch), `${utc(epoch.published_ms)} UTC`, duration(epoch.lag_ms), epoch.took_ms === null ? "-" : duration(epoch.took_ms), changesOf(epoch.views), cut(Object.keys(epoch.views).join(", ") || "-", 120)]);
  if (!rows.length) return [];
  return part("Newest epochs", table([["epoch", "number"], ["", "short"], ["age", "number"], ["took", "number"], ["", "short"], ["views", ""]], rows));
}

/** How a view got to its newest epochs. */
function viewHistory(epochs, name) {
  const rows = epochs.slice(-12).reverse().map(({ epoch, published_ms, lag_ms, views: { [name]: of } }) => [count(epoch), h("span", { title: `${utc(published_ms)} UTC` }, utc(published_ms).slice(11)), duration(lag_ms),
    of.seconds === null ? "built" : duration(of.seconds * 1000), of.executor === "local" ? "in process" : "on Spark", changesOf({ [name]: of })]);
  return part("Newest epochs that changed it", table([["epoch", "number"], ["UTC", "short"], ["age", "number"], ["took", "number"], ["", "short"], ["", "short"]], rows));
}

function messages() {
  const told = data.run?.messages ?? [];
  if (!told.length) return [];
  const text = told.slice(-30).reverse().map((event) => `${event.time.replace("T", " ").slice(0, 19)}  ${event.event === "halt" ? `view ${event.view} halts: ${event.error}` : event.text}`).join("\n");
  return [part("What the run says", h("pre", {}, text))];
}

function overview() {
  if (!data.status) return [];
  const [nodes, edges] = nodesAndEdges();
  return [
    h("section", { id: "graph" }, h("h2", {}, "Tables, views, sinks"), nodes.length ? graph(inner(), nodes, edges) : h("p", { class: "soft" }, "The store has none yet.")),
    ...loads(),
    h("div", { class: "pair" }, freshness(data.epochs, null), stages()),
    viewList(),
    ...sources(),
    history(data.epochs),
    ...messages(),
  ];
}

const asked = { view: "", epoch: -1, at: 0, plan: null, rows: null };

/** The plan and some rows of a view: asked for when it is opened, then not more often than epochs come. */
async function lookAt(name) {
  if (asked.view !== name) Object.assign(asked, { view: name, epoch: -1, at: 0, plan: null, rows: null });
  if (asked.epoch === data.status.epoch || Date.now() - asked.at < 5000) return;
  asked.at = Date.now();
  const told = await Promise.all(["plan", "rows"].map((what) => ask(`api/${what}?view=${encodeURIComponent(name)}`).catch((error) => ({ error: error.message }))));
  if (asked.view === name) [asked.epoch, asked.plan, asked.rows] = [data.status.epoch, told[0], told[1]];
}

function sampled(rows) {
  if (!rows) return h("p", { class: "soft" }, "…");
  if (rows.error) return h("pre", {}, rows.error);
  const cells = rows.rows.map((row) => row.map((value) => value === null ? h("span", { class: "soft" }, "NULL") : value));
  const more = rows.more_columns ? h("p", { class: "soft" }, `and ${counted(rows.more_columns, "more column")}`) : null;
  return [h("p", { class: "soft" }, `Of epoch ${count(rows.epoch)}, in no order.`), h("div", { class: "wide" }, table(rows.columns.map(([name, type]) => [`${name}: ${type}`, ""]), cells, "rows")), more];
}

function viewPage(name) {
  if (!data.status) return [];
  const view = data.status.views.find((each) => each.name === name), text = data.views.find((each) => each.name === name);
  if (!view && !text) return [part(name, h("p", {}, "There is no such view. ", h("a", { href: "#/" }, "All views")))];
  const facts = [["kept by", view?.strategy ?? "light: nothing is kept"], ["rows", view ? count(view.rows) : "-"],
    ["lag", view ? h("span", { class: isBad(view) ? "bad" : "" }, lagOf(view)) : null], ["promised", view?.freshness_ms == null ? null : duration(view.freshness_ms)],
    ["changed rows", view ? viewRate(name) : null], ["table", view?.path], ["of", text?.file], ["reads", text?.reads.join(", ")], ["sinks", text?.sinks.join(", ")],
    ...(view?.sinks ?? []).map((sink) => [`sink ${sink.name}`, `${sink.table}: ${sink.epoch === null ? "not filled yet" : `epoch ${count(sink.epoch)}, ${sink.waiting ? `behind, ${bytes(sink.waiting_bytes)} wait` : "up to date"}`}`])].filter(([, value]) => value);
  const epochs = data.epochs.filter((epoch) => epoch.views[name]);
  const end = (epoch) => `epoch ${count(epoch.epoch)}`;
  const took = epochs.filter((epoch) => epoch.views[name].seconds !== null).map((epoch) => ({ end: end(epoch), label: end(epoch), parts: { [epoch.views[name].executor === "local" ? "in process" : "on Spark"]: epoch.views[name].seconds * 1000 } }));
  const rows = epochs.map((epoch) => ({ end: end(epoch), label: end(epoch), parts: epoch.views[name] }));
  return [
    part(name, text?.comment ? h("p", {}, text.comment) : null, h("dl", {}, facts.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)]))),
    view ? h("div", { class: "pair" }, freshness(epochs, view.freshness_ms), part("Time to work its changes out", bars(half(), "milliseconds by epoch", took, ["in process", "on Spark"], duration))) : null,
    view ? h("div", { class: "pair" }, part("Changed rows", bars(half(), "rows by epoch", rows, ["inserted", "updated", "deleted"], count)), viewHistory(epochs, name)) : null,
  ];
}

function viewTexts(name) {
  const text = data.views.find((each) => each.name === name);
  if (!text) return [];
  const plan = asked.view === name ? asked.plan : null;
  return [part("SQL", h("pre", { id: "sql" }, text.sql)), text.mode === "light" ? null : part("Plan", h("pre", { class: "plan", id: "plan" }, plan ? plan.error ?? plan.text ?? "Only Spark can tell." : "…"))];
}

/** Draw a block anew, if what it is made of has changed: what somebody selects elsewhere stays selected. */
function block(parent, id, made, key = null) {
  let element = document.getElementById(id);
  if (!element) { element = h("div", { id }); parent.append(element); drawn.delete(id); }
  if (key !== null && drawn.get(id) === key) return;
  drawn.set(id, key);
  element.replaceChildren(...[made()].flat(Infinity).filter(Boolean));
}

async function draw() {
  document.getElementById("head").replaceChildren(...head());
  document.body.classList.toggle("lost", data.error !== "");
  const main = document.getElementById("main"), [, name] = location.hash.match(/^#\/view\/(.+)$/) ?? [];
  let view = null;
  try { view = name === undefined ? null : decodeURIComponent(name); } catch { view = name; }
  const page = view === null ? "overview" : "view";
  if (main.dataset.page !== page) { main.replaceChildren(); main.dataset.page = page; drawn.clear(); }
  const width = document.documentElement.clientWidth;
  block(main, "notices", notices, JSON.stringify([data.error, data.status?.failure, data.status?.views.map((each) => [each.name, each.halted, each.degraded, each.sinks.map((sink) => sink.error)]), data.status?.lights.map((light) => light.error), data.ready]));
  if (view === null) { block(main, "overview", overview); return; }
  block(main, "facts", () => viewPage(view));
  block(main, "texts", () => viewTexts(view), JSON.stringify([view, width, data.views, asked.view === view ? asked.plan : null]));
  block(main, "sample", () => (data.status?.views.some((each) => each.name === view) ? part("Some rows", sampled(asked.view === view ? asked.rows : null)) : []), JSON.stringify([view, asked.rows]));
  if (data.status && !data.error && data.status.views.some((each) => each.name === view)) {
    const before = asked.epoch;
    await lookAt(view);
    if (asked.epoch !== before && location.hash === viewLink(view)) await draw();
  } else if (data.views.some((each) => each.name === view && each.mode !== "light")) asked.epoch = -1;
}

window.addEventListener("hashchange", () => { window.scrollTo(0, 0); draw(); });
window.addEventListener("resize", () => draw());

for (;;) {
  if (!document.hidden) await look();
  await new Promise((done) => setTimeout(done, EVERY_MS));
}
