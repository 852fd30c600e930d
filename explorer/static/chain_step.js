// One step of the chain rule: forward, an operation; backward, the incoming gradient times the local derivative.

import { valueBox } from "./chain_value.js";
import { h } from "./dom.js";

/** @typedef {import("./chain_value.js").Value} Value */
/** @typedef {{name: string, source: string, value: Value | null}} Part an operand, or a gradient that arrives */
/**
 * @typedef {{name: string, target: string, formula: string, value: Value | null, derivative: Value | null,
 *   jacobian: (Value & {diagonal: boolean, density: string}) | null, error: number | null}} Departure
 * @typedef {{name: string, kind: string, why: string}} Stop
 * @typedef {{id: string, select: string, direction: "forward" | "backward" | "leaf", node: string, op: string,
 *   rule: string, forward: string, operands: Part[], settings: Record<string, string>, value: Value | null,
 *   arrivals: Part[], gradient: Value | null, departures: Departure[], stops: Stop[], exact: boolean | null,
 *   note: string, where: string, code: string, module: string}} Step
 */

const NOT_IN_TABLE = "formula not in the table";

/** @param {Step} step @param {(node: string) => void} go to what happens at a node, in this direction */
export function stepCard(step, go) {
  const make = { forward: forwardCard, backward: backwardCard, leaf: leafCard }[step.direction];
  return h("div", { class: "tc-chain-card" }, place(step), ...make(step, go));
}

/** @param {Step} step */
function place({ where, code, module }) {
  const text = h("code", {}, code || "");
  const line = h("div", { class: "tc-chain-place" }, h("span", {}, [where, module].filter(Boolean).join(" · ")), text);
  return where || module ? line : h("div", { class: "tc-chain-place" }, h("span", {}, "made before it could be recorded"));
}

/** @param {string} name @param {string} rest @param {string} about */
function heading(name, rest, about) {
  return h("h3", { class: "tc-chain-heading" }, h("b", {}, name), rest, h("small", {}, about));
}

/** @param {Step} step @param {(node: string) => void} go */
function forwardCard(step, go) {
  const operands = step.operands.map((part) => line(part.name, "=", valueBox(part.value), part.source, go, "of"));
  const settings = Object.entries(step.settings).map(([name, value]) => `${name} = ${value}`);
  return [
    heading(step.node, ` = ${step.forward}`, step.rule || ""),
    section("Inputs", operands),
    settings.length > 0 && h("p", { class: "tc-why" }, `with ${settings.join(", ")}`),
    ...stopped(step),
    section("Result", [line(step.node, "=", valueBox(step.value), "", go, "")]),
    step.note && h("p", { class: "tc-why" }, step.note),
  ];
}

/** @param {Step} step @param {(node: string) => void} go */
function backwardCard(step, go) {
  return [
    heading(`d ${step.node}`, "", `${step.rule || NOT_IN_TABLE} (${step.op})`),
    h("p", { class: "tc-why" }, `forward: ${step.node} = ${step.forward}`),
    ...comesIn(step, "grad", go),
    ...step.departures.map((departure) => leaves(step, departure, go)),
    ...stopped(step),
  ];
}

/** @param {Step} step @param {(node: string) => void} go */
function leafCard(step, go) {
  const value = step.value ? section("Its value", [line(step.node, "=", valueBox(step.value), "", go, "")]) : null;
  return [heading(`${step.node}.grad`, "", "where all paths to it end"), ...comesIn(step, `${step.node}.grad`, go), value];
}

/** Inputs that get no gradient, and why. @param {Step} step */
function stopped({ stops }) {
  if (!stops?.length) return [];
  const items = stops.map(({ name, kind, why }) => h("li", {}, h("b", {}, name), h("span", { class: "tc-stop" }, kind), why));
  return [section("Inputs without a gradient", [h("ul", { class: "tc-chain-stops" }, ...items)])];
}

