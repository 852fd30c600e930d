// The data of a living graph: a recorded program, what one run of it gave, what the reader changed, and the state to draw.

import { digitsOf } from "./living_canvas.js";
import { countOf, measured } from "./tensors.js";
import { evaluate, knows, refsOf } from "./evaluate.js";

/**
 * @typedef {import("./living_canvas.js").Tensor & {dead?: number}} Shown
 * @typedef {import("./living_canvas.js").State} State
 * @typedef {import("./living_canvas.js").Node} Node
 * @typedef {import("./evaluate.js").Op & {id: string, node: string, variable: string, role: "source" | "call", inplace?: string,
 *   checkpoint?: boolean, derivative_of?: string, problem?: string, before?: any}} ProgramNode
 * @typedef {{scale?: number, cells?: Record<string, number>}} Change
 * @typedef {{values: Record<string, any>, gradients: Record<string, any>, flows: Record<string, any>, derivatives: Record<string, any>}} Data
 * @typedef {Data & {nodes: ProgramNode[], outputs: [number, number][], sources?: Packed[], seeds?: Packed[], problem?: string}} Recorded
 * @typedef {{shape: number[], wide: boolean, bool?: boolean, data: string}} Packed
 * @typedef {{id: string, direction: "forward" | "backward" | "leaf", node: string, formulas?: string[]}} Step
 * @typedef {{from: number, output: number, to: number, input: number}} Link
 * How far the step at `at` is shown: `progress` from 0 to 1. `edges`: whose norms are the edges' widths.
 * @typedef {{at: number, progress: number, edges: "values" | "gradients"}} Moment
 */

const ROWS = 16;
const COLUMNS = 24;
const FEW = 4;
const LONGEST = 34;
/** Edges are always labelled in graphs of at most so many. */
const FEW_EDGES = 14;
/** @type {Record<string, string>} */
const INFIX = { add: "+", sub: "−", mul: "·", div: "/", mm: "@", bmm: "@", matmul: "@", dot: "·", mv: "@" };

/** @param {string} text */
const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** @param {Packed} packed @returns {import("./tensors.js").Tensor} */
function unpacked({ shape, wide, bool, data }) {
  const { buffer } = bytesOf(data);
  return { shape, bool, data: Float64Array.from(wide ? new Float64Array(buffer) : new Float32Array(buffer)) };
}

/** @param {any} number what is not finite is a word */
const numberOf = (number) => (typeof number === "string" ? Number(number.replace("inf", "Infinity")) : Number(number));

/** A tensor from Python's data. @param {any} data @returns {Shown} */
function shownOf(data) {
  const numbers = data.numbers === null || data.numbers === undefined || data.type?.startsWith("c") ? null : Float64Array.from([data.numbers].flat(Infinity), numberOf);
  const heat = data.heat ? { ...data.heat, cells: Float32Array.from(new Int8Array(bytesOf(data.heat.cells).buffer), (cell) => (cell === -128 ? NaN : cell / 127)) } : null;
  return { ...data, norm: numberOf(data.norm), low: numberOf(data.low), high: numberOf(data.high), numbers, heat: heat ?? (numbers && heatOf(data.shape ?? [], numbers)) };
}

/** A tensor from its numbers; only what is in sight is made a heat map. */
class Measured {
  /** @param {import("./tensors.js").Tensor} tensor @param {string} type */
  constructor({ shape, data }, type) {
    Object.assign(this, measured({ shape, data }));
    /** @type {ReturnType<typeof heatOf> | undefined} */
    this.map = undefined;
    this.type = type;
    this.shape = shape;
    this.data = data;
    this.count = data.length;
    this.numbers = data.length <= FEW * FEW ? data : null;
  }

  get heat() {
    this.map ??= heatOf(this.shape, this.data);
    return this.map;
  }

  get dead() {
    return deadIn(this.shape, this.data);
  }
}

/** @param {import("./tensors.js").Tensor} tensor @param {string} type */
const shownHere = (tensor, type) => /** @type {Shown} */ (/** @type {unknown} */ (new Measured(tensor, type)));

/** Numbers from the kernel: in float32, or in float64 where they have eight bytes each. @param {number[]} shape @param {ArrayBuffer} bytes */
function numbersIn(shape, bytes) {
  const wide = bytes.byteLength === 8 * countOf(shape);
  return { shape, data: Float64Array.from(wide ? new Float64Array(bytes) : new Float32Array(bytes)) };
}

