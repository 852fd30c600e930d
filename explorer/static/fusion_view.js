// Fusion: what a call moves, before and after; each kernel with the nodes it is made of, round by round; and the pairs
// that were not fused, by reason, with what that costs.

import { bytesInWords, counted, h } from "./dom.js";
import { FindingView } from "./finding_view.js";

/**
 * A node, by name, or what two became: round, bytes saved by Inductor's score, and the two.
 * @typedef {string | [number, number, any, any]} Tree
 * @typedef {{id: string, name: string, library: boolean, before: number, after: number, least: number, tree: Tree,
 *   parts: Record<string, [string, string, string]>}} Kernel
 * @typedef {[number, number, number, string, number, number]} Refusal first, second, reason, torch's text, round, bytes
 * @typedef {{title: string, before: number, after: number, leastEach: number, least: number, rounds: number,
 *   kernels: Kernel[], reasons: [string, number, number][], refusals: Refusal[]}} Half
 */

/** So many cards and pairs are made at once. */
const MANY = 60;
const MODES = { kernels: "Fused nodes and calls", refused: "Not fused" };
const ORDERS = { order: "as they run", bytes: "by bytes moved", saved: "by bytes saved", stake: "by potential saving" };

export class FusionView extends FindingView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(root, callbacks, artifact, store);
    /** @type {Half[]} */
    this.halves = artifact.view.halves;
    this.half = this.halves[0];
    /** @type {keyof typeof MODES} */
    this.mode = "kernels";
    /** @type {keyof typeof ORDERS} */
    this.order = "order";
    this.reason = -1;
    this.body = h("div", { class: "tc-fusion-body" });
    this.head = h("div", { class: "tc-fusion-head" });
    this.scroller.replaceChildren(h("div", { class: "tc-fusion" }, this.head, this.body));
    this.redraw();
  }

  /** @param {number} [wanted] number of a kernel that is to be among those made */
  redraw(wanted = -1) {
    this.items.clear();
    this.within.clear();
    this.head.replaceChildren(this.tools(), this.totals());
    this.body.replaceChildren(...(this.mode === "kernels" ? this.kernels(wanted) : this.refused()));
    this.mark();
  }

  tools() {
    const halves = chooser("Half of the graph", this.halves.map(({ title }) => title), this.halves.indexOf(this.half), (index) => {
      this.half = this.halves[index];
      this.reason = -1;
      this.redraw();
    });
    const counts = { kernels: this.half.kernels.length, refused: this.half.refusals.length };
    const modes = /** @type {(keyof typeof MODES)[]} */ (Object.keys(MODES)).map((mode) => {
      const onclick = () => this.turn(mode);
      return h("button", { type: "button", "aria-pressed": String(mode === this.mode), onclick }, `${MODES[mode]} ${counts[mode].toLocaleString("en")}`);
    });
    const group = h("div", { class: "tc-modes", role: "group", "aria-label": "What is shown" }, ...modes);
    return h("div", { class: "tc-fusion-tools" }, this.halves.length > 1 ? halves : h("b", {}, this.half.title), group, this.mode === "kernels" ? this.orders() : this.reasons());
  }

  /** @param {keyof typeof MODES} mode */
  turn(mode) {
    this.mode = mode;
    this.redraw();
    const chosen = this.head.querySelector(".tc-modes [aria-pressed=true]");
    if (chosen instanceof HTMLElement) chosen.focus();
  }

  orders() {
    const names = /** @type {(keyof typeof ORDERS)[]} */ (Object.keys(ORDERS));
    return chooser("Order of the kernels", Object.values(ORDERS), names.indexOf(this.order), (index) => {
      this.order = names[index];
      this.redraw();
    });
  }

  reasons() {
    const { reasons, refusals } = this.half;
    const words = reasons.map(([text, count, bytes]) => `${count.toLocaleString("en")} · ${bytesInWords(bytes)} · ${text}`);
    return chooser("Reason", [`all reasons · ${refusals.length.toLocaleString("en")}`, ...words], this.reason + 1, (index) => {
      this.reason = index - 1;
      this.redraw();
    });
  }

  // The whole call

  /** This half and that of the other side, where there is one: bars of both are drawn to one scale. @returns {Half[]} */
  halvesBeside() {
    const others = /** @type {Half[]} */ (this.beside?.halves ?? []);
    return [this.half, ...others.filter(({ title }) => title === this.half.title)];
  }

  totals() {
    const { before, after, leastEach, least } = this.half;
    const most = Math.max(1, ...this.halvesBeside().flatMap((half) => [half.before, half.after]));
    const rows = [
      ["without fusion", before, "tc-fusion-before", "Every node a kernel of its own"],
      ["as generated", after, "tc-fusion-now", "What the generated kernels and calls read and write"],
      ["each byte once for each kernel", leastEach, "tc-fusion-least", "Inputs and outputs of each kernel: what it would move if it read nothing twice"],
      ["all in one kernel", least, "tc-fusion-least", "Inputs and outputs of the graph: no intermediate would touch memory"],
    ];
    const list = rows.map(([name, bytes, kind, title]) =>
      h(
        "div",
        { class: "tc-fusion-total", title: String(title) },
        h("dt", {}, String(name)),
        h("dd", {}, h("span", { class: `tc-fusion-bar ${kind}`, style: { width: `${(100 * Number(bytes)) / most}%` } }), h("span", {}, bytesInWords(Number(bytes)))),
      ),
    );
    return h("dl", { class: "tc-fusion-totals", "aria-label": "Bytes that one call moves" }, ...list);
  }

  // Kernels

  /** @param {number} wanted */
  kernels(wanted) {
    const stake = stakes(this.half);
    /** @type {Record<keyof typeof ORDERS, (index: number) => number>} */
    const keys = {
      order: (index) => index,
      bytes: (index) => -this.half.kernels[index].after,
      saved: (index) => this.half.kernels[index].after - this.half.kernels[index].before,
      stake: (index) => -stake[index],
    };
    const key = keys[this.order];
    const order = [...this.half.kernels.keys()].sort((a, b) => key(a) - key(b));
    const all = this.halvesBeside().flatMap((half) => half.kernels);
    const most = Math.max(1, ...all.map(({ before, after }) => Math.max(before, after)));
    return this.inPortions(order, (index) => this.card(index, most, stake[index]), order.indexOf(wanted));
  }

  /**
   * Elements for numbers, some at once and the others when they are asked for.
   * @param {number[]} numbers @param {(number: number) => HTMLElement} make @param {number} [needed] place that has to be there
   */
  inPortions(numbers, make, needed = -1) {
    const list = h("ol", { class: "tc-fusion-list" });
    const more = h("button", { class: "tc-more", type: "button" });
    const show = (/** @type {number} */ count) => {
      const from = list.childElementCount;
      list.append(...numbers.slice(from, from + count).map(make));
      const left = numbers.length - list.childElementCount;
      more.hidden = left <= 0;
      more.textContent = `${left.toLocaleString("en")} more`;
      this.mark();
    };
    more.onclick = () => show(MANY);
    show(Math.max(MANY, needed + 1));
    return [list, more];
  }

  /** @param {number} index @param {number} most @param {number} stake */
  card(index, most, stake) {
    const kernel = this.half.kernels[index];
    const { id, name, library, before, after, least, tree } = kernel;
    const nodes = leaves(tree).length;
    const facts = [library ? "extern call" : counted(nodes, "node"), before > after ? `saves ${bytesInWords(before - after)}` : "", stake ? `potential saving ${bytesInWords(stake)}` : ""];
    const bars = h(
      "span",
      { class: "tc-fusion-bars", title: `Before ${bytesInWords(before)}, now ${bytesInWords(after)}, at least ${bytesInWords(least)}` },
      h("span", { class: "tc-fusion-bar tc-fusion-before", style: { width: `${(100 * before) / most}%` } }),
      h("span", { class: "tc-fusion-bar tc-fusion-now", style: { width: `${(100 * after) / most}%` } }),
      h("span", { class: "tc-fusion-mark", style: { left: `${(100 * least) / most}%` } }),
    );
    const numbers = before > after ? `${bytesInWords(before)} → ${bytesInWords(after)}` : bytesInWords(after);
    const twice = after > least ? h("small", {}, `${bytesInWords(after - least)} read more than once`) : null;
    const head = h(
      "div",
      { class: "tc-fusion-row" },
      h("span", { class: "tc-fusion-name", title: name }, h("code", {}, name), h("small", {}, facts.filter(Boolean).join(" · "))),
      bars,
      h("span", { class: "tc-fusion-bytes" }, numbers, twice),
    );
    const more = this.more(index);
    return this.item(id, h("li", { class: "tc-fusion-kernel" }, head, more));
  }

  /** How it was put together, and with what it was not. @param {number} index */
  more(index) {
    const { tree, parts, library } = this.half.kernels[index];
    const near = this.half.refusals.filter(([first, second]) => first === index || second === index);
    if (typeof tree === "string" && !near.length) return null;
    const grown = typeof tree === "string" ? [] : [h("ul", { class: "tc-fusion-tree" }, treeItem(tree, parts, (node) => this.callbacks.onSelect([node], false)))];
    const others = near.map((refusal) => this.pair(refusal, index));
    const title = [typeof tree === "string" ? "" : `${counted(tree[0], "round")} of fusion`, near.length ? `${counted(near.length, "neighbour")} not fused` : ""];
    const content = () => [...grown, ...(others.length ? [h("ul", { class: "tc-fusion-near" }, ...others)] : [])];
    return library && !near.length ? null : this.fold([title.filter(Boolean).join(" · ")], [], content);
  }

  // Pairs that were not fused

  refused() {
    const numbers = [...this.half.refusals.keys()].filter((number) => this.reason < 0 || this.half.refusals[number][2] === this.reason);
    const bytes = numbers.reduce((sum, number) => sum + this.half.refusals[number][5], 0);
    const words = `${counted(numbers.length, "pair")}. One kernel in place of two would save at most the bytes in front of it. The sum, ${bytesInWords(bytes)}, counts tensors that several pairs share more than once.`;
    return [h("p", { class: "tc-why" }, words), ...this.inPortions(numbers, (number) => this.pair(this.half.refusals[number]))];
  }

  /** @param {Refusal} refusal @param {number} [beside] the kernel on whose card it stands */
  pair([first, second, reason, told, round, bytes], beside = -1) {
    const { kernels, reasons } = this.half;
    const shown = beside < 0 ? [first, second] : [beside === first ? second : first];
    const names = shown.map((index) => {
      const onclick = () => this.callbacks.onSelect([kernels[index].id], false);
      return h("button", { class: "tc-link", type: "button", title: "Select this kernel", onclick }, kernels[index].name);
    });
    const torch = told ? h("small", { class: "tc-fusion-torch" }, `torch, round ${round}: `, h("code", {}, told)) : null;
    return h(
      "li",
      { class: "tc-fusion-pair" },
      h("span", { class: "tc-fusion-stake" }, bytesInWords(bytes)),
      h("span", {}, h("span", { class: "tc-fusion-names" }, names[0], names.length > 1 ? " and " : "", names[1] ?? ""), h("span", { class: "tc-fusion-reason" }, reasons[reason][0]), torch),
    );
  }

  // What panes ask of it

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const found = this.chosen(primary, linked);
    if (reveal && found && (found.half !== this.half || this.mode !== "kernels" || !this.items.has(found.id))) {
      this.half = found.half;
      this.mode = "kernels";
      this.redraw(found.index);
    }
    super.select(primary, linked, reveal);
    this.linked = this.half.kernels.map(({ id }) => id).filter((id) => linked.has(id));
  }

  /** The card of a kernel; those further down are made when they are wanted. @param {string} id */
  elementOf(id) {
    const index = this.half.kernels.findIndex((kernel) => kernel.id === id);
    if (index >= 0 && !this.items.has(id)) {
      this.mode = "kernels";
      this.redraw(index);
    }
    return this.items.get(id);
  }

  /** All kernels of this half, made or not. @param {string} wanted */
  matching(wanted) {
    return this.half.kernels.filter(({ name }) => name.toLowerCase().includes(wanted)).map(({ id }) => id);
  }

  /** The kernel that a selection is about, in the half that is shown if it is there. @param {Set<string>} primary @param {Set<string>} linked */
  chosen(primary, linked) {
    for (const ids of [primary, linked]) {
      for (const half of [this.half, ...this.halves]) {
        const index = half.kernels.findIndex(({ id }) => ids.has(id));
        if (index >= 0) return { half, index, id: half.kernels[index].id };
      }
    }
    return null;
  }
}