/** @param {Step} step @param {string} name of the sum @param {(node: string) => void} go */
function comesIn({ arrivals, gradient, exact, note }, name, go) {
  const told = note ? [h("p", { class: "tc-why" }, note)] : [];
  if (arrivals.length <= 1) {
    const [first] = arrivals;
    return [section("Incoming gradient", [line(name, "=", valueBox(gradient), first?.source ?? "", go, "from", first?.name)]), ...told];
  }
  const terms = arrivals.map((part, at) => line("", at ? "+" : "", valueBox(part.value), part.source, go, "from", part.name));
  const words = exact ? "summed, bit-exact" : "summed";
  const sum = line(name, "=", valueBox(gradient), "", go, words);
  return [section(`Incoming gradient: the sum of ${arrivals.length}`, [...terms, sum]), ...told];
}

/** @param {Step} step @param {Departure} departure @param {(node: string) => void} go */
function leaves(step, departure, go) {
  const { name, formula, target, error } = departure;
  const rule = h("div", { class: "tc-chain-formula" }, h("code", {}, `d ${name} = ${formula || NOT_IN_TABLE}`));
  const off = error ? `The formula on the same numbers differs by ${error.toExponential(1)} of the largest number.` : "";
  const whole = section(`Gradient of ${name}`, [rule, ...product(step, departure, go)]);
  if (off) whole.append(h("p", { class: "tc-why" }, off));
  whole.dataset.target = target;
  return whole;
}

/**
 * The vector–Jacobian product in numbers, as far as they are there, and where the result goes.
 * @param {Step} step @param {Departure} departure @param {(node: string) => void} go
 */
function product({ gradient }, departure, go) {
  const { name, value, derivative, jacobian } = departure;
  const result = line(`d ${name}`, "=", valueBox(value), departure.target, go, "to");
  if (derivative?.numbers != null && gradient?.numbers != null) {
    const factors = [valueBox(gradient, "grad"), sign("·"), valueBox(derivative, "local derivative")];
    const isMore = jacobian && jacobian.count > 1;
    return [equation(...factors), result, ...(isMore ? [diagonal(jacobian)] : [])];
  }
  if (!jacobian) return [result];
  const size = jacobian.shape.join(" × ");
  const about = `d ${name} = grad · J; J is ${size}, ${jacobian.density}`;
  if (jacobian.numbers === null) return [h("p", { class: "tc-why" }, about), result];
  const factors = [valueBox(gradient, "grad, as a row", true), sign("·"), valueBox(jacobian, `Jacobian J, ${size}`)];
  if ((value?.shape.length ?? 0) < 2) return [equation(...factors), result];
  return [equation(...factors, sign("="), valueBox(value, `d ${name}, as a row`, true)), result];
}

/** @param {...HTMLElement} boxes */
function equation(...boxes) {
  return h("div", { class: "tc-chain-equation" }, ...boxes);
}

/** @param {Value & {density: string}} jacobian */
function diagonal(jacobian) {
  const size = jacobian.shape.join(" × ");
  const words = `Jacobian J, ${size}: diagonal, as each element depends on one`;
  const fold = h("details", { class: "tc-chain-jacobian" }, h("summary", {}, words));
  if (jacobian.numbers === null) return h("p", { class: "tc-why" }, `${words}, ${jacobian.density}`);
  fold.addEventListener("toggle", () => fold.childElementCount < 2 && fold.append(valueBox(jacobian)), { once: true });
  return fold;
}

/** @param {string} text */
function sign(text) {
  return h("span", { class: "tc-chain-sign" }, text);
}

/** @param {string} title @param {(Node | null)[]} content */
function section(title, content) {
  return h("section", { class: "tc-chain-section" }, h("h4", {}, title), ...content);
}

/**
 * @param {string} name @param {string} symbol @param {HTMLElement} value @param {string} node that it is from or goes to
 * @param {(node: string) => void} go @param {string} words before the node @param {string} [which] of the node's inputs
 */
function line(name, symbol, value, node, go, words, which = "") {
  const title = `Go to ${node}`;
  const link = node && h("button", { type: "button", class: "tc-chain-link", title, onclick: () => go(node) }, node);
  const alone = { from: "the backward starts here", of: "", to: "" }[words] ?? words;
  const told = h("span", { class: "tc-chain-words" }, node ? `${words} ` : alone, link || null, which && node ? `, its ${which}` : "");
  return h("div", { class: "tc-chain-line" }, h("b", {}, name), sign(symbol), value, told);
}
