// A source file as text, with the functions that its lines call, inlined or compiled by themselves, opened below these.

import { h, icon } from "./dom.js";
import { structureOf } from "./language.js";
import { heatBars } from "./source_heat.js";
import { marksOf, tintOf } from "./source_marks.js";
import { TextView } from "./text_view.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./text_view.js").Looks} Looks */
/**
 * A row of the view: of which file, which of its rows (-1 for the head of what is opened), how deep, and its name: where
 * it is, from the outermost file on; and of what is opened the row that calls it.
 * @typedef {{artifact: Artifact, row: number, depth: number, key: string, text: string, caller?: Place}} Place
 * @typedef {{names: string, open: boolean}} Call
 */

/** A function that is opened in itself, and so on, ends here. */
const DEEPEST = 12;

export class SourceView extends TextView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} artifact
   * @param {Store} store @param {(items: import("./store.js").BreakInfo[]) => void} showBreaks
   * @param {Set<string>} opened names of the rows whose calls are opened
   */
  constructor(root, callbacks, artifact, store, showBreaks, opened) {
    const made = compose(store, artifact, opened, showBreaks);
    super(root, callbacks, made.artifact, made.looks);
    this.file = artifact;
    this.store = store;
    this.showBreaks = showBreaks;
    this.opened = opened;
    this.placed = made.placed;
    this.stop = store.listen((what, id) => (what === "heat" || (what === "text" && this.waitsFor(id))) && this.again());
  }

  /** Whether something opened is in an artifact whose text was not there. @param {string} id */
  waitsFor(id) {
    return [...this.callsAt.values()].some(({ open }) => open) && this.asked().has(id);
  }

  get callsAt() {
    return this.looks.calls ?? new Map();
  }

  /** The files that calls which are open lead to. */
  asked() {
    const open = [...this.callsAt].filter(([, call]) => call.open).map(([row]) => this.placed[row]);
    return new Set(open.flatMap((place) => callsOf(this.store, place).map(([target]) => target)));
  }

  /** Open or close what a row calls. @param {number} row */
  toggleCall(row) {
    this.goTo(row);
    const { key } = this.placed[row];
    if (!this.opened.delete(key)) {
      this.opened.add(key);
      for (const [target] of callsOf(this.store, this.placed[row])) this.store.need(target, "text");
    }
    this.again();
  }

  /** Show what is open now; the cursor and what is folded stay on their lines. */
  again() {
    const folded = new Set([...this.folded].map((row) => this.placed[row].key));
    const { key } = this.placed[this.cursor] ?? { key: "" };
    const made = compose(this.store, this.file, this.opened, this.showBreaks);
    this.placed = made.placed;
    const rows = new Map(made.placed.map((place, row) => [place.key, row]));
    this.take(made.artifact, made.looks);
    for (const name of folded) this.folded.add(rows.get(name) ?? 0);
    if (this.query) this.find(this.query);
    this.refold();
    this.colour(this.rainbow);
    this.select(this.store.primary, this.store.linked, false);
    this.goTo(rows.get(key) ?? 0);
  }

  /** @param {number} row of the file */
  showRow(row) {
    this.goTo(this.placed.findIndex((place) => !place.depth && place.row === row));
  }

  /** @param {number} row */
  row(row) {
    const element = super.row(row);
    const depth = this.looks.depths?.[row] ?? 0;
    element.style.setProperty("--depth", String(Math.abs(depth)));
    element.classList.toggle("tc-inlined", depth !== 0);
    element.classList.toggle("tc-inlined-head", depth < 0);
    if (this.looks.tints?.get(row)?.length === 1) element.classList.add("tc-tinted", this.looks.tints.get(row)?.[0] ?? "");
    return element;
  }

  /** @param {number} row */
  gutter(row) {
    const gutter = super.gutter(row);
    if (!this.looks.bars) return gutter;
    gutter.style.minWidth = `calc(${gutter.style.minWidth} + 58px)`;
    gutter.append(this.looks.bars(row));
    return gutter;
  }

  /** @param {HTMLElement} code @param {number} row */
  fill(code, row) {
    super.fill(code, row);
    const call = this.callsAt.get(row);
    if (!call) return;
    const title = `${call.open ? "Close" : "Open"} ${call.names}, called here (→ ←)`;
    const properties = {
      class: "tc-call",
      type: "button",
      tabIndex: -1,
      title,
      "aria-label": title,
      "aria-expanded": String(call.open),
      onclick: () => this.toggleCall(row),
    };
    code.append(h("button", properties, icon(call.open ? "down" : "right"), call.names));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const call = this.callsAt.get(this.cursor);
    const wants = { ArrowRight: call && !call.open, ArrowLeft: call?.open }[event.key];
    if (wants && !event.altKey && !this.folded.has(this.cursor)) {
      this.toggleCall(this.cursor);
      event.preventDefault();
    } else super.pressed(event);
  }

  destroy() {
    this.stop();
    super.destroy();
  }
}

/** What a row calls. @param {Store} store @param {Place} place @returns {[string, number, number, string][]} */
function callsOf(store, { artifact, row }) {
  return store.manifest.calls[artifact.info.id]?.[row + 1] ?? [];
}

/**
 * The rows of a file with what is opened between them, and all that is marked in these.
 * @param {Store} store @param {Artifact} file @param {Set<string>} opened
 * @param {(items: import("./store.js").BreakInfo[]) => void} showBreaks
 */
