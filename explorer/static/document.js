// The parts of a document as elements. What each of them is, and what it holds, is in explorer/render/document.py.

import { prose, pythonLine, rewriteOf, statements } from "./card_parts.js";
import { h, icon, menu, modes } from "./dom.js";

/** @typedef {import("./inspector.js").Actions} Actions */
/** A part, as plain data; `part` says which. @typedef {Record<string, any>} Part */
/** A sentence, or its pieces. @typedef {string | Part | (string | Part)[]} Words */
/**
 * What parts need of what shows them: where links lead, who is told that an element stands for entities, and the largest
 * amount of each scale of bars. A view also makes folds and options when they are wanted, and loads code.
 * @typedef {{actions: Actions, item: (ids: string[], element: HTMLElement) => HTMLElement, most?: Record<string, number>,
 *   tools?: Node[], charts?: Charts, view?: View}} Place
 * @typedef {Record<string, (data: any, place: Place, table: Part) => HTMLElement>} Charts What draws a chart, by its kind.
 * @typedef {{fold: (summary: (Node | string)[], ids: string[], content: () => Node[], open?: boolean) => HTMLDetailsElement,
 *   chosen: (label: string) => number, choose: (label: string, index: number) => void,
 *   later: (ids: string[], make: () => void) => void, code: (source: [string, number, number], label: string) => HTMLElement}} View
 */

/** So many rows of a table are made at once. */
const MANY = 60;

/** @type {Record<string, (part: Part, place: Place) => (Node | null)[]>} */
const PARTS = {
  text: textPart,
  code: (part, place) => [snippet(part, place)],
  way: wayPart,
  flow: flowPart,
  change: (part, place) => [changePart(part, place)],
  items: (part, place) => [h("ul", { "aria-label": part.label || null }, ...part.items.map((/** @type {Words} */ words) => h("li", {}, ...sentence(words, place))))],
  table: tablePart,
  chart: (part, place) => (place.charts?.[part.kind] ? [place.charts[part.kind](part.data, place, part.table)] : tablePart(part.table, place)),
  fold: (part, place) => [foldPart(part, place)],
  choice: choicePart,
  section: (part, place) => [h("section", { class: part.style ? `tc-${part.style}` : "tc-section", "aria-label": part.heading || null }, part.heading ? h("h4", {}, part.heading) : null, ...elements(part.parts, place))],
  card: (part, place) => [cardPart(part, place)],
  make: (part, place) => [makePart(part, place)],
};

/** @param {Part[]} parts @param {Place} place @returns {Node[]} */
export function elements(parts, place) {
  return parts.flatMap((part) => PARTS[part.part](part, place)).filter((element) => element !== null);
}

/** The card that stands for an entity, somewhere in a document. @param {Part[]} parts @param {string} id @returns {Part | undefined} */
export function cardOf(parts, id) {
  return parts.find((part) => part.part === "card" && part.ids.includes(id));
}

/** @param {Part} card @param {Place} place */
export function cardPart(card, place) {
  const { title, ids, lead, parts, kind, about = "", aside = "", link, tag, warns = true } = card;
  const name = h("span", { class: "tc-where" }, ...sentence(about, place), " ", ...sentence(aside, place));
  const element = h(
    "article",
    { class: `tc-card tc-${kind}-card`, "aria-label": title || ids.join(", ") },
    title || place.tools ? h("div", { class: "tc-card-head" }, warns ? icon("warning") : null, h("h3", {}, title), name, ...(tag ? sentence(tag, place) : []), ...(link ? sentence(link, place) : []), ...(place.tools ?? [])) : null,
    lead.length ? h("p", { class: "tc-lead" }, ...sentence(lead, place)) : null,
    ...elements(parts, { ...place, tools: undefined }),
  );
  return place.item(ids, element);
}

/** The ids of the entities that parts stand for. @param {any} value @returns {string[]} */
function idsIn(value) {
  if (Array.isArray(value)) return value.flatMap(idsIn);
  if (!value || typeof value !== "object") return [];
  return [...(value.ids ?? []), ...Object.values(value).flatMap((inside) => (typeof inside === "object" ? idsIn(inside) : []))];
}

/** @param {Part} fold @param {Place} place */
function foldPart({ title, parts, is_open: open = false, style = "more-of-it" }, place) {
  const summary = sentence(title, place);
  const content = () => elements(parts, place);
  const fold = place.view ? place.view.fold(summary, idsIn(parts), content, open) : h("details", { open }, h("summary", {}, ...summary), ...content());
  fold.classList.add(`tc-${style}`);
  return fold;
}

/** One of several options; the view keeps which. @param {Part} choice @param {Place} place */
function choicePart({ label, options, style = "buttons" }, place) {
  const at = place.view?.chosen(label) ?? 0;
  const choose = (/** @type {number} */ index) => place.view?.choose(label, index);
  const names = options.map((/** @type {[string, Part[]]} */ [name]) => name);
  const control = (style === "menu" ? menu : modes)(label, names, at, choose);
  const shown = elements(options[at][1], place);
  options.forEach((/** @type {[string, Part[]]} */ [, parts], /** @type {number} */ index) => index !== at && place.view?.later(idsIn(parts), () => choose(index)));
  return [options.length > 1 ? control : null, ...shown];
}

