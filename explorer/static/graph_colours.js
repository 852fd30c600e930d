// Colours of a graph view: the theme, as CSS says it, and what node colours mean. The hues are Okabe and Ito's, which
// people with any colour vision tell apart.

import { bytesInWords } from "./dom.js";
import { opName } from "./graph_model.js";
import { LINE_COLOURS } from "./rainbow.js";

/**
 * @typedef {import("./graph_model.js").Entity} Entity
 * @typedef {{bg: string, panel: string, fg: string, muted: string, border: string, accent: string, link: string,
 *   hover: string, warning: string, lines: string[], dark: boolean, sans: string}} Theme
 *
 * What a colour stands for. Shares of one thing add up to 1.
 * @typedef {{label: string, colour: string, share: number}} Part
 */

const HUES = ["#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#0072B2", "#F0E442"];
const DARK_HUES = ["#EE7B2E", "#6FC3F2", "#22B98B", "#DB92BA", "#EDAE2B", "#4E9FE0", "#F0E442"];

/** Families of operations, by name; the first that fits counts. @type {[string, number, RegExp][]} */
const FAMILIES = [
  [
    "matmul, conv, attention",
    0,
    /^(mm|bmm|addmm|addbmm|baddbmm|_?\w*mm|linear|matmul|einsum|\w*conv(?!ert)\w*|\w*attention\w*|template)$/i,
  ],
  ["random", 6, /rand|dropout|seed|bernoulli|multinomial/i],
  [
    "reduction",
    2,
    /^(sum|mean|var|var_mean|std|amax|amin|max|min|argmax|argmin|any|all|prod|cumsum|cumprod|logsumexp|norm|reduction|nll_loss\w*|cross_entropy|_?\w*softmax\w*|\w*_norm\w*|\w*pool\w*|topk|sort)$/i,
  ],
  [
    "index",
    3,
    /embedding|index|gather|scatter|^(cat|stack|concatkernel|slice\w*|select\w*|where|masked_\w+|constant_pad_nd|pad|take\w*)$/i,
  ],
  [
    "create",
    4,
    /^(full\w*|zeros\w*|ones\w*|empty\w*|arange|iota|scalar_tensor|new_\w+|\w*_like|randint|eye|linspace|tensor)$/i,
  ],
  ["fused", 5, /fused/i],
  [
    "view",
    -1,
    /view|shape|permute|transpose|^(t|expand\w*|squeeze\w*|unsqueeze\w*|alias|split\w*|chunk|getitem|contiguous|clone|detach|flatten|unfold|as_strided|to|_to_copy|movedim|multioutput|repeat)$/i,
  ],
  ["pointwise", 1, /./],
];

/** What the colours are taken from, if CSS does not say: light, dark. */
const DEFAULTS = {
  bg: ["--jp-layout-color1", "#ffffff", "#16191e"],
  panel: ["--jp-layout-color2", "#f5f6f8", "#1e2228"],
  fg: ["--jp-content-font-color1", "#1c2128", "#e3e7ec"],
  muted: ["--jp-content-font-color2", "#5f6873", "#98a2ae"],
  border: ["--jp-border-color2", "#d9dde3", "#343a43"],
  accent: ["--jp-brand-color1", "#0b63c5", "#5aa9ff"],
  link: ["--jp-warn-color1", "#e08a00", "#f5b041"],
  hover: ["--jp-layout-color3", "#e8ebef", "#2a3038"],
  warning: ["--jp-error-color1", "#c2410c", "#ff9457"],
};

/** @param {HTMLElement} root @returns {Theme} */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const opaque = colourReader();
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const bg = opaque(read("--tc-bg") || read("--jp-layout-color1") || "#ffffff", "#ffffff");
  const dark = brightness(bg) < 0.5;
  const colour = (/** @type {keyof typeof DEFAULTS} */ name) => {
    const [jupyter, light, dim] = DEFAULTS[name];
    return opaque(read(`--tc-${name}`) || read(jupyter) || (dark ? dim : light), bg);
  };
  const names = /** @type {(keyof typeof DEFAULTS)[]} */ (Object.keys(DEFAULTS));
  const colours = /** @type {Record<keyof typeof DEFAULTS, string>} */ (
    Object.fromEntries(names.map((name) => [name, colour(name)]))
  );
  const lines = Array.from({ length: LINE_COLOURS }, (_, hue) => opaque(read(`--tc-r${hue}`) || bg, bg));
  return { ...colours, lines, dark, sans: style.fontFamily || "sans-serif" };
}

