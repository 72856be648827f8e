// Charts, drawn by hand as SVG: a line over epochs, and stacked bars.

import { cut, h, s } from "./dom.js";

const HEIGHT = 150, LEFT = 58, BOTTOM = 20, TOP = 8, RIGHT = 6;

/** The grid from nothing to the largest value, and a whole one between: half a row is none. */
function frame(width, label, most, show) {
  const top = most || 1;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / (top * 1.05));
  const lines = [...new Set([0, Math.round(top / 2), top])].map((value) => [
    s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    s("text", { class: "soft", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, show(value)),
  ]);
  return [s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label }, lines), y];
}

function ends(svg, width, first, last) {
  svg.append(
    s("text", { class: "soft", x: LEFT, y: HEIGHT - 4 }, first),
    s("text", { class: "soft", x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, last));
}

/**
 * A line.
 *
 * points: { x, y, label }, in the order of x. show: text of a value. limit: a line that should not be crossed.
 */
export function line(width, label, points, show, limit = null) {
  if (!points.length) return h("p", { class: "soft" }, "nothing yet");
  const most = Math.max(...points.map((point) => point.y));
  const shownLimit = limit !== null && limit <= most * 4 ? limit : null;
  const [svg, y] = frame(width, label, Math.max(most, shownLimit ?? 0), show);
  const low = points[0].x, span = points[points.length - 1].x - low || 1;
  const x = (value) => LEFT + (width - LEFT - RIGHT) * ((value - low) / span);
  if (shownLimit !== null) svg.append(s("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: y(shownLimit), y2: y(shownLimit) }));
  svg.append(s("polyline", { class: "line", points: points.map((point) => `${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`).join(" ") }));
  for (const point of points) {
    svg.append(s("circle", { class: "c0", cx: x(point.x), cy: y(point.y), r: points.length > 60 ? 1.5 : 2.5 }, s("title", {}, point.label)));
  }
  ends(svg, width, points[0].end, points.length > 1 ? points[points.length - 1].end : "");
  return svg;
}

/** Stacked bars. bars: { end, label, parts: {name: value} }. names: of parts, from below. */
export function bars(width, label, these, names, show) {
  if (!these.length) return h("p", { class: "soft" }, "nothing yet");
  const shown = these.slice(-Math.max(10, Math.floor((width - LEFT - RIGHT) / 7)));
  const sum = (bar) => names.reduce((total, name) => total + (bar.parts[name] || 0), 0);
  const [svg, y] = frame(width, label, Math.max(...shown.map(sum)), show);
  const step = Math.min(30, (width - LEFT - RIGHT) / shown.length);
  shown.forEach((bar, at) => {
    let below = 0;
    names.forEach((name, color) => {
      const value = bar.parts[name] || 0;
      if (!value) return;
      svg.append(s("rect", { class: `c${color % 8}`, x: LEFT + at * step, width: Math.max(1, step - 1), y: y(below + value), height: y(below) - y(below + value) },
        s("title", {}, `${bar.label}, ${name}: ${show(value)}`)));
      below += value;
    });
  });
  ends(svg, width, shown[0].end, shown.length * step > 200 ? shown[shown.length - 1].end : "");
  const legend = names.map((name, color) => h("span", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: `c${color % 8}`, width: 10, height: 10 })), cut(name, 40)));
  return h("div", {}, svg, h("div", { class: "legend" }, legend));
}