// Sentences

/** @param {Words} words @param {Place} place @returns {(Node | string)[]} */
export function sentence(words, place) {
  const pieces = Array.isArray(words) ? words : [words];
  return pieces.flatMap((piece) => (typeof piece === "string" ? prose(piece) : [PIECES[piece.part](piece, place)]));
}

/** What makes an element of a piece of a sentence; views may add others. @type {Record<string, (piece: Part, place: Place) => Node>} */
export const PIECES = { link: linkPiece, tag: tagPiece, bar: barPiece };

/** Amounts as bars, one below the other. @param {Part} bar @param {Place} place */
function barPiece({ amounts, scale, mark, title }, { most }) {
  const share = (/** @type {number} */ amount) => `${(100 * amount) / (most?.[scale] || 1)}%`;
  const bars = amounts.map((/** @type {[number, string]} */ [amount, colour]) => h("i", { class: `tc-amount tc-amount-${colour}`, style: { width: share(amount) } }));
  return h("span", { class: "tc-bars", title }, ...bars, mark === undefined ? null : h("i", { class: "tc-amount-mark", style: { left: share(mark) } }));
}

/** @param {Part} tag */
function tagPiece({ words, style, title }) {
  return h("span", { class: `tc-tag tc-tag-${style}`, title }, ...prose(words));
}

/** Something that leads elsewhere; only its words where that is not there. @param {Part} link @param {Place} place */
function linkPiece({ words, row, open, id, compare, url, title, style, detail }, { actions }) {
  const content = [words ? h("span", {}, ...prose(words)) : "", words && detail ? " " : "", detail ? h("code", {}, detail) : ""];
  if (url) return h("a", { href: url, target: "_blank", rel: "noopener noreferrer", title }, ...content, " ↗");
  const onclick = row
    ? () => actions.goToRow(row[0], row[1] - 1)
    : open
      ? () => actions.open(open)
      : id
        ? () => actions.goTo(id)
        : compare
          ? () => actions.compare(compare[0], compare[1])
          : null;
  const looks = style ? `tc-mark tc-${style}` : compare ? "tc-lab" : "tc-link";
  if (!onclick) return h("span", { class: style ? looks : "tc-place", title }, ...content);
  const label = style ? `${words}${detail ? ` ${detail}` : ""}, ${title}` : null;
  return h("button", { class: looks, type: "button", title, "aria-label": label, "data-entity": style ? id : null, onclick }, ...content);
}

/** @param {Part} text @param {Place} place */
function textPart({ words, style, label }, place) {
  if (!words.length) return [];
  const bold = label ? [h("b", {}, capital(label.replace(/: $/, ""))), " "] : [];
  return [h("p", { class: style ? `tc-${style}` : "tc-prose" }, ...bold, ...sentence(words, place))];
}

/** @param {string} words */
function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// Code

/** @param {Part} code @param {Place} place */
function snippet({ lines = [], marks, language = "python", copy, source, label = "" }, place) {
  if (source) return place.view?.code(source, label) ?? null;
  if (copy) return statements(lines, language);
  if (language !== "python") return h("pre", { class: "tc-snippet" }, lines.join("\n"));
  return h("pre", { class: "tc-snippet" }, ...lines.map((/** @type {string} */ line, /** @type {number} */ row) => h("div", {}, pythonLine(line, marks?.[row]))));
}

/** The code that is meant, and the calls that lead there if there are any. @param {Part} way @param {Place} place */
function wayPart({ steps }, place) {
  const meant = steps.find((/** @type {Part} */ { how }) => !how) ?? steps.at(-1);
  if (!meant) return [];
  const items = steps.map((/** @type {Part} */ { place: link, function: name, code, how }) =>
    h(
      "li",
      { class: how ? "" : "tc-users" },
      ...sentence(link, place),
      h("span", { class: "tc-where" }, how === "through" ? " through " : " in ", name),
      how ? snippet(code, place) : null,
    ),
  );
  return [snippet(meant.code, place), steps.length > 1 ? h("ol", { class: "tc-chain-of-calls", "aria-label": "Calls that lead there" }, ...items) : null];
}

/** A button that has Python make a stage; on a page, the words on how to get it. @param {Part} make @param {Place} place */
function makePart({ stage, button, words }, { actions }) {
  const { make } = actions;
  if (!make) return h("p", { class: "tc-why" }, ...prose(words));
  return h("p", {}, h("button", { class: "tc-button tc-text tc-main-button", type: "button", onclick: () => make(stage) }, button));
}

/** What is before a cut, what crosses it, and where it goes on. @param {Part} flow @param {Place} place */
function flowPart({ before, across, after, words }, place) {
  const first = h("span", { class: "tc-end" }, ...sentence(before, place));
  const arrow = h("span", { class: "tc-crossing" }, across || "nothing");
  const ends = after.map((/** @type {Words} */ end) => h("span", { class: "tc-end" }, ...sentence(end, place)));
  const drawn = h("div", { class: "tc-flow" }, first, ...(ends.length ? [arrow, h("span", { class: "tc-ends" }, ...ends)] : []));
  return [drawn, h("p", { class: "tc-why" }, ...sentence(words, place))];
}

