// The card of a recompilation: what to blame, was and is, what to change, and why no earlier code fitted.

import { changeOf } from "./break_card.js";
import { folded, lineLink, prose, spotCode } from "./card_parts.js";
import { counted, h, icon } from "./dom.js";

/** @typedef {import("./card_parts.js").Actions} Actions */
/** @typedef {import("./card_parts.js").LineSpot} LineSpot */
/**
 * @typedef {{about: string, cause: string, old: string, new: string, words: string, code: string,
 *   at: LineSpot | null}} Failure
 * @typedef {{entry: string, failures: Failure[]}} Entry
 * @typedef {{ids: string[], number: number, total: number, frame: string, function: string, at: LineSpot,
 *   call: import("./card_parts.js").Spot | null, call_number: number, cause: string, blamed: Failure | null,
 *   reasons: string[], entries: Entry[], advice: string, settings: string[], limit: string, applicability: string, title: string,
 *   graphs: import("./card_parts.js").Graph[] | null, changed: string, torch: string[]}} Recompile
 */

/** @param {Recompile} card @param {Actions} actions @param {Node[]} [tools] that stand in its corner */
export function recompileCard(card, actions, tools = []) {
  const title = card.title;
  const where = h("span", { class: "tc-where" }, `${card.function} `, lineLink(card.at, actions));
  const [closest, ...others] = card.entries;
  const change = { words: card.advice, applicability: card.applicability, at: null, old: [], new: [], settings: card.settings };
  return h(
    "article",
    { class: "tc-card tc-recompile-card", "aria-label": title },
    h("div", { class: "tc-card-head" }, icon("warning"), h("h3", {}, title), where, ...tools),
    card.blamed ? blame(card.blamed) : h("p", { class: "tc-lead" }, ...prose(card.reasons.join("; "))),
    card.call ? callOf(card, actions) : null,
    card.limit ? limitOf(card) : null,
    card.advice ? changeOf(change, "Change", actions) : null,
    closest ? entryOf(closest, actions) : null,
    others.length ? folded(`Why ${counted(others.length, "other compilation")} did not fit either`, ...others.map((entry) => entryOf(entry, actions))) : null,
    card.graphs ? comparison(card, actions) : null,
    card.torch.length ? folded("In torch's words", h("pre", { class: "tc-snippet" }, card.torch.join("\n\n"))) : null,
  );
}

/** @param {Failure} failure */
function blame({ about, cause, old, new: now, words }) {
  if (!old && !now) return h("p", { class: "tc-lead" }, ...prose(words));
  return h(
    "div",
    { class: "tc-blame", title: words },
    h("span", { class: "tc-blamed" }, ...prose(about)),
    wasAndIs(old, now),
    h("span", { class: "tc-where" }, cause),
  );
}

/** @param {string} old @param {string} now */
function wasAndIs(old, now) {
  const removed = h("span", { class: "tc-removed" }, old);
  return h("span", { class: "tc-was-is" }, removed, h("span", { "aria-label": "became" }, " → "), h("span", { class: "tc-added" }, now));
}

/** @param {Recompile} card @param {Actions} actions */
function callOf({ call, call_number: number }, actions) {
  if (!call) return null;
  const which = number ? `Call ${number}, ` : "Called from ";
  return h("div", {}, h("p", { class: "tc-why" }, which, lineLink(call, actions)), spotCode(call));
}

/** @param {Recompile} card */
function limitOf({ limit, entries, function: name }) {
  const known = entries.length ? `none of the ${entries.length} compilations that there are` : "no compilation that there is";
  const words = `torch gave up on ${name} here: ${limit}. From this call on, a call that fits ${known} is not compiled.`;
  return h("p", { class: "tc-gave-up" }, words);
}

/** All guards of one cache entry that failed. @param {Entry} entry @param {Actions} actions */
function entryOf({ entry, failures }, actions) {
  const rows = failures.map((failure) =>
    h(
      "tr",
      { title: failure.code || failure.words },
      h("td", {}, ...prose(failure.about)),
      h("td", {}, failure.old || failure.new ? wasAndIs(failure.old, failure.new) : failure.words),
      h("td", {}, failure.cause, failure.at ? " " : "", failure.at ? lineLink(failure.at, actions) : null),
    ),
  );
  const caption = h("caption", {}, "Why ", h("code", {}, entry), " did not fit: all guards that failed");
  return h("table", { class: "tc-failures" }, caption, h("tbody", {}, ...rows));
}

/** @param {Recompile} card @param {Actions} actions */
function comparison({ graphs, changed }, actions) {
  if (!graphs) return null;
  const [before, after] = graphs;
  const onclick = () => actions.compare(before.id, after.id);
  const button = h("button", { class: "tc-lab", type: "button", onclick }, `Compare ${before.name} with ${after.name}`);
  return h("p", { class: "tc-compare-graphs" }, button, changed ? ` ${changed}` : "");
}