/** Turns any CSS colour, over another if it lets light through, into `#rrggbb`, by painting it. */
export function colourReader() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  return (/** @type {string} */ colour, /** @type {string} */ under) => {
    for (const layer of [under, colour]) {
      context.fillStyle = layer;
      context.fillRect(0, 0, 1, 1);
    }
    return hex([...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  };
}

/** @param {string} colour */
function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** @param {number[]} rgb */
function hex(rgb) {
  return `#${rgb.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
}

/** @param {string} from @param {string} to both `#rrggbb` @param {number} share of `to` */
export function mix(from, to, share) {
  const [a, b] = [channels(from), channels(to)];
  return hex(a.map((value, i) => value + (b[i] - value) * share));
}

/** 0 for black to 1 for white. @param {string} colour */
export function brightness(colour) {
  const [r, g, b] = channels(colour);
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}

/** What node colours mean: families of operations, or the values of an attribute. */
export class Colouring {
  /**
   * @param {string} overlay an attribute, or "none" @param {Theme} theme @param {Entity[][]} shown the things in sight, by their members
   * @param {import("./rainbow.js").Rainbow | null} [rainbow] if colours mean source lines
   */
  constructor(overlay, theme, shown, rainbow = null) {
    this.overlay = overlay;
    this.rainbow = rainbow;
    this.theme = theme;
    this.hues = theme.dark ? DARK_HUES : HUES;
    this.grey = mix(theme.bg, theme.muted, 0.7);
    /** @type {WeakMap<Entity[], Part[]>} */
    this.known = new WeakMap();
    const values = shown.flat().map((entity) => entity.attrs[overlay]);
    this.numeric = !rainbow && overlay !== "none" && values.some((value) => typeof value === "number");
    const counts = new Map();
    for (const value of values) if (typeof value === "string") counts.set(value, (counts.get(value) ?? 0) + 1);
    this.categories = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
    const amounts = this.numeric ? shown.map((members) => this.amount(members)).filter((amount) => amount > 0) : [];
    this.low = amounts.reduce((least, amount) => Math.min(least, amount), Infinity);
    this.high = amounts.reduce((most, amount) => Math.max(most, amount), 0);
  }

  /** The attribute, summed; of norms, the norm of all. @param {Entity[]} members */
  amount(members) {
    const numbers = members.map(({ attrs }) => attrs[this.overlay]).filter((value) => typeof value === "number");
    return /norm$/.test(this.overlay) ? Math.hypot(...numbers) : numbers.reduce((sum, value) => sum + value, 0);
  }

  /** What the members' colours are, the commonest first. @param {Entity[]} members @returns {Part[]} */
  parts(members) {
    const known = this.known.get(members);
    if (known) return known;
    /** @type {Map<string, Part>} */
    const parts = new Map();
    const named = this.numeric ? [this.ramp(this.amount(members))] : members.flatMap((entity) => this.meanings(entity));
    for (const { label, colour } of named) {
      const part = parts.get(label) ?? { label, colour, share: 0 };
      part.share += 1 / named.length;
      parts.set(label, part);
    }
    const sorted = [...parts.values()].sort((a, b) => b.share - a.share);
    this.known.set(members, sorted);
    return sorted;
  }

  /** @param {Entity} entity */
  meanings(entity) {
    if (!this.rainbow) return [this.category(entity)];
    const lines = this.rainbow.partsOf(entity.id).map(({ label, hue }) => ({ label, colour: this.theme.lines[hue] }));
    return lines.length ? lines : [{ label: "none", colour: this.grey }];
  }

  /** @param {Entity} entity */
  category(entity) {
    if (this.overlay === "none") return this.family(entity);
    const place = this.categories.indexOf(entity.attrs[this.overlay]);
    if (place < 0) return { label: "none", colour: this.grey };
    return { label: this.categories[place], colour: this.hues[place] ?? this.grey };
  }

  /** @param {Entity} entity */
  family(entity) {
    if ("about" in entity.attrs) return this.partOfMap(entity.kind);
    if (entity.kind === "stop") return { label: "no gradient", colour: this.grey };
    if (entity.kind === "accumulate") return { label: "leaf", colour: this.hues[4] };
    const { category } = entity.attrs;
    const fused = /(^|_)fused/.test(entity.label) ? "fused" : "";
    const word = ["reduction", "pointwise", "template"].includes(category) ? category : fused || opName(entity);
    const found = FAMILIES.find(([, , pattern]) => pattern.test(word));
    const [label, hue] = found ?? ["other", -1];
    return { label, colour: hue < 0 ? this.grey : this.hues[hue] };
  }

  /** What a node of the frame map is. @param {string} kind */
  partOfMap(kind) {
    const { hues, grey, theme } = this;
    const colours = { function: hues[5], resume: hues[1], graph: hues[2], break: theme.warning };
    const label = { resume: "resumes after a break", plain: "plain Python" }[kind] ?? kind;
    return { label, colour: colours[/** @type {keyof typeof colours} */ (kind)] ?? grey };
  }

  /** @param {number} amount on a logarithmic scale from the least in sight to the most */
  ramp(amount) {
    if (amount <= 0) return { label: "none", colour: this.grey };
    const share = this.high > this.low ? Math.log(amount / this.low) / Math.log(this.high / this.low) : 1;
    return { label: this.words(amount), colour: mix(this.theme.bg, this.hues[5], 0.12 + 0.88 * share) };
  }

  /** @param {number} amount */
  words(amount) {
    if (/norm$/.test(this.overlay)) return amount.toPrecision(3);
    if (/µs$/.test(this.overlay)) return `${Number(amount.toPrecision(3)).toLocaleString("en")} µs`;
    return /bytes$/.test(this.overlay) ? bytesInWords(amount) : amount.toLocaleString("en");
  }

  /** What the legend says. @param {Entity[][]} shown @returns {{label: string, colours: string[]}[]} */
  legend(shown) {
    if (this.numeric && this.high > 0) {
      const colours = [0, 0.25, 0.5, 0.75, 1].map((at) => this.ramp(this.low * (this.high / this.low) ** at).colour);
      return [{ label: `${this.words(this.low)} to ${this.words(this.high)}`, colours }];
    }
    const parts = this.parts(shown.flat());
    return parts.slice(0, 8).map(({ label, colour }) => ({ label, colours: [colour] }));
  }
}
