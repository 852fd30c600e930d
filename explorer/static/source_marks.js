// What is marked in and beside source lines: the graph each landed in, what ran as plain Python, and where graphs broke.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Manifest} Manifest */
/** @typedef {import("./store.js").BreakInfo} BreakInfo */

const COLOURS = 6;
/** So many graphs are told with the names of their functions. */
const NAMED = 8;
/** So many colours fit beside a line. */
const STRIPES = 4;

/** What code a graph was captured from, the same for all its compilations. @param {string} graph */
function codeOf(graph) {
  return Number.parseInt(graph, 10);
}

/** @type {WeakMap<Manifest["landed"], number[]>} */
const codes = new WeakMap();

/** Compilations of one code are of one colour, the same in every file; neighbours have different ones. @param {Manifest} manifest @param {string} graph */
function colourOf({ landed }, graph) {
  const known = codes.get(landed) ?? [...new Set(Object.values(landed).flatMap((rows) => Object.keys(rows).map(codeOf)))].sort((a, b) => a - b);
  codes.set(landed, known);
  return `tc-g${known.indexOf(codeOf(graph)) % COLOURS}`;
}

/** What is marked in a source artifact, by 0-based row. @param {Manifest} manifest @param {string} artifact @param {(items: BreakInfo[]) => void} open */
export function marksOf(manifest, artifact, open) {
  const plain = new Set((manifest.plain[artifact] ?? []).map((row) => row - 1));
  const [breaks, ranges] = [breaksOf(manifest, artifact, open), rangesOf(manifest, artifact)];
  return { graphs: graphsOf(manifest, artifact), plain, breaks, ranges, placed: manifest.placed[artifact] ?? {} };
}

/** The graphs that each row landed in. @param {Manifest} manifest @param {string} artifact */
function graphsOf(manifest, artifact) {
  /** @type {Map<number, string[]>} */
  const graphs = new Map();
  for (const [graph, rows] of Object.entries(manifest.landed[artifact] ?? {}))
    for (const row of rows) graphs.set(row - 1, [...(graphs.get(row - 1) ?? []), graph]);
  return graphs;
}

/**
 * The colours beside a row, and what they say, if any.
 * @param {Manifest} manifest @param {string[]} graphs @param {boolean} plain @param {string} [placed] placements of DTensors
 * @returns {[string[], string] | undefined}
 */
export function tintOf(manifest, graphs, plain, placed) {
  if (!graphs.length && !plain) return undefined;
  const colours = [...new Set(graphs.map((graph) => colourOf(manifest, graph)))].slice(0, plain ? STRIPES - 1 : STRIPES);
  if (plain) colours.push("tc-plain");
  if (placed) colours.push("tc-placed");
  const words = [graphs.length && `In graph ${graphs.join(", ")}`, plain && "Ran as plain Python", placed];
  return [colours, words.filter(Boolean).join("\n")];
}

/**
 * The graph breaks by row: those whose code is there, and those inside of what is called there.
 * @param {Manifest} manifest @param {string} artifact @param {(items: BreakInfo[]) => void} open
 */
function breaksOf(manifest, artifact, open) {
  const byId = new Map(manifest.breaks.map((item) => [item.id, item]));
  /** @type {Map<number, {items: Set<BreakInfo>, path: boolean}>} */
  const byRow = new Map();
  const spans = manifest.spans[artifact] ?? [];
  for (const [index, span] of spans.entries()) {
    const [row, , , id, culprit] = span;
    const item = byId.get(id);
    if (!item || goesOn(spans[index - 1], span)) continue;
    const found = byRow.get(row - 1) ?? { items: new Set(), path: true };
    found.items.add(item);
    found.path &&= !culprit;
    byRow.set(row - 1, found);
  }
  /** @type {Map<number, import("./text_view.js").Break>} */
  const breaks = new Map();
  for (const [row, { items, path }] of byRow)
    breaks.set(row, { title: [...items].map((item) => breakInWords(item, path)).join("\n\n"), path, open: () => open([...items]) });
  return breaks;
}