function compose(store, file, opened, showBreaks) {
  const placed = places(store, file, opened);
  const lines = placed.map(({ text }) => text);
  const numbers = placed.map(({ artifact, row }) => (row < 0 ? 0 : artifact.numbers ? (artifact.numbers[row] ?? 0) : row + 1));
  const calls = byRow(placed, (place) => {
    const names = callsOf(store, place).map(([, , , name]) => name);
    return names.length ? { names: names.join(", "), open: opened.has(place.key) } : undefined;
  });
  const depths = placed.map(({ depth, row }) => (row < 0 ? -depth : depth));
  const marks = marksIn(store, placed, showBreaks);
  const heat = heatBars(store);
  const bars = heat && ((/** @type {number} */ at) => heat(placed[at].artifact.info.id, placed[at].row));
  return {
    placed,
    artifact: /** @type {Artifact} */ ({ info: file.info, lines, numbers, ...idsIn(placed), have: {} }),
    looks: /** @type {Looks} */ ({ ...marks, depths, calls, bars, structure: structureAt(placed, lines) }),
  };
}

/** @template T @param {Place[]} placed @param {(place: Place) => T | undefined} find @returns {Map<number, T>} */
function byRow(placed, find) {
  /** @type {Map<number, T>} */
  const found = new Map();
  placed.forEach((place, at) => {
    const value = find(place);
    if (value !== undefined) found.set(at, value);
  });
  return found;
}

/** The entities on each row, and their rows. @param {Place[]} placed */
function idsIn(placed) {
  const rows = byRow(placed, ({ artifact, row }) => artifact.rows.get(row));
  /** @type {Map<string, number[]>} */
  const rowsOf = new Map();
  for (const [at, ids] of rows) for (const id of ids) rowsOf.set(id, [...(rowsOf.get(id) ?? []), at]);
  return { rows, rowsOf };
}

/** @param {Store} store @param {Place[]} placed @param {(items: import("./store.js").BreakInfo[]) => void} showBreaks @returns {Looks} */
function marksIn(store, placed, showBreaks) {
  const files = new Set(placed.map(({ artifact }) => artifact));
  const marks = new Map([...files].map((artifact) => [artifact, marksOf(store.manifest, artifact.info.id, showBreaks)]));
  const marksAt = (/** @type {Place} */ { artifact }) => /** @type {ReturnType<typeof marksOf>} */ (marks.get(artifact));
  /** The graphs of a row; in what is opened, those that the call is in too. @type {(place: Place) => string[]} */
  const graphsAt = (place) => {
    const own = marksAt(place).graphs.get(place.row) ?? [];
    const outer = place.caller && graphsAt(place.caller);
    const both = own.filter((graph) => outer?.includes(graph));
    return both.length ? both : own;
  };
  const tints = byRow(placed, (place) => tintOf(store.manifest, graphsAt(place), marksAt(place).plain.has(place.row), marksAt(place).placed[place.row + 1]));
  return {
    tints: new Map([...tints].map(([at, [colours]]) => [at, colours])),
    titles: new Map([...tints].map(([at, [, title]]) => [at, title])),
    breaks: byRow(placed, (place) => marksAt(place).breaks.get(place.row)),
    ranges: byRow(placed, (place) => marksAt(place).ranges.get(place.row)),
  };
}

/** @param {Store} store @param {Artifact} file @param {Set<string>} opened @returns {Place[]} */
function places(store, file, opened) {
  /** @type {Place[]} */
  const found = [];
  /** @param {Artifact} artifact @param {number} first @param {number} last @param {number} depth @param {string} path @param {Place} [caller] */
  const add = (artifact, first, last, depth, path, caller) => {
    const lines = artifact.lines ?? [];
    for (let row = first; row <= Math.min(last, lines.length - 1); row++) {
      const place = { artifact, row, depth, key: `${path}${row}`, text: lines[row], caller };
      found.push(place);
      if (!opened.has(place.key) || depth >= DEEPEST) continue;
      callsOf(store, place).forEach(([target, from, to, name], index) => {
        const inner = store.artifacts.get(target);
        if (!inner?.lines) return;
        const key = `${place.key}.${index}>`;
        found.push({ artifact: inner, row: -1, depth: depth + 1, key, text: `# ${name}, in ${inner.info.title}` });
        add(inner, from - 1, to - 1, depth + 1, key, place);
      });
    }
  };
  add(file, 0, (file.lines ?? []).length - 1, 0, "");
  return found;
}

/**
 * Strings over many lines, and what can be folded, as they are in each file. A fold ends below what is opened in it.
 * @param {Place[]} placed @param {string[]} lines
 */
function structureAt(placed, lines) {
  const whole = placed.every(({ depth }) => !depth);
  if (whole && placed.length) return structureOf(placed[0].artifact.lines ?? [], "python");
  /** @type {Map<string, number>} */
  const rows = new Map(placed.map(({ key }, at) => [key, at]));
  /** @type {import("./language.js").Structure["spans"]} */
  const spans = [];
  /** @type {Map<number, number>} */
  const folds = new Map();
  /** @type {Map<Artifact, Map<number, import("./language.js").Structure["spans"][0]>>} */
  const starts = new Map();
  placed.forEach(({ artifact, row, key }, at) => {
    if (row < 0) return;
    const path = key.slice(0, key.length - String(row).length);
    const structure = structureOf(artifact.lines ?? [], "python");
    const end = rows.get(`${path}${structure.folds.get(row)}`);
    if (end !== undefined) folds.set(at, end);
    const begun = starts.get(artifact) ?? new Map(structure.spans.map((span) => [span.from, span]));
    starts.set(artifact, begun);
    const span = begun.get(row);
    const to = rows.get(`${path}${span?.to}`);
    if (span && to !== undefined) spans.push({ ...span, from: at, to });
  });
  const widest = lines.reduce((most, line, at) => Math.max(most, line.length + 4 * placed[at].depth), 0);
  return { spans, folds, widest };
}