/** @param {string} name @param {string[]} options @param {number} chosen @param {(index: number) => void} choose */
function chooser(name, options, chosen, choose) {
  const select = h("select", { class: "tc-choose", "aria-label": name });
  select.append(...options.map((words, index) => h("option", { value: String(index), selected: index === chosen }, words)));
  select.addEventListener("change", () => {
    choose(Number(select.value));
    const again = document.querySelector(`.tc-fusion-tools [aria-label="${name}"]`);
    if (again instanceof HTMLElement) again.focus();
  });
  return select;
}

/** What not fusing costs each kernel, with all of its neighbours. @param {Half} half */
function stakes({ kernels, refusals }) {
  const stake = kernels.map(() => 0);
  for (const [first, second, , , , bytes] of refusals) {
    stake[first] += bytes;
    stake[second] += bytes;
  }
  return stake;
}

/** @param {Tree} tree @returns {string[]} */
function leaves(tree) {
  return typeof tree === "string" ? [tree] : [...leaves(tree[2]), ...leaves(tree[3])];
}

/** @param {Tree} tree @param {Kernel["parts"]} parts @param {(id: string) => void} select @returns {HTMLElement} */
function treeItem(tree, parts, select) {
  if (typeof tree === "string") {
    const [id, kind, what] = parts[tree] ?? ["", "", ""];
    const onclick = () => select(id);
    const name = id ? h("button", { class: "tc-link", type: "button", title: `Select ${id}`, onclick }, tree) : h("code", {}, tree);
    return h("li", {}, name, h("small", {}, ` ${kind}${what && what.toLowerCase() !== kind ? ` ${what}` : ""}`));
  }
  const [round, saved, first, second] = tree;
  const label = h("span", { class: "tc-fusion-step" }, `round ${round}`, h("small", {}, ` ${bytesInWords(saved)} shared`));
  return h("li", {}, label, h("ul", {}, treeItem(first, parts, select), treeItem(second, parts, select)));
}
