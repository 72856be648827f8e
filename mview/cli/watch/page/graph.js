// The graph of tables, views and sinks: in columns where there is room, else a node per line.

import { cut, s } from "./dom.js";

const NODE = { width: 230, height: 66, across: 46, down: 14 };
const STEP = 16; // pixels that a layer is set in, where each node has a line
const LETTER = 8, SMALL = 6.2; // pixels of a letter, of a name and of a line below it

/** The layer of each node: behind all that it is made of. */
export function layers(nodes, edges) {
  const from = new Map(nodes.map((node) => [node.id, []]));
  for (const [a, b] of edges) from.get(b)?.push(a);
  const layer = new Map();
  const of = (id, above) => {
    if (layer.has(id)) return layer.get(id);
    if (above.has(id)) return 0; // a cycle: none is made, but a page must end
    const before = (from.get(id) ?? []).filter((other) => from.has(other));
    const at = before.length ? 1 + Math.max(...before.map((other) => of(other, new Set([...above, id])))) : 0;
    layer.set(id, at);
    return at;
  };
  nodes.forEach((node) => of(node.id, new Set()));
  return layer;
}

/** The drawing. nodes: { id, name, kind, state, lines, href }; edges: [id, id]. */
export function graph(width, nodes, edges) {
  const layer = layers(nodes, edges);
  const deep = 1 + Math.max(0, ...layer.values());
  const room = (width - (deep - 1) * NODE.across) / deep;
  return room >= 150 ? columns(width, Math.min(room, NODE.width + 60), nodes, edges, layer, deep) : lines(width, nodes, edges, layer);
}

function columns(width, wide, nodes, edges, layer, deep) {
  const places = new Map();
  let most = 0;
  for (let at = 0; at < deep; at += 1) {
    const here = nodes.filter((node) => layer.get(node.id) === at);
    // Near to what they are made of, so that few edges cross.
    const height = (node) => {
      const above = edges.filter(([, to]) => to === node.id).map(([from]) => places.get(from)?.y ?? 0);
      return above.length ? above.reduce((sum, y) => sum + y, 0) / above.length : 0;
    };
    here.map((node, order) => [height(node), order, node]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).forEach(([, , node], row) => {
      places.set(node.id, { x: at * (wide + NODE.across) + 1, y: row * (NODE.height + NODE.down) + 1, width: wide - 2 });
    });
    most = Math.max(most, here.length);
  }
  const path = (a, b) => {
    const x = a.x + a.width, y = a.y + NODE.height / 2, to = b.y + NODE.height / 2, half = NODE.across / 2;
    return `M${x},${y} C${x + half},${y} ${b.x - half},${to} ${b.x},${to}`;
  };
  return drawn(width, most * (NODE.height + NODE.down), nodes, edges, places, path);
}

function lines(width, nodes, edges, layer) {
  const places = new Map();
  const ordered = nodes.map((node, at) => [layer.get(node.id), at, node]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  ordered.forEach(([at, , node], row) => {
    const x = 12 + Math.min(at, 4) * STEP;
    places.set(node.id, { x, y: row * (NODE.height + NODE.down) + 1, width: width - x - 1 });
  });
  const path = (a, b) => {
    const x = a.x + 5, y = a.y + NODE.height, to = b.y + NODE.height / 2;
    return `M${x},${y} V${to - 6} Q${x},${to} ${x + 6},${to} H${b.x}`;
  };
  return drawn(width, nodes.length * (NODE.height + NODE.down), nodes, edges, places, path);
}

function drawn(width, height, nodes, edges, places, path) {
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "tables, views and sinks" });
  for (const [from, to] of edges) {
    if (places.has(from) && places.has(to)) svg.append(s("path", { class: "edge", d: path(places.get(from), places.get(to)) }));
  }
  for (const node of nodes) svg.append(box(node, places.get(node.id)));
  return svg;
}

function box(node, place) {
  const inner = place.width - 20;
  const full = [node.name, ...node.lines.map(([text]) => text)].join("\n");
  // An inner drawing: what is longer than the box is cut off.
  const shown = s("svg", { x: place.x, y: place.y, width: place.width, height: NODE.height },
    s("title", {}, full),
    s("rect", { class: `box ${node.kind} ${node.state}`, x: 1, y: 1, width: place.width - 2, height: NODE.height - 2, rx: node.kind === "sink" ? 16 : 6 }),
    s("text", { class: "name", x: 10, y: 20 }, cut(node.name, Math.floor(inner / LETTER))),
    node.lines.map(([text, how], at) => s("text", { class: how, x: 10, y: 39 + at * 16 }, cut(text, Math.floor(inner / SMALL)))));
  return node.href ? s("a", { href: node.href }, shown) : shown;
}