/** Columns of which all elements are 0. @param {number[]} shape @param {Float64Array} data */
function deadIn(shape, data) {
  if (shape.length < 2) return 0;
  const columns = shape[shape.length - 1];
  const alive = new Set();
  data.forEach((x, at) => x !== 0 && alive.add(at % columns));
  return columns - alive.size;
}

/** Blocks of the matrix that a tensor is, each by its number of the largest size. @param {number[]} shape @param {Float64Array} data */
function heatOf(shape, data) {
  const columns = shape.length ? shape[shape.length - 1] : 1;
  const rows = columns ? data.length / columns : 0;
  const [high, wide] = [Math.min(rows, ROWS), Math.min(columns, COLUMNS)];
  const cells = new Float32Array(high * wide);
  data.forEach((x, at) => {
    const cell = Math.floor((Math.floor(at / columns) * high) / rows) * wide + Math.floor(((at % columns) * wide) / columns);
    if (!Number.isFinite(x) || Math.abs(x) > Math.abs(cells[cell])) cells[cell] = Number.isFinite(x) ? x : NaN;
  });
  const most = cells.reduce((all, x) => (Math.abs(x) > all ? Math.abs(x) : all), 0) || 1;
  return { rows: high, columns: wide, cells: cells.map((x) => x / most) };
}

/** @param {Shown | undefined} tensor */
const isBroken = (tensor) => Boolean(tensor && (tensor.nans || tensor.infinite));

export class LivingModel {
  /** @param {Recorded} program @param {Step[]} steps */
  constructor(program, steps) {
    this.program = program;
    this.nodes = program.nodes;
    this.steps = steps;
    /** @type {Map<number, Change>} */
    this.changes = new Map();
    /** @type {Map<number, Change>} */
    this.seedChanges = new Map();
    /** @type {string[]} what was asked to be evaluated here, and isn't known */
    this.unknown = [];
    /** @type {Link[]} */
    this.links = this.nodes.flatMap((node, to) => refsOf(node).map(([from, output], input) => ({ from, output, to, input })));
    this.recorded = this.read(program);
    this.now = this.recorded;
    this.titles = this.nodes.map((_, at) => this.expressionOf(at));
    this.timeNodes();
  }

  /** @param {Data} data */
  read({ values, gradients, flows, derivatives }) {
    const tensors = (/** @type {Record<string, any>} */ each) => new Map(Object.entries(each).map(([key, one]) => [key, shownOf(one)]));
    return { values: tensors(values), gradients: tensors(gradients), flows: tensors(flows), derivatives: tensors(derivatives) };
  }

  /** From which step on each node's value and gradient are there. */
  timeNodes() {
    const first = (/** @type {boolean} */ forward) => new Map(this.steps.map((step, at) => /** @type {const} */ ([step.node, at])).reverse().filter(([, at]) => (this.steps[at].direction === "forward") === forward));
    const [forward, back] = [first(true), first(false)];
    this.backAt = this.nodes.map(({ node }) => back.get(node) ?? Infinity);
    /** @type {number[]} */
    this.forwardAt = new Array(this.nodes.length).fill(-1);
    let next = 0;
    for (let at = this.nodes.length - 1; at >= 0; at--) {
      if (this.nodes[at].role === "source") continue;
      next = forward.get(this.nodes[at].node) ?? next;
      this.forwardAt[at] = next;
    }
    this.indexOf = new Map(this.nodes.flatMap(({ node }, at) => (node ? [[node, at]] : [])));
  }

  /** Whether values can be changed. */
  get isLive() {
    return !this.program.problem;
  }

  /** Whether a page without a kernel can evaluate it: the operations that it can't. @returns {string[] | null} null: its numbers are too many */
  get unknownHere() {
    return this.program.sources ? [...new Set(this.nodes.filter((node) => node.op && !knows(node)).map(({ op }) => op ?? ""))] : null;
  }

  // Changes

  /** A source's number now. @param {number} at @param {number} cell @param {boolean} seed */
  numberAt(at, cell, seed) {
    const change = (seed ? this.seedChanges : this.changes).get(at);
    const own = change?.cells?.[cell];
    if (own !== undefined) return own;
    const packed = (seed ? this.program.seeds : this.program.sources)?.[at];
    return (packed ? unpacked(packed).data[cell] : (this.recordedAt(at, seed)?.numbers?.[cell] ?? NaN)) * (change?.scale ?? 1);
  }

