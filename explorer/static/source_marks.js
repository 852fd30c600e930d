// What is marked beside source lines: the graph each landed in, and where graphs broke.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Manifest} Manifest */
/** @typedef {import("./store.js").BreakInfo} BreakInfo */
/** @typedef {import("./text_view.js").Break} Break */

const COLOURS = 6;

/** The CSS class of a graph's colour, the same in every file. @param {Manifest} manifest @param {string} graph */
function colourOf(manifest, graph) {
  const graphs = Object.values(manifest.landed).flatMap((byGraph) => Object.keys(byGraph));
  return `tc-g${[...new Set(graphs)].sort().indexOf(graph) % COLOURS}`;
}

/**
 * The colours of each row.
 * @param {Manifest} manifest @param {string} artifact @returns {Map<number, string[]>}
 */
export function tintsOf(manifest, artifact) {
  /** @type {Map<number, string[]>} */
  const tints = new Map();
  for (const [graph, rows] of Object.entries(manifest.landed[artifact] ?? {})) {
    const colour = colourOf(manifest, graph);
    for (const row of rows) tints.set(row - 1, [...(tints.get(row - 1) ?? []), colour]);
  }
  return tints;
}

/**
 * The graph breaks by row.
 * @param {Manifest} manifest @param {string} artifact @param {(items: BreakInfo[]) => void} open
 * @returns {Map<number, Break>}
 */
export function breaksOf(manifest, artifact, open) {
  /** @type {Map<number, BreakInfo[]>} */
  const byRow = new Map();
  for (const item of manifest.breaks) {
    if (item.place?.[0] !== artifact) continue;
    const row = item.place[1] - 1;
    byRow.set(row, [...(byRow.get(row) ?? []), item]);
  }
  /** @type {Map<number, Break>} */
  const breaks = new Map();
  for (const [row, items] of byRow) {
    breaks.set(row, { title: items.map(breakInWords).join("\n\n"), open: () => open(items) });
  }
  return breaks;
}

/** @param {BreakInfo} item */
function breakInWords(item) {
  const hints = item.hints.map((hint) => `\n• ${hint}`).join("");
  return `Graph break: ${item.kind || item.reason}\n${item.explanation}${hints}`;
}

/** What the colours mean. @param {Manifest} manifest @param {string} artifact @returns {HTMLElement[]} */
export function legendOf(manifest, artifact) {
  return Object.keys(manifest.landed[artifact] ?? {}).map((graph) => {
    const frame = manifest.frames.find((candidate) => candidate.id === graph);
    const name = frame ? h("small", {}, frame.function) : null;
    const title = `Lines whose code is in captured graph ${graph}`;
    return h(
      "span",
      { class: "tc-legend-item", title },
      h("i", { class: colourOf(manifest, graph) }),
      `graph ${graph}`,
      name,
    );
  });
}
