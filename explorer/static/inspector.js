// Everything about the selected entity, and with nothing selected an overview of the record.

import { prose } from "./card_parts.js";
import { bytesInWords, h, icon, iconButton, replaceKeepingFocus, secondsInWords } from "./dom.js";
import { findingCard } from "./finding_card.js";
import { cellText } from "./list_view.js";
import { frameName } from "./source_marks.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Entity} Entity */
/** @typedef {import("./store.js").BreakInfo} BreakInfo */
/**
 * What can be done from here: select an entity or a row and open its artifact, open an artifact, a stage or the
 * comparison of two artifacts, preview links, clear the selection; with a kernel, also open the kernel lab, make a
 * stage, put chosen fixes into a new cell.
 * @typedef {{goTo: (id: string) => void, goToRow: (artifact: string, row: number) => void,
 *   open: (artifact: string) => void, openStage: (stage: string) => void,
 *   compare: (first: string, second: string) => void,
 *   preview: (ids: string[]) => void, clear: () => void, openLab: ((kernel: string) => void) | null,
 *   make: ((stage: string) => void) | null, newCell: ((fixes: string[]) => void) | null}} Actions
 */

/** Attributes with a place of their own, so not listed again. */
const PLACED = new Set("cause placements dtype shape stride device bytes module module_type stacks target code op file line eager_time compiled_time measured_µs launch".split(" "));
/** What languages and verdicts are called here. @type {Record<string, string>} */
const LANGUAGES = { triton: "Triton", cpp: "C++" };
/** @type {Record<string, string>} */
const VERDICTS = { extern: "extern call" };
/** So many of a list are shown before the rest is asked for. */
const FEW = 6;
const MOST = 500;
const NEXT_STEPS = 3;