  /** @param {number} at @param {boolean} seed */
  recordedAt(at, seed) {
    return seed ? this.recorded.gradients.get(this.program.outputs[at].join(" ")) : this.recorded.values.get(`${at} 0`);
  }

  /** Whether a source's numbers are here, and can be changed one by one. @param {number} at @param {boolean} seed */
  isKnown(at, seed) {
    return Boolean((seed ? this.program.seeds : this.program.sources)?.[at]) || !Number.isNaN(this.numberAt(at, 0, seed));
  }

  /** @param {number} at @param {Change} change @param {boolean} seed */
  change(at, { scale, cells }, seed) {
    const all = seed ? this.seedChanges : this.changes;
    const old = all.get(at) ?? {};
    all.set(at, { scale: scale ?? old.scale ?? 1, cells: { ...old.cells, ...cells } });
  }

  reset() {
    this.changes.clear();
    this.seedChanges.clear();
    this.unknown = [];
    this.now = this.recorded;
  }

  /** What the kernel is asked. */
  get request() {
    return { sources: Object.fromEntries(this.changes), seeds: Object.fromEntries(this.seedChanges) };
  }

  /** Show an answer of the kernel: a small tensor is a place in its buffer. @param {Data} answer @param {DataView<ArrayBuffer>} buffer */
  take({ values, gradients, flows, derivatives }, buffer) {
    const placed = (/** @type {Record<string, any>} */ tensors, /** @type {Map<string, Shown>} */ like) =>
      new Map(Object.entries(tensors).map(([key, each]) => {
        if (!Array.isArray(each)) return [key, shownOf(each)];
        const { shape, type } = like.get(key) ?? /** @type {Shown} */ (this.recorded.values.get(key));
        const first = buffer.byteOffset + each[0];
        return [key, shownHere(numbersIn(shape, buffer.buffer.slice(first, first + each[1])), type)];
      }));
    const { recorded } = this;
    this.now = { ...this.read({ values: {}, gradients: {}, flows, derivatives }), values: placed(values, recorded.values), gradients: placed(gradients, recorded.gradients) };
  }

  /** Evaluate it here, in float64, from the changed numbers. */
  evaluateHere() {
    const { sources = [], seeds = [] } = this.program;
    const changed = (/** @type {Packed[]} */ packed, /** @type {Map<number, Change>} */ changes) =>
      packed.map((each, at) => {
        const tensor = unpacked(each);
        const { scale = 1, cells = {} } = changes.get(at) ?? {};
        tensor.data.forEach((x, cell) => (tensor.data[cell] = cells[cell] ?? x * scale));
        return tensor;
      });
    const given = new Map(changed(sources, this.changes).map((tensor, at) => [at, tensor]));
    const found = evaluate(this.program, given, changed(seeds, this.seedChanges));
    const typed = (/** @type {Map<string, import("./tensors.js").Tensor>} */ tensors, /** @type {Map<string, Shown>} */ like) =>
      new Map([...tensors].map(([key, tensor]) => [key, shownHere(tensor, like.get(key)?.type ?? "")]));
    this.unknown = found.unknown;
    this.now = {
      values: typed(found.values, this.recorded.values),
      gradients: typed(found.gradients, this.recorded.gradients),
      flows: typed(found.flows, this.recorded.flows),
      derivatives: typed(found.derivatives, this.recorded.derivatives),
    };
    return found;
  }

  // Words

  /** @param {number} at */
  labelOf(at) {
    const { variable, id } = this.nodes[at];
    return variable || id;
  }

  /** What a node computes, in the user's names. @param {number} at */
  expressionOf(at) {
    const node = this.nodes[at];
    if (node.role === "source") return this.labelOf(at);
    const name = (node.op ?? "").split(".")[0].replace(/^_+/, "");
    const inputs = refsOf(node).map(([from]) => this.labelOf(from));
    const labels = (node.args ?? []).flatMap((arg) => (arg?.$ ? [this.labelOf(arg.$[0])] : typeof arg === "number" && name in INFIX ? [String(arg)] : []));
    const text = name in INFIX && labels.length === 2 ? labels.join(` ${INFIX[name]} `) : name === "addmm" && inputs.length === 3 ? `${inputs[1]} @ ${inputs[2]} + ${inputs[0]}` : `${name}(${inputs.join(", ")})`;
    return shortened(node.variable ? `${node.variable} = ${text}` : text);
  }