/** @type {Record<string, string>} */
const APPLICABILITY = {
  "machine-applicable": "Edits of this class are applied in tcompile's tests: the break is gone, and the result is the same",
  maybe: "It helps in tcompile's tests; other code may need more, as the sentence says",
  explanation: "Words: there is no edit to apply",
};

/** What to do, how far it was tried, and the code for it. @param {Part} change @param {Place} place */
function changePart({ label, words, applicability, place: link, old = [], new: now = [], settings = [] }, place) {
  const tried = applicability ? h("span", { class: `tc-applicability tc-${applicability}`, title: APPLICABILITY[applicability] }, applicability) : null;
  const name = h("b", {}, capital(label));
  return h(
    "section",
    { class: "tc-change" },
    h("p", {}, name, " ", tried, ...sentence(words, place), ...(link ? [" ", ...sentence(link, place)] : [])),
    now.length ? rewriteOf(old, now) : null,
    settings.length ? statements(settings) : null,
  );
}

// Tables

/**
 * A table; its rows are made as they come into sight, in the order and of the group that the reader chooses.
 * @param {Part} table @param {Place} place
 */
export function tablePart({ head, rows, caption = "", right = [], style, label, orders = [], groups = [], most = MANY }, place) {
  const cell = (/** @type {"td" | "th"} */ tag, /** @type {Words} */ words, /** @type {number} */ column, /** @type {string} */ scope) =>
    h(tag, { scope: scope || null, class: right.includes(column) ? "tc-right" : "" }, ...sentence(words, place));
  /** @type {Map<Part, HTMLElement>} */
  const made = new Map();
  const make = (/** @type {Part} */ row) => {
    const { cells, ids = [], title, parts = [] } = row;
    const element = h("tr", { title }, ...cells.map((/** @type {Words} */ words, /** @type {number} */ column) => (head.length && !column ? cell("th", words, column, "row") : cell("td", words, column, ""))));
    element.firstElementChild?.append(...elements(parts, place));
    made.set(row, ids.length ? place.item(ids, element) : element);
    return element;
  };
  const body = h("tbody");
  const more = h("button", { class: "tc-more", type: "button", onclick: () => draw(MANY) });
  let [order, group] = [0, 0];
  const chosen = () => {
    const found = rows.filter((/** @type {Part} */ row) => !group || row.group === group);
    return order ? found.sort((/** @type {Part} */ a, /** @type {Part} */ b) => b.keys[order - 1] - a.keys[order - 1]) : found;
  };
  const draw = (/** @type {number} */ added) => {
    const found = chosen();
    const shown = found.slice(0, body.childElementCount + added);
    body.replaceChildren(...shown.map((/** @type {Part} */ row) => made.get(row) ?? make(row)));
    more.hidden = shown.length === found.length;
    more.textContent = `${(found.length - shown.length).toLocaleString("en")} more`;
  };
  const again = () => {
    body.replaceChildren();
    draw(most);
  };
  again();
  for (const row of rows.slice(most)) place.view?.later(row.ids ?? [], () => ((group = 0), body.replaceChildren(), draw(chosen().indexOf(row) + 1)));
  const tools = [
    orders.length ? menu("Order", orders, order, (index) => ((order = index), again())) : null,
    groups.length ? menu(label, groups, group, (index) => ((group = index), again())) : null,
  ];
  const table = h(
    "table",
    { class: `tc-doc-table${style ? ` tc-${style}` : ""}`, "aria-label": (!groups.length && label) || null },
    caption.length ? h("caption", {}, ...sentence(caption, place)) : null,
    head.length ? h("thead", {}, h("tr", {}, ...head.map((/** @type {Words} */ words, /** @type {number} */ column) => cell("th", words, column, "col")))) : null,
    body,
  );
  return [...tools, style === "timeline" ? h("div", { class: "tc-timeline-scroll" }, table) : table, rows.length > most ? more : null];
}

// Search

const SAID = new Set("words cells lead about aside lines detail caption items parts steps code settings old new rows table options".split(" "));

/** What is said of each entity, in small letters, shown or not. @param {any} value @param {Map<string, string>} [found] */
export function textsOf(value, found = new Map()) {
  if (value && typeof value === "object") {
    if (value.ids?.length && !found.has(value.ids[0])) found.set(value.ids[0], saidIn(value).toLowerCase());
    for (const inside of Object.values(value)) textsOf(inside, found);
  }
  return found;
}

/** @param {any} value @returns {string} */
function saidIn(value) {
  if (typeof value === "string") return value.replaceAll("`", "");
  if (Array.isArray(value)) return value.map(saidIn).join("");
  if (!value || typeof value !== "object") return "";
  const own = value.part === "card" || value.part === "fold" ? [value.title] : [];
  return [...own, ...Object.keys(value).filter((key) => SAID.has(key)).map((key) => value[key])].map(saidIn).join("\n");
}