export class Inspector {
  /** @param {Store} store @param {Actions} actions */
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.cards = h("div", { class: "tc-cards" });
    this.root = h("aside", { class: "tc-inspector", "aria-label": "Inspector", tabIndex: 0 }, this.cards);
    this.at = 0;
  }

  render() {
    const ids = [...this.store.primary].filter((id) => this.store.links.entity(id));
    this.at = Math.min(this.at, Math.max(ids.length - 1, 0));
    replaceKeepingFocus(this.cards, this.content(ids), this.root);
  }

  /** @param {string[]} ids @returns {HTMLElement[]} */
  content(ids) {
    return ids.length ? this.entityCard(ids) : this.overview();
  }

  // One entity

  /** @param {string[]} ids @returns {HTMLElement[]} */
  entityCard(ids) {
    const entity = /** @type {Entity} */ (this.store.links.entity(ids[this.at]));
    const card = findingCard(this.store, entity, this.actions, this.corner(ids));
    if (card) return [card, this.chain(entity)];
    return [
      this.heading(entity, ids),
      this.comparison(ids),
      facts(tensorFacts(entity)),
      this.kernelFacts(entity),
      this.codeOf(entity),
      this.treeOf(entity),
      this.stack(entity),
      this.neighbours("Inputs", entity.inputs),
      this.neighbours("Used by", this.users(entity)),
      ...this.listed(entity).map((name) => this.neighbours(inWords(name), entity.attrs[name])),
      this.decisions(entity),
      this.chain(entity),
      section("More", facts(otherFacts(entity, this.listed(entity)))),
    ].filter((part) => part.childElementCount > 0);
  }

  /** @param {Entity} entity @param {string[]} ids */
  heading(entity, ids) {
    const heading = h("div", { class: "tc-heading" }, h("h3", { title: entity.id }, entity.label || entity.id));
    heading.append(...this.corner(ids));
    const { target } = entity.attrs;
    const where = h("p", { class: "tc-where" }, `${entity.kind.replace("_", " ")} in ${this.placeOf(entity)}`);
    return h(
      "div",
      { class: "tc-card-top" },
      heading,
      target && target !== entity.label ? h("code", { class: "tc-target" }, target) : null,
      where,
    );
  }

  /** Two kernels that are selected can be compared. @param {string[]} ids */
  comparison(ids) {
    const isKernel = (/** @type {string} */ id) => this.store.links.entity(id)?.kind === "kernel";
    if (ids.length !== 2 || !ids.every(isKernel)) return h("div");
    const onclick = () => this.actions.compare(ids[0], ids[1]);
    return h("div", {}, h("button", { class: "tc-lab", type: "button", onclick }, "Compare the two kernels"));
  }

  /** What stands in the corner of a card. @param {string[]} ids */
  corner(ids) {
    const close = iconButton("close", "Clear the selection (Escape)", () => this.actions.clear());
    return ids.length > 1 ? [this.stepper(ids.length), close] : [close];
  }

  /** The artifact it is in; those of machine code have their kernel's name, in every stage. @param {Entity} entity */
  placeOf(entity) {
    const { stage = "", title = "" } = this.store.artifactOf(entity.id)?.info ?? {};
    return entity.kind === "instructions" ? `${this.store.stage(stage)?.title} of ${title}` : title;
  }

  /** @param {number} count */
  stepper(count) {
    /** @param {number} step */
    const move = (step) => {
      this.at = (this.at + step + count) % count;
      this.render();
    };
    return h(
      "span",
      { class: "tc-stepper" },
      iconButton("up", "Previous selected", () => move(-1)),
      `${this.at + 1} of ${count}`,
      iconButton("down", "Next selected", () => move(1)),
    );
  }

  /** @param {Entity} entity */
  codeOf(entity) {
    const code = entity.attrs.code === entity.label ? "" : entity.attrs.code;
    return h("div", {}, code ? h("pre", { class: "tc-code" }, String(code).trim()) : null);
  }

  /** What the list of kernels says of it, and the way to the lab. @param {Entity} entity */
  kernelFacts(entity) {
    const list = this.store.stage(this.store.artifactOf(entity.id)?.info.stage ?? "")?.list;
    const row = list?.rows.find(({ id }) => id === entity.id);
    if (!list || !row) return h("div");
    const pairs = list.columns.map(({ title, unit }, index) => [title, cellText(row.cells[index], unit)]);
    const known = facts(/** @type {[string, string][]} */ (pairs.slice(1)));
    const { openLab } = this.actions;
    if (!openLab || !(entity.attrs.language === "triton" || entity.attrs.launch)) return h("div", {}, known);
    const onclick = () => openLab(entity.id);
    const title = "Copies a cell to change the kernel, run it and compare it";
    return h("div", {}, h("button", { class: "tc-lab", type: "button", title, onclick }, "Open in the kernel lab"), known);
  }

  /** What a call becomes, level by level: asked of Python, as it runs the operator. @param {Entity} entity */
  treeOf(entity) {
    const { kernel, trees, manifest } = this.store;
    const stage = this.store.artifactOf(entity.id)?.info.stage ?? "";
    const text = trees.get(entity.id);
    if (text) return section("At each level", h("div", {}, h("pre", { class: "tc-code tc-tree", tabIndex: 0 }, text)));
    if (!kernel || entity.kind !== "call" || !manifest.trees.includes(stage)) return h("div");
    const title = "The call as ATen, core ATen, Inductor's and prim operators, with the numbers of each";
    const button = h("button", { class: "tc-lab", type: "button", title }, "Decompose it, level by level");
    button.addEventListener("click", () => {
      button.disabled = true;
      button.textContent = "Tracing…";
      kernel.tree(entity.id);
    });
    return h("div", {}, button);
  }

  /** The lines of the user's code it came from, outermost first. @param {Entity} entity */
  stack(entity) {
    const frames = this.store.stack(entity.id).map((id) => this.link(id, this.lineName(id)));
    return section("Python stack", h("ol", { class: "tc-stack" }, ...frames.map((frame) => h("li", {}, frame))));
  }

  /** @param {string} id of a source line */
  lineName(id) {
    const text = this.store.links.entity(id)?.label ?? "";
    return [h("span", { class: "tc-place" }, this.placeName(id)), " ", h("span", { class: "tc-code" }, text)];
  }

  /** @param {string} id of a source line @returns {string} file:line */
  placeName(id) {
    const line = this.store.links.entity(id)?.attrs.line ?? "";
    return `${this.store.artifactOf(id)?.info.title.split("/").at(-1)}:${line}`;
  }

  /** @param {Entity} entity @returns {string[]} */
  users(entity) {
    const all = this.store.artifactOf(entity.id)?.entities ?? [];
    return all.filter((other) => other.inputs.includes(entity.id)).map((other) => other.id);
  }

  /** @param {string} title @param {string[]} ids */
  neighbours(title, ids) {
    return section(title, this.list(ids));
  }

  /** The names of its attributes that are lists of other entities. @param {Entity} entity @returns {string[]} */
  listed({ attrs }) {
    const known = (/** @type {any} */ id) => typeof id === "string" && this.store.links.entity(id) !== undefined;
    return Object.keys(attrs).filter((name) => Array.isArray(attrs[name]) && attrs[name].length > 0 && attrs[name].every(known));
  }

  /** Links to entities; past the first few, a button shows the rest. @param {string[]} ids @param {string} [current] */
  list(ids, current) {
    const list = h("div", { class: "tc-list" });
    const show = (/** @type {string[]} */ some) =>
      list.append(...some.map((id) => this.link(id, this.named(id), id === current)));
    show(ids.slice(0, FEW));
    if (ids.length <= FEW) return list;
    const showRest = () => {
      more.remove();
      show(ids.slice(FEW, MOST));
    };
    const more = h("button", { class: "tc-more", type: "button", onclick: showRest }, `${ids.length - FEW} more`);
    list.append(more);
    return list;
  }

  /** @param {string} id */
  shortName(id) {
    const entity = this.store.links.entity(id);
    return entity?.kind === "line" ? this.placeName(id) : entity?.label || id;
  }

  /**
   * What a link to it says: a line of a kernel is cut to the room there is, and tells how many instructions it became.
   * @param {string} id
   */
  named(id) {
    const entity = this.store.links.entity(id);
    if (entity?.kind !== "triton" && entity?.kind !== "instructions") return prose(this.shortName(id));
    const count = entity.attrs.instructions;
    const more = count ? [h("span", { class: "tc-count" }, ` × ${count.toLocaleString("en")}`)] : [];
    return [h("span", { class: "tc-line-name", title: entity.label }, this.shortName(id)), ...more];
  }

  /** @param {string} id @param {(Node | string)[]} content @param {boolean} [current] */
  link(id, content, current = false) {
    return h(
      "button",
      {
        class: current ? "tc-link tc-here" : "tc-link",
        type: "button",
        title: id,
        onclick: () => this.actions.goTo(id),
        onpointerenter: () => this.actions.preview([id]),
        onpointerleave: () => this.actions.preview([]),
        onfocus: () => this.actions.preview([id]),
        onblur: () => this.actions.preview([]),
      },
      ...content,
    );
  }

  /** What passes decided about it. @param {Entity} entity */
  decisions(entity) {
    const artifact = this.store.artifactOf(entity.id);
    if (!artifact?.info.parts.decisions) return h("section");
    this.store.need(artifact.info.id, "decisions");
    const about = (artifact.decisions ?? []).filter((decision) => decision.subjects.includes(entity.id)).slice(0, 50);
    const items = about.map((decision) => {
      const others = decision.subjects.filter((id) => id !== entity.id);
      return h(
        "li",
        {},
        h("b", {}, `${decision.pass_name}: ${decision.verdict}`),
        " ",
        ...others.slice(0, FEW).flatMap((id) => [this.link(id, [this.shortName(id)]), " "]),
        h("div", { class: "tc-why" }, decision.why),
      );
    });
    return section("Decisions", h("ul", { class: "tc-decisions" }, ...items));
  }

  /** What it is in every stage it is linked to. @param {Entity} entity */
  chain(entity) {
    const byArtifact = this.store.byArtifact(this.store.links.closure([entity.id]));
    const rows = this.store.manifest.stages.flatMap((stage) => {
      const ids = stage.artifacts.flatMap((artifact) => byArtifact.get(artifact.id) ?? []);
      return ids.length ? [h("dt", {}, stage.title), h("dd", {}, this.list(ids, entity.id))] : [];
    });
    return section("Through the stages", h("dl", { class: "tc-chain" }, ...rows));
  }

  // The overview

  /** @returns {HTMLElement[]} */
  overview() {
    const { manifest } = this.store;
    // Of two backends side by side each has its numbers in their table.
    const kernels = manifest.versus ? [] : manifest.kernels.filter(({ category }) => category !== "extern");
    const calls = manifest.versus ? [] : manifest.kernels.filter(({ category }) => category === "extern");
    const parts = [
      h(
        "div",
        { class: "tc-card-top" },
        h("div", { class: "tc-heading" }, h("h3", {}, manifest.title || "Overview")),
        h("p", { class: "tc-where" }, "Select anything to see what it became, and what it came from."),
      ),
      this.versus(),
      this.findings(),
      this.nextSteps(),
      this.problems(),
      this.breaks(),
      facts([
        ["Not in a log", manifest.absent ?? ""],
        ["Frames", String(manifest.frames.length)],
        ["Guards", String(manifest.guards || "")],
        ["Kernels", sum(kernels, "count")],
        ["Launches", sum(kernels, "launches")],
        ["Extern calls", sum(calls, "launches")],
      ]),
      this.frames(),
      section("Kernels", facts(kernels.map((item) => [item.category, `${item.count} in ${LANGUAGES[item.language] ?? item.language}`]))),
      section("Decisions", facts(manifest.decisions.map((item) => [item.pass, `${item.count} ${VERDICTS[item.verdict] ?? item.verdict}`]))),
      section("Options", facts(changedOptions(manifest.options))),
      this.environment(),
    ];
    return parts.filter((part) => part.childElementCount > 0);
  }

  /** The three stages to look at next, after what was found. */
  nextSteps() {
    const { stages } = this.store.manifest;
    const there = (/** @type {string} */ name) => stages.find((stage) => stage.name === name && stage.artifacts.length);
    /** @type {[string, string][]} */
    const steps = [
      ["breaks", "Read what broke the graph, and what to change"],
      ["recompiles", "See what made torch.compile compile again"],
      ["advice", "See what would make it faster"],
      ["kernels", "Read the generated kernels"],
      ["fusion", "See what was fused, and what was not"],
      ["memory", "See where memory peaks"],
      ["captured", "See the captured graph"],
    ];
    const links = steps.filter(([name]) => there(name)?.count).slice(0, NEXT_STEPS).map(([name, words]) =>
      h("li", {}, h("button", { class: "tc-link", type: "button", onclick: () => this.actions.openStage(name) }, words)),
    );
    return section("Next", h("ol", { class: "tc-next" }, ...links));
  }

  /** Versions, folded. */
  environment() {
    const known = Object.entries(this.store.manifest.environment).filter(([, value]) => value);
    const pairs = /** @type {[string, string][]} */ (known.map(([name, value]) => [name, String(value)]));
    return h("details", {}, h("summary", {}, "Environment"), facts(pairs));
  }

  /** The numbers of two backends side by side, where there are two. */
  versus() {
    const { versus } = this.store.manifest;
    if (!versus) return h("div");
    const [first, second] = versus.names;
    const head = h("tr", {}, h("td"), ...[first, second].map((name) => h("th", { scope: "col" }, name)));
    const rows = versus.rows.map(([title, ...values]) =>
      h("tr", {}, h("th", { scope: "row" }, title), ...values.map((value) => h("td", {}, value))),
    );
    return section(`${first} and ${second} side by side`, h("table", { class: "tc-versus" }, head, ...rows));
  }

  problems() {
    const problems = this.store.manifest.stages.flatMap((stage) =>
      stage.problems.map((problem) => ({ stage, problem })),
    );
    const items = problems.map(({ stage, problem }) =>
      h(
        "li",
        { class: "tc-problem-item" },
        h("b", {}, stage.title),
        " ",
        ...prose(problem.reason),
        problem.hint ? h("div", { class: "tc-why" }, problem.hint) : null,
        problem.card ? h("div", { class: "tc-why" }, this.link(problem.card, ["Open its card"])) : null,
      ),
    );
    return section("Problems", h("ul", {}, ...items));
  }

  /** How often graphs broke and were compiled again, and the way there. */
  findings() {
    const { stages, breaks, recompiles, counts } = this.store.manifest;
    const button = (/** @type {string} */ name, /** @type {string} */ words, /** @type {number} */ count) => {
      const there = stages.some((stage) => stage.name === name && stage.artifacts.length);
      const style = count ? "tc-count-button tc-warns" : "tc-count-button";
      return h("button", { class: style, type: "button", disabled: !there, onclick: () => this.actions.openStage(name) }, there && icon(count ? "warning" : "right"), words);
    };
    return h(
      "div",
      { class: "tc-count-buttons" },
      button("breaks", counts.breaks, breaks.length),
      button("recompiles", counts.recompiles, recompiles),
    );
  }

  /** The lines where graphs broke, each once. */
  breaks() {
    /** @type {Map<string, BreakInfo[]>} */
    const places = new Map();
    for (const item of this.store.manifest.breaks) {
      const place = `${item.file.split("/").at(-1)}:${item.line}`;
      places.set(place, [...(places.get(place) ?? []), item]);
    }
    const items = [...places].map(([place, [{ id, what, kind, reason }, ...others]]) => {
      const times = others.length ? h("span", { class: "tc-place" }, ` × ${others.length + 1}`) : null;
      return h("li", {}, this.link(`breaks.${id}`, [place]), times, h("div", { class: "tc-why" }, ...prose(what || kind || reason)));
    });
    return section("Graph breaks", h("ul", {}, ...items));
  }

  frames() {
    const broken = new Set(this.store.manifest.breaks.map(({ frame }) => frame));
    const items = this.store.manifest.frames.map((frame) =>
      h(
        "li",
        {},
        h("b", {}, frameName(frame)),
        ` ${frame.outcome}`,
        h("span", { class: "tc-place" }, ` ${frame.id}`),
        frame.reason && !broken.has(frame.id) ? h("div", { class: "tc-why" }, frame.reason) : null,
        frame.modules.length ? h("div", { class: "tc-why" }, `ran ${frame.calls} ×: ${frame.modules.join(", ")}`) : null,
      ),
    );
    return section("Frames", h("ul", {}, ...items));
  }
}

