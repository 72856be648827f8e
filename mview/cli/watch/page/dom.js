// Elements and texts. All text comes in as text nodes or attributes: nothing is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** An HTML element. */
export const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

/** An SVG element. */
export const s = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

/** The address of a view's page. */
export const viewLink = (name) => `#/view/${encodeURIComponent(name)}`;

/** A whole number with separators. */
export const count = (value) => Math.round(value).toLocaleString("en");

/** So many of something: "1 row", "1,200 rows". */
export const counted = (value, noun) => `${count(value)} ${noun}${Math.round(value) === 1 ? "" : "s"}`;

/** Milliseconds for people; "-" where unknown. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** Bytes for people. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A time of day in UTC, with the date. */
export const utc = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

/** A rate for people. */
export const rate = (perSecond) => `${perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)}/s`;

/** The first characters of a text. */
export const cut = (text, size) => (text.length > size ? `${text.slice(0, Math.max(1, size - 1))}…` : text);

/** A table. Columns: [heading, kind]; kind "number" is set right. Cells: texts or nodes. */
export function table(columns, rows, kind = "stack") {
  const cell = (value, at) => h("td", { class: columns[at][1], "data-label": columns[at][0] || null }, value);
  return h("table", { class: kind },
    h("thead", {}, h("tr", {}, columns.map(([name, how]) => h("th", { class: how }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
}

/** A titled part of the page. */
export const part = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);
