// Rainbow: each source line has a colour, which all that came from it has in every pane, and a weight: its time or bytes.

import { bytesInWords, h, secondsInWords } from "./dom.js";
import { mostSpecific } from "./marks.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** A part of the stripe: a source line, by number, at some rows. @typedef {{line: number, row: number, weight: number}} Segment */

/** Colours `--tc-r0` to `--tc-r9`: lines next to each other differ with any colour vision, which a test computes. */
export const LINE_COLOURS = 10;
/** A row that came from more lines than this shows the heaviest. */
const BANDS = 6;
/** Width of a band, in pixels. */
const BAND = 40;
/** Height of the stripe, in steps of one colour each. */
const STEPS = 400;
const MOVED = "bytes moved by kernels";
/** Where bytes by line are taken from: the first of these stages that has any. */
const BYTES = [["kernels", MOVED], ["fused_ir", MOVED], ["captured", "bytes of results"]];

export class Rainbow {
  /** @param {Store} store */
  constructor(store) {
    this.links = store.links;
    this.home = new Set(store.manifest.home);
    /** The lines of each entity, all by number, as far as they were asked for. @type {number[][]} */
    this.known = [];
    /** @type {Map<number, number>} */
    this.hues = new Map();
    /** @type {Map<number, number>} */
    this.weights = new Map();
    /** @type {Map<string, {lines: number[], bands: string}>} */
    this.ofRows = new Map();
    this.colourLines(store);
    this.timed = this.weighByTime(store);
    this.unit = this.timed ? `compiled time on the ${store.manifest.heat?.device}` : this.weighByBytes(store);
  }

  /** The lines that anything came from get their colours in the order of their file. @param {Store} store */
  colourLines({ manifest, artifacts }) {
    const used = new Set(this.links.up.flatMap((_, number) => this.innermost(number) ?? []));
    for (const file of manifest.home) {
      const rows = [...(artifacts.get(file)?.rows ?? [])].sort(([a], [b]) => a - b);
      const lines = this.links.numbersOf(rows.flatMap(([, ids]) => ids)).filter((line) => used.has(line));
      [...new Set(lines)].forEach((line, at) => this.hues.set(line, at % LINE_COLOURS));
    }
  }

  /** The innermost line of the call stack that an entity came from. @param {number} number @returns {number | undefined} */
  innermost(number) {
    return this.links.up[number].findLast((origin) => this.home.has(this.links.owners[origin]));
  }

  /** The source lines that an entity came from. @param {number} number @returns {number[]} */
  linesOf(number) {
    if (this.known[number]) return this.known[number];
    this.known[number] = []; // until it is found: a file that someone sent may hold a circle
    const line = this.innermost(number) ?? number;
    const found = this.hues.has(line) ? [line] : this.links.up[number].flatMap((origin) => this.linesOf(origin));
    return (this.known[number] = [...new Set(found)].sort((a, b) => a - b));
  }

  /** The lines of a row, and its background. A whole kernel around the row counts for nothing. @param {string[]} ids what is on the row */
  ofRow(ids) {
    const key = ids.join();
    let found = this.ofRows.get(key);
    if (!found) {
      const numbers = this.links.numbersOf(mostSpecific(ids)).filter((number) => this.links.entities[number].kind !== "kernel");
      const lines = [...new Set(numbers.flatMap((number) => this.linesOf(number)))];
      if (lines.length > BANDS) lines.sort((a, b) => this.weightOf(b) - this.weightOf(a)).length = BANDS;
      this.ofRows.set(key, (found = { lines, bands: this.bands(lines) }));
    }
    return found;
  }

  /** @param {number[]} lines */
  bands(lines) {
    const tints = [...new Set(lines.map((line) => this.hues.get(line)))].map((hue) => `color-mix(in srgb, var(--tc-r${hue}) var(--tc-tint), var(--tc-bg))`);
    return tints.length < 2 ? (tints[0] ?? "") : `repeating-linear-gradient(90deg, ${tints.map((tint, at) => `${tint} ${at * BAND}px ${(at + 1) * BAND}px`)})`;
  }

  /** @param {number} line */
  weightOf(line) {
    return this.weights.get(line) ?? 0;
  }

  /** @param {Store} store @returns {boolean} whether a time was measured */
  weighByTime({ manifest: { heat }, artifacts }) {
    for (const line of heat?.rows ? this.hues.keys() : []) {
      const file = this.links.owners[line];
      const row = artifacts.get(file)?.rowsOf.get(this.links.entities[line].id)?.[0] ?? -1;
      const [, own] = heat?.rows[file]?.[row + 1]?.[1] ?? [[], []];
      this.add([line], own.reduce((sum, micro) => sum + micro, 0) / 1e6);
    }
    return this.weights.size > 0;
  }

  /** @param {Store} store @returns {string} which bytes, "" if none are known */
  weighByBytes({ manifest: { stages }, artifacts }) {
    for (const [name, what] of BYTES) {
      for (const { id } of stages.find((stage) => stage.name === name)?.artifacts ?? []) {
        for (const entity of artifacts.get(id)?.entities ?? []) this.addBytes(entity);
      }
      if (this.weights.size) return what;
    }
    return "";
  }

  /** What came from several lines counts for each by an equal share. @param {import("./store.js").Entity} entity */
  addBytes({ id, attrs: { bytes } }) {
    if (typeof bytes === "number") this.add(this.links.numbersOf([id]).flatMap((number) => this.linesOf(number)), bytes);
  }