/** A titled section, or an empty one when there is nothing in it. @param {string} title @param {HTMLElement} content */
function section(title, content) {
  return content.childElementCount ? h("section", {}, h("h4", {}, title), content) : h("section");
}

/** @param {[string, string][]} pairs */
function facts(pairs) {
  return h(
    "dl",
    { class: "tc-facts" },
    ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** @param {Entity} entity @returns {[string, string][]} */
function tensorFacts({ attrs }) {
  const shape = Array.isArray(attrs.shape) ? `[${attrs.shape.join(", ")}]` : "";
  const module = attrs.module
    ? [attrs.module, attrs.module_type].filter(Boolean).join(" · ")
    : (attrs.module_type ?? "");
  return [
    ["Shape", [attrs.dtype, shape].filter(Boolean).join(" ")],
    ["Stride", Array.isArray(attrs.stride) ? `[${attrs.stride.join(", ")}]` : ""],
    ["Size", attrs.bytes ? bytesInWords(attrs.bytes) : ""],
    ["Device", attrs.device ?? ""],
    ["Placement", attrs.placements?.join(", ") ?? ""],
    ["Why", attrs.cause ?? ""],
    ["Line", attrs.file && attrs.line ? `${attrs.file}:${attrs.line}` : ""],
    ["Module", module],
    ["Equal modules", Object.values(attrs.stacks ?? {}).join(", ")],
    ["Checkpoint", attrs.checkpoint ?? ""],
    ["Eager", attrs.eager_time ?? ""],
    ["Compiled", attrs.compiled_time ?? ""],
    ["Measured", attrs["measured_µs"] ? secondsInWords(attrs["measured_µs"] / 1e6) : ""],
  ];
}

/** @param {Entity} entity @param {string[]} shown attributes that have been shown @returns {[string, string][]} */
function otherFacts(entity, shown) {
  return Object.entries(entity.attrs)
    .filter(([name]) => !PLACED.has(name) && !shown.includes(name))
    .map(([name, value]) => [name.replaceAll("_", " "), valueInWords(value)]);
}

/** @param {string} name of an attribute: derivative_of */
function inWords(name) {
  return (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");
}

/** @param {any} value */
function valueInWords(value) {
  if (typeof value === "string") return value;
  const flat = Array.isArray(value) && value.flat().every((item) => typeof item !== "object");
  return flat ? value.join(", ") : JSON.stringify(value);
}

/** @param {Record<string, any>} options @returns {[string, string][]} those that were set */
function changedOptions(options) {
  return Object.entries(options)
    .filter(([, value]) => value !== null && value !== false && value !== "" && JSON.stringify(value).length > 2)
    .map(([name, value]) => [name, valueInWords(value)]);
}

/** How many these are together, "" for none. @param {{count: number, launches: number}[]} kernels @param {"count" | "launches"} of */
function sum(kernels, of) {
  return String(kernels.reduce((total, item) => total + item[of], 0) || "");
}
