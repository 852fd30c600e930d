// The card of a graph break: where, what it was, what it cost, what to change, and what torch says of it.

import { folded, graphLink, lineLink, prose, rewriteOf, spotCode, statements } from "./card_parts.js";
import { h, icon } from "./dom.js";

/** @typedef {import("./card_parts.js").Actions} Actions */
/** @typedef {import("./card_parts.js").Spot} Spot */
/** @typedef {import("./card_parts.js").Graph} Graph */
/**
 * @typedef {{words: string, applicability?: string, at: import("./card_parts.js").LineSpot | null, old: string[], new: string[],
 *   settings: string[]}} Change
 * @typedef {{ids: string[], number: number, total: number, what: string, at: Spot, chain: (Spot & {main: boolean})[],
 *   outcome: string, words: string, before: Graph | null, crossing: string,
 *   after: {frame: string, words: string, graph: Graph | null}[], lost: string, changes: Change[],
 *   again: {id: string, frame: string}[], torch: {kind: string, explanation: string, hints: string[], reason: string,
 *   consequence: string, stack: string[], id: string, link: string}}} Break
 */

/** @type {Record<string, string>} */
const ENDS = { plain: "plain Python", skipped: "plain Python, all of the function", error: "an error" };

/** @param {Break} card @param {Actions} actions @param {Node[]} [tools] that stand in its corner */
export function breakCard(card, actions, tools = []) {
  const title = `Graph break ${card.number} of ${card.total}`;
  const name = h("span", { class: "tc-where" }, lineLink(card.at, actions), card.at.function ? ` in ${card.at.function}` : "");
  return h(
    "article",
    { class: "tc-card tc-break-card", "aria-label": title },
    h("div", { class: "tc-card-head" }, icon("warning"), h("h3", {}, title), name, page(card.torch), ...tools),
    h("p", { class: "tc-lead" }, ...prose(card.what)),
    spotCode(card.at),
    card.chain.length ? chainOf(card, actions) : null,
    flow(card, actions),
    h("p", { class: "tc-why" }, ...prose(`${card.words} ${card.lost}`)),
    card.again.length ? again(card, actions) : null,
    ...card.changes.map((change, index) => changeOf(change, index ? "Or" : "Change", actions)),
    torchs(card.torch),
  );
}

/** From the line of the compiled function to the culprit. @param {Break} card @param {Actions} actions */
function chainOf({ chain }, actions) {
  const steps = chain.map((step) =>
    h(
      "li",
      { class: step.main ? "tc-users" : "" },
      lineLink(step, actions),
      h("span", { class: "tc-where" }, step.installed && !step.main ? " through " : " in ", step.function ?? ""),
      step.main ? null : spotCode({ ...step, code: step.code.slice(0, 1) }),
    ),
  );
  return h("ol", { class: "tc-chain-of-calls", "aria-label": "Calls that lead there" }, ...steps);
}

/** The graph before, what crosses, and where it goes on. @param {Break} card @param {Actions} actions */
function flow(card, actions) {
  const before = card.before ? graphLink(card.before, actions) : h("span", { class: "tc-end" }, "no graph before");
  const end = ENDS[card.outcome] && h("span", { class: "tc-end tc-plain" }, ENDS[card.outcome]);
  if (end && !card.before) return h("div", { class: "tc-flow" }, end);
  const after = card.after.map(({ words, graph }) =>
    h("span", { class: "tc-end" }, graph ? graphLink(graph, actions) : "no graph in", ` ${words}`),
  );
  if (!after.length && !end) return before;
  const arrow = h("span", { class: "tc-crossing" }, card.crossing || "nothing");
  return h("div", { class: "tc-flow" }, before, arrow, h("span", { class: "tc-ends" }, ...(end ? [end] : after)));
}

/** @param {Break} card @param {Actions} actions */
function again({ again: others }, actions) {
  const links = others.map(({ id, frame }) =>
    h("button", { class: "tc-link", type: "button", title: id, onclick: () => actions.goTo(id) }, frame),
  );
  return h("p", { class: "tc-why" }, "And here again in ", ...links, ".");
}

/** @param {Change} change @param {string} label @param {Actions} actions */
export function changeOf(change, label, actions) {
  return h(
    "section",
    { class: "tc-change" },
    h("p", {}, h("b", {}, label), " ", applicabilityOf(change), ...prose(change.words), change.at ? " " : "", change.at ? lineLink(change.at, actions) : null),
    change.new.length ? rewriteOf(change.old, change.new) : null,
    change.settings.length ? statements(change.settings) : null,
  );
}

/** @type {Record<string, string>} */
const APPLICABILITY = {
  "machine-applicable": "Edits of this class are applied in tcompile's tests: the break is gone, and the result is the same",
  maybe: "It helps in tcompile's tests; other code may need more, as the sentence says",
  explanation: "Words: there is no edit to apply",
};

/** How far advice of this class was tried. @param {Change} change */
function applicabilityOf({ applicability }) {
  if (!applicability) return null;
  return h("span", { class: `tc-applicability tc-${applicability}`, title: APPLICABILITY[applicability] }, applicability);
}

/** torch's page on this kind of break. @param {Break["torch"]} torch */
function page({ id, link }) {
  if (!link) return id;
  const title = "What torch's documentation says of this kind of break";
  return h("a", { href: link, target: "_blank", rel: "noopener noreferrer", title }, `${id || "documentation"} ↗`);
}

/** What torch says. @param {Break["torch"]} torch */
function torchs({ kind, explanation, hints, reason, consequence, stack }) {
  return folded(
    `In torch's words: ${kind}`,
    explanation ? h("p", { class: "tc-prose" }, ...prose(explanation)) : null,
    hints.length ? h("ul", {}, ...hints.map((hint) => h("li", {}, ...prose(hint)))) : null,
    consequence ? h("p", {}, `It led to: ${consequence}.`) : null,
    stack.length ? h("pre", { class: "tc-snippet" }, stack.join("\n")) : null,
    reason ? h("pre", { class: "tc-snippet" }, reason) : null,
  );
}