/** Whether code that began on the row of one mark goes on at another. @param {Manifest["spans"][string][0] | undefined} before @param {Manifest["spans"][string][0]} mark */
function goesOn(before, [row, , , id]) {
  return before !== undefined && before[2] < 0 && before[3] === id && row > before[0] && row <= before[0] + 2;
}

/** @param {BreakInfo} item @param {boolean} path whether it is inside of what is called here */
function breakInWords(item, path) {
  const hints = item.hints.map((hint) => `\n• ${hint}`).join("");
  const where = path ? ` inside of this call, at ${item.file}:${item.line}` : "";
  return `Graph break${where}: ${item.kind || item.reason}\n${item.explanation}${hints}`;
}

/** The code that broke, and calls that led there. @param {Manifest} manifest @param {string} artifact */
function rangesOf(manifest, artifact) {
  /** @type {Map<number, import("./tokens.js").Range[]>} */
  const ranges = new Map();
  const known = new Set();
  for (const [row, from, to, , culprit] of manifest.spans[artifact] ?? []) {
    const key = `${row} ${from} ${to}`;
    if (known.has(key)) continue;
    known.add(key);
    const end = to < 0 ? Infinity : to;
    ranges.set(row - 1, [...(ranges.get(row - 1) ?? []), [from, end, culprit ? "tc-broken" : "tc-broken-call"]]);
  }
  for (const list of ranges.values()) list.sort((a, b) => a[0] - b[0]);
  return ranges;
}

/**
 * What the marks mean; a graph is a button.
 * @param {Manifest} manifest @param {string} artifact @param {(graphs: string[]) => void} select
 * @returns {HTMLElement[]}
 */
export function legendOf(manifest, artifact, select) {
  /** @type {Map<number, string[]>} */
  const byCode = new Map();
  for (const graph of Object.keys(manifest.landed[artifact] ?? {}).sort((a, b) => codeOf(a) - codeOf(b))) {
    byCode.set(codeOf(graph), [...(byCode.get(codeOf(graph)) ?? []), graph]);
  }
  /** @type {HTMLElement[]} */
  const items = [...byCode.values()].map((graphs) => graphButton(manifest, graphs, byCode.size <= NAMED, select));
  const item = (/** @type {string} */ mark, /** @type {string} */ name, /** @type {string} */ title) =>
    items.push(h("span", { class: "tc-legend-item", title }, h("i", { class: mark }), name));
  if (manifest.plain[artifact]?.length) item("tc-plain", "plain Python", "Lines known to have run as plain Python");
  if (manifest.placed[artifact]) item("tc-placed", "DTensor", "Lines with DTensors: hover for placements and redistributions");
  return items;
}

/** The function of a frame; where it goes on after a break, with the line. @param {Manifest["frames"][0]} frame */
export function frameName({ function: name, line }) {
  const resumed = /^torch_dynamo_resume_in_(.+)_at_\d+$/.exec(name);
  return resumed ? `${resumed[1]}:${line}` : name;
}

/** @param {Manifest} manifest @param {string[]} graphs of one code @param {boolean} named @param {(graphs: string[]) => void} select */
function graphButton(manifest, graphs, named, select) {
  const frame = manifest.frames.find((candidate) => candidate.id === graphs[0]);
  const name = frame ? frameName(frame) : "";
  const title = `Select graph ${graphs.join(", ")}${name && `: ${name.replace(":", " from line ")}`}`;
  const swatch = h("i", { class: colourOf(manifest, graphs[0]) });
  const label = named ? `graph ${graphs.join(" ")}` : graphs.join(" ");
  const onclick = () => select(graphs);
  return h("button", { class: "tc-legend-item tc-legend-graph", type: "button", title, onclick }, swatch, label, named && name ? h("small", {}, name) : null);
}
