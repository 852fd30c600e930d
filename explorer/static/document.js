// The parts of a document as elements. What each of them is, and what it holds, is in explorer/render/document.py.

import { folded, prose, pythonLine, rewriteOf, statements } from "./card_parts.js";
import { h, icon } from "./dom.js";

/** @typedef {import("./inspector.js").Actions} Actions */
/** A part, as plain data; `part` says which. @typedef {Record<string, any>} Part */
/** A sentence, or its pieces. @typedef {string | Part | (string | Part)[]} Words */
/**
 * What parts need of what shows them: where links lead, and who is told that an element stands for entities.
 * @typedef {{actions: Actions, item: (ids: string[], element: HTMLElement) => HTMLElement, tools?: Node[], charts?: Charts}} Place
 * @typedef {Record<string, (data: any, place: Place) => HTMLElement>} Charts What draws a chart, by its kind.
 */

/** @type {Record<string, (part: Part, place: Place) => (Node | null)[]>} */
const PARTS = {
  text: textPart,
  code: (part) => [snippet(part)],
  way: wayPart,
  flow: flowPart,
  change: (part, place) => [changePart(part, place)],
  items: (part, place) => [h("ul", { "aria-label": part.label || null }, ...part.items.map((/** @type {Words} */ words) => h("li", {}, ...sentence(words, place))))],
  table: (part, place) => [tablePart(part, place)],
  chart: (part, place) => [place.charts?.[part.kind](part.data, place) ?? tablePart(part.table, place)],
  fold: (part, place) => [folded(part.title, ...elements(part.parts, place))],
  section: (part, place) => [h("section", { class: part.style ? `tc-${part.style}` : "tc-section", "aria-label": part.heading || null }, part.heading ? h("h4", {}, part.heading) : null, ...elements(part.parts, place))],
  card: (part, place) => [cardPart(part, place)],
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
    { class: `tc-card tc-${kind}-card`, "aria-label": title },
    h("div", { class: "tc-card-head" }, warns ? icon("warning") : null, h("h3", {}, title), name, ...(tag ? sentence(tag, place) : []), ...(link ? sentence(link, place) : []), ...(place.tools ?? [])),
    lead.length ? h("p", { class: "tc-lead" }, ...sentence(lead, place)) : null,
    ...elements(parts, { ...place, tools: [] }),
  );
  return place.item(ids, element);
}

// Sentences

/** @param {Words} words @param {Place} place @returns {(Node | string)[]} */
export function sentence(words, place) {
  const pieces = Array.isArray(words) ? words : [words];
  return pieces.flatMap((piece) => (typeof piece === "string" ? prose(piece) : piece.part === "link" ? [linkPiece(piece, place)] : [tagPiece(piece)]));
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

/** @param {Part} code */
function snippet({ lines, marks, language = "python", copy }) {
  if (copy) return statements(lines);
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
      how ? snippet(code) : null,
    ),
  );
  return [snippet(meant.code), steps.length > 1 ? h("ol", { class: "tc-chain-of-calls", "aria-label": "Calls that lead there" }, ...items) : null];
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

/** @param {Part} table @param {Place} place */
function tablePart({ head, rows, caption = "", right = [], style, label }, place) {
  const cell = (/** @type {"td" | "th"} */ tag, /** @type {Words} */ words, /** @type {number} */ column, /** @type {string} */ scope) =>
    h(tag, { scope: scope || null, class: right.includes(column) ? "tc-right" : "" }, ...sentence(words, place));
  const body = rows.map((/** @type {Part} */ { cells, ids = [], title }) => {
    const row = h("tr", { title }, ...cells.map((/** @type {Words} */ words, /** @type {number} */ column) => (head.length && !column ? cell("th", words, column, "row") : cell("td", words, column, ""))));
    return ids.length ? place.item(ids, row) : row;
  });
  const table = h(
    "table",
    { class: `tc-doc-table${style ? ` tc-${style}` : ""}`, "aria-label": label || null },
    caption.length ? h("caption", {}, ...sentence(caption, place)) : null,
    head.length ? h("thead", {}, h("tr", {}, ...head.map((/** @type {Words} */ words, /** @type {number} */ column) => cell("th", words, column, "col")))) : null,
    h("tbody", {}, ...body),
  );
  return style === "timeline" ? h("div", { class: "tc-timeline-scroll" }, table) : table;
}