  /** A node read out: its name, value and gradient. @param {number} at @param {Moment} moment */
  reading(at, moment) {
    const state = this.nodeState(at, moment, null, null);
    const part = (/** @type {string} */ name, /** @type {any} */ tensor) => (tensor ? `; ${name} ${inWords(tensor)}` : "");
    return `${this.titles[at]}${part("value", state.above)}${part("gradient", state.below)}${state.badge ? `; ${state.badge}` : ""}${this.sumAt(at, state.below)}`;
  }

  /** What backward leaves in a `.grad` that was there before. @param {number} at @param {Shown | null | undefined} gradient */
  sumAt(at, gradient) {
    const before = this.nodes[at].before && shownOf(this.nodes[at].before);
    if (!before || !gradient) return "";
    const sum = before.numbers && gradient.numbers ? ` = ${inWords({ ...gradient, numbers: Float64Array.from(before.numbers, (x, cell) => x + /** @type {ArrayLike<number>} */ (gradient.numbers)[cell]) })}` : "";
    return `; after backward() its .grad is ${inWords(before)} + ${inWords(gradient)}${sum}`;
  }

  // States

  /** The nodes at which values, or gradients, are not finite first. @param {"values" | "gradients"} which */
  originsOf(which) {
    const tensors = this.now[which];
    const broken = (/** @type {number} */ at) => isBroken(tensors.get(`${at} 0`));
    const before = (/** @type {number} */ at) => (which === "values" ? this.links.filter(({ to }) => to === at).map(({ from }) => from) : this.links.filter(({ from }) => from === at).map(({ to }) => to));
    return new Set([...this.nodes.keys()].filter((at) => broken(at) && !before(at).some(broken)));
  }

  /** The state to draw. @param {Moment} moment @returns {State} */
  state(moment) {
    const current = this.indexOf?.get(this.steps[moment.at]?.node ?? "") ?? -1;
    const origins = { values: this.originsOf("values"), gradients: this.originsOf("gradients") };
    const nodes = this.nodes.map((_, at) => ({ ...this.nodeState(at, moment, origins, current) }));
    return { nodes, edges: this.links.map((link) => this.edgeState(link, moment, current)) };
  }

  /** @param {number} at @param {Moment} moment @param {{values: Set<number>, gradients: Set<number>} | null} origins @param {number | null} current @returns {Node} */
  nodeState(at, { at: step, progress }, origins, current) {
    const node = this.nodes[at];
    const key = `${at} 0`;
    const [value, gradient] = [this.now.values.get(key) ?? null, this.now.gradients.get(key)];
    const reached = (/** @type {number} */ from) => from < step || (from === step && progress >= 1);
    const hasGradient = gradient || this.recorded.gradients.has(key);
    const broken = origins && ((origins.values.has(at) && reached(this.forwardAt?.[at] ?? 0)) || (origins.gradients.has(at) && reached(this.backAt?.[at] ?? 0)));
    const badge = this.badgeOf(at, value, Boolean(broken));
    return {
      id: node.id,
      title: this.titles[at],
      detail: [this.recorded.values.get(key)?.type ?? "", node.derivative_of ? `derivative of ${node.derivative_of}` : ""].filter(Boolean).join(", "),
      above: reached(this.forwardAt?.[at] ?? 0) ? value : null,
      aboveSize: this.recorded.values.get(key) ?? value,
      ...(hasGradient ? { below: reached(this.backAt?.[at] ?? 0) ? (gradient ?? null) : null, belowSize: this.recorded.gradients.get(key) ?? gradient } : {}),
      tone: broken ? "warning" : at === current ? (this.steps[step]?.direction === "forward" ? "accent" : "backward") : node.role === "source" && node.grad ? "accent" : "plain",
      badge,
      warns: Boolean(broken || node.problem || badge.includes("dead")),
    };
  }

  /** @param {number} at @param {Shown | null} value @param {boolean} broken */
  badgeOf(at, value, broken) {
    const node = this.nodes[at];
    if (broken) return "NaN or inf starts here";
    if (node.problem) return "changed in place: backward fails";
    if (node.op?.startsWith("relu") && value) {
      if (value.zeros === value.count) return "dead: all 0";
      if (value.dead) return `${value.dead} of ${value.shape[value.shape.length - 1]} units dead`;
    }
    if (node.op?.startsWith("detach")) return "detached: no gradient";
    if (node.enabled === false) return "no_grad";
    if (node.before) return "adds to a .grad";
    return node.checkpoint ? "recomputed in backward" : node.inplace ? "in place" : "";
  }