  /** @param {number[]} lines @param {number} amount */
  add(lines, amount) {
    for (const line of amount > 0 ? lines : []) this.weights.set(line, this.weightOf(line) + amount / lines.length);
  }

  /**
   * An artifact's rows in their order, by source line: a line's weight is shared equally by all of its rows.
   * @param {Artifact} artifact @returns {Segment[]}
   */
  segments({ rows }) {
    const ordered = [...rows].sort(([a], [b]) => a - b).map(([row, ids]) => ({ row, lines: this.ofRow(ids).lines }));
    /** @type {Map<number, number>} */
    const counts = new Map();
    for (const line of ordered.flatMap(({ lines }) => lines)) counts.set(line, (counts.get(line) ?? 0) + 1);
    const share = (/** @type {number} */ line) => (this.unit ? this.weightOf(line) : 1) / (counts.get(line) ?? 1);
    /** @type {Segment[]} */
    const segments = [];
    let run = "";
    for (const { row, lines } of ordered) {
      if (lines.join() !== run) segments.push(...lines.map((line) => ({ line, row, weight: 0 })));
      lines.forEach((line, at) => (segments[segments.length - lines.length + at].weight += share(line)));
      run = lines.join();
    }
    return segments;
  }

  /** What a node of a graph is coloured by: its lines, and none for one that came from no line. @param {string} id */
  partsOf(id) {
    const lines = this.links.numbersOf([id]).flatMap((number) => this.linesOf(number));
    const labelOf = (/** @type {number} */ line) => `${this.links.entities[line].attrs.line}  ${this.links.entities[line].label}`;
    return lines.map((line) => ({ label: labelOf(line), hue: this.hues.get(line) ?? 0 }));
  }

  /** A line, and its share of a stripe. @param {number} line @param {number} all what the whole stripe weighs */
  inWords(line, all) {
    const { attrs, label } = this.links.entities[line];
    const weight = this.weightOf(line);
    const amount = this.timed ? secondsInWords(weight) : bytesInWords(Math.round(weight));
    return `${[attrs.file, attrs.line].filter(Boolean).join(":")}  ${label}${this.unit && `\n${amount}, ${Math.round((100 * weight) / all)} % of the ${this.unit} here`}`;
  }

  /** What colours and stripes mean. */
  note() {
    const by = this.unit || "number of rows";
    const title = `Each source line has one colour in all panes; its height in a stripe is its share of the ${by}. The time of a fused kernel is shared equally by its lines.`;
    return h("span", { class: "tc-legend-item tc-rainbow-note", title }, h("i", { class: "tc-rainbow-swatch" }), `by source line; stripe: ${by}`);
  }
}

/** Beside a text, the source lines of its rows from top to bottom, each as high as its weight. */
export class Stripe {
  /** @param {(id: string, row: number) => void} choose a line, and a row of the text that came from it */
  constructor(choose) {
    this.root = h("div", { class: "tc-stripe", role: "img", hidden: true });
    /** @type {Segment[]} */
    this.steps = [];
    this.all = 0;
    /** @type {Rainbow | null} */
    this.rainbow = null;
    this.root.addEventListener("click", (event) => {
      const segment = this.at(event);
      if (segment && this.rainbow) choose(this.rainbow.links.entities[segment.line].id, segment.row);
    });
    this.root.addEventListener("pointermove", (event) => {
      const segment = this.at(event);
      this.root.title = segment && this.rainbow ? this.rainbow.inWords(segment.line, this.all) : "";
    });
  }

  /** @param {MouseEvent} event */
  at(event) {
    return this.steps[Math.floor((STEPS * event.offsetY) / this.root.clientHeight)];
  }

  /** @param {Rainbow | null} rainbow null for no stripe @param {Artifact} artifact */
  show(rainbow, artifact) {
    const segments = rainbow?.segments(artifact) ?? [];
    this.rainbow = rainbow;
    this.all = segments.reduce((sum, { weight }) => sum + weight, 0);
    this.root.hidden = !this.all;
    this.steps = [];
    let passed = 0;
    for (const segment of segments) {
      passed += segment.weight;
      while (this.steps.length < Math.round((STEPS * passed) / this.all)) this.steps.push(segment);
    }
    if (!rainbow || !this.all) return;
    this.paint();
    this.label(rainbow);
  }

  paint() {
    const hues = this.steps.map(({ line }) => this.rainbow?.hues.get(line));
    const starts = [...hues.keys()].filter((at) => hues[at] !== hues[at - 1]);
    const stops = starts.map((at, index) => `var(--tc-r${hues[at]}) ${(100 * at) / STEPS}% ${(100 * (starts[index + 1] ?? STEPS)) / STEPS}%`);
    this.root.style.background = `linear-gradient(${[...stops, ...stops.slice(-1)].join()})`;
  }

  /** For a screen reader: the lines that weigh most. @param {Rainbow} rainbow */
  label(rainbow) {
    const lines = [...new Set(this.steps.map(({ line }) => line))].sort((a, b) => rainbow.weightOf(b) - rainbow.weightOf(a));
    const words = lines.slice(0, 3).map((line) => rainbow.inWords(line, this.all));
    this.root.setAttribute("aria-label", `Source lines by ${rainbow.unit || "number of rows"}: ${words.join("; ")}`);
  }
}
