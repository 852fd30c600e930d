// Tensors in numbers: in brackets, tinted by sign and size; where they are many, as a picture; else in words.

import { h } from "./dom.js";

/** A number as JSON has it; what is not finite is a word. @typedef {number | string | null} Num */
/**
 * @typedef {{type: string, shape: number[], count: number, norm: Num, low: Num, high: Num, zeros: number, nans: number,
 *   infinite: number, numbers: any}} Value
 */

/** Tables have at most so many rows and columns; more are a picture. */
const SIDE = 12;
/** The width of a picture's cell, in points, at most and for how wide a picture. */
const CELL = 9;
const WIDE = 260;
/** Positive and negative, from Okabe and Ito's palette: told apart on light and dark. */
const SIGNS = ["0, 114, 178", "213, 94, 0"];

/** Four digits, as the text has them. @param {Num} number */
export function digits(number) {
  if (typeof number !== "number") return number === null ? "?" : String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e6) return String(number);
  const text = number.toPrecision(4);
  return text.includes("e") ? text.replace(/\.?0+e/, "e") : text.replace(/\.?0+$/, "");
}

/** A value with its kind below it. @param {Value | null} value @param {string} [name] @param {boolean} [flat] as one row */
export function valueBox(value, name = "", flat = false) {
  const title = name ? h("span", { class: "tc-value-name" }, name) : null;
  if (!value) return h("span", { class: "tc-value" }, h("span", { class: "tc-value-body" }, "?"), title);
  const numbers = inNumbers(value, flat);
  const body = h("span", { class: "tc-value-body" }, numbers ?? value.type);
  const type = !numbers ? "" : flat && value.shape.length !== 2 ? `1 × ${value.count}` : value.type;
  return h("span", { class: "tc-value" }, body, title, h("span", { class: "tc-value-kind" }, kindOf(value, type)));
}

/** @param {Value} value @param {string} type */
function kindOf(value, type) {
  const parts = type ? [type] : [];
  if (value.numbers === null || value.count > 1) parts.push(`‖·‖ ${digits(value.norm)}`);
  if (value.numbers === null) parts.push(`${digits(value.low)} to ${digits(value.high)}`);
  if (value.numbers === null && value.zeros) parts.push(`${((100 * value.zeros) / value.count).toFixed(0)} % zeros`);
  if (value.nans) parts.push(`${value.nans.toLocaleString("en")} NaN`);
  if (value.infinite) parts.push(`${value.infinite.toLocaleString("en")} infinite`);
  return parts.join(", ");
}

/** @param {Value} value @param {boolean} flat @returns {HTMLElement | null} */
function inNumbers({ numbers, shape, type }, flat) {
  if (numbers === null) return null;
  if (!Array.isArray(numbers)) return h("span", { class: "tc-number-alone", title: String(numbers) }, digits(numbers));
  const rows = flat ? [numbers.flat(Infinity)] : rowsOf(numbers, shape);
  const most = Math.max(rows.length, ...rows.map((row) => row.length));
  if (!most) return h("span", {}, "[ ]");
  const size = largest(rows);
  return most <= SIDE ? table(rows, size) : picture(rows, size, type);
}

/** A tensor of any shape as rows of its last dimension. @param {any[]} numbers @param {number[]} shape @returns {Num[][]} */
function rowsOf(numbers, shape) {
  return shape.length === 1 ? [numbers] : numbers.flat(shape.length - 2);
}

/** @param {Num[][]} rows */
function largest(rows) {
  const finite = rows.flat().filter((number) => typeof number === "number");
  return finite.reduce((most, number) => Math.max(most, Math.abs(number)), 0);
}

/** The colour of a number among others of which the largest is given. @param {Num} number @param {number} most */
function tint(number, most) {
  if (typeof number !== "number") return typeof number === "string" ? "var(--tc-warning-soft)" : "";
  const share = most ? Math.abs(number) / most : 0;
  return share ? `rgba(${SIGNS[number < 0 ? 1 : 0]}, ${(0.06 + 0.34 * share).toFixed(3)})` : "";
}

/** @param {Num[][]} rows @param {number} most */
function table(rows, most) {
  const body = rows.map((row) => {
    const cells = row.map((number) =>
      h("td", { title: String(number), style: { backgroundColor: tint(number, most) } }, digits(number)),
    );
    return h("tr", {}, ...cells);
  });
  return h("table", { class: "tc-matrix" }, h("tbody", {}, ...body));
}

/** @param {Num[][]} rows @param {number} most @param {string} type */
function picture(rows, most, type) {
  const columns = rows[0].length;
  const cell = Math.max(2, Math.min(CELL, Math.floor(WIDE / columns)));
  const canvas = h("canvas", { class: "tc-matrix-picture", width: columns * cell, height: rows.length * cell });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${type}, drawn: blue is positive, orange negative, the largest is ${digits(most)}`);
  const context = canvas.getContext("2d");
  rows.forEach((row, y) =>
    row.forEach((number, x) => {
      if (!context || number === 0) return;
      const share = typeof number === "number" && most ? Math.abs(number) / most : 1;
      context.fillStyle = `rgba(${SIGNS[typeof number === "number" && number < 0 ? 1 : 0]}, ${0.15 + 0.85 * share})`;
      context.fillRect(x * cell, y * cell, cell - (cell > 3 ? 1 : 0), cell - (cell > 3 ? 1 : 0));
    }),
  );
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const [x, y] = [Math.floor(offsetX / cell), Math.floor(offsetY / cell)];
    canvas.title = rows[y]?.[x] === undefined ? "" : `row ${y}, column ${x}: ${rows[y][x]}`;
  });
  return canvas;
}