  /** @param {Link} link @param {Moment} moment @param {number} current @returns {import("./living_canvas.js").Edge} */
  edgeState(link, { at: step, progress, edges }, current) {
    const { from, to, output, input } = link;
    const flow = this.now.flows.get(`${to} ${input}`);
    const carried = edges === "values" ? this.now.values.get(`${from} ${output}`) : flow;
    const backward = edges === "gradients";
    const moves = progress < 1;
    const isForward = moves && !backward && to === current;
    const isBack = moves && backward && from === current;
    const broken = carried && !Number.isFinite(carried.norm);
    const recomputed = moves && backward && this.nodes[to].checkpoint && this.nodes[current]?.checkpoint;
    const active = backward ? from === current || to === current : to === current;
    return {
      from: this.nodes[from].id,
      to: this.nodes[to].id,
      width: widthOf(carried),
      dashed: backward && !flow,
      tone: broken ? "warning" : active ? (backward ? "backward" : "accent") : "quiet",
      label: this.labelAt(link, step, backward, current),
      ...(isForward ? { flow: progress } : isBack ? { flow: progress, back: true } : recomputed ? { flow: progress } : {}),
    };
  }

  /** What is written on an edge in backward: the local derivative, and terms of a sum. @param {Link} link @param {number} step @param {boolean} backward @param {number} current */
  labelAt({ from, to, input }, step, backward, current) {
    const flow = this.now.flows.get(`${to} ${input}`);
    if (!backward || !flow || (this.backAt?.[to] ?? Infinity) > step) return "";
    const terms = from === current ? this.links.filter((link) => link.from === from && this.now.flows.has(`${link.to} ${link.input}`)) : [];
    if (terms.length > 1) return `${terms[0].to === to && terms[0].input === input ? "" : "+ "}${few(flow) || `‖·‖ ${digitsOf(flow.norm)}`}`;
    if (to !== current && this.links.length > FEW_EDGES) return "";
    const derivative = this.now.derivatives.get(`${to} ${input}`);
    const formula = to === current ? this.formulaOf(to, input) : "";
    return shortened([formula, derivative && few(derivative) ? `× ${few(derivative)}` : ""].filter(Boolean).join("  "));
  }

  /** @param {number} to @param {number} input */
  formulaOf(to, input) {
    const formulas = this.steps[this.backAt?.[to] ?? -1]?.formulas ?? [];
    const wanted = this.links.filter((link) => link.to === to && this.nodes[link.from].grad);
    return formulas[wanted.findIndex((link) => link.input === input)] ?? "";
  }
}

/** @param {string} text */
const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

/** A few numbers in words; "" if they are more. @param {Shown} tensor */
function few({ numbers }) {
  if (!numbers || numbers.length > FEW) return "";
  return numbers.length === 1 ? digitsOf(numbers[0]) : `[${Array.from(numbers, digitsOf).join(", ")}]`;
}

/** @param {Shown} tensor */
export function inWords(tensor) {
  const { norm, low, high, nans, infinite, type, numbers } = tensor;
  if (numbers && numbers.length <= FEW * FEW) return numbers.length === 1 ? digitsOf(numbers[0]) : `[${Array.from(numbers, digitsOf).join(", ")}]`;
  const broken = [nans ? `${nans} NaN` : "", infinite ? `${infinite} infinite` : ""].filter(Boolean).join(", ");
  return `${type}, norm ${digitsOf(norm)}, ${broken || `${digitsOf(low)} to ${digitsOf(high)}`}`;
}

/** A line's width: the logarithm of what it carries. @param {Shown | undefined} tensor */
function widthOf(tensor) {
  if (!tensor) return 1;
  if (!Number.isFinite(tensor.norm)) return 6;
  return tensor.norm ? Math.min(9, Math.max(1, 1 + 1.2 * (Math.log10(tensor.norm) + 3))) : 0.75;
}

/** How many numbers of a tensor are changed one by one, rather than all by a factor. @param {number[]} shape */
export const hasFew = (shape) => countOf(shape) <= FEW * FEW;
