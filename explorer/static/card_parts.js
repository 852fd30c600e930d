// What cards are made of: sentences with code in them, places to go to, code with a part marked, code to copy.

import { copyText, h, iconButton } from "./dom.js";
import { tokenise } from "./language.js";
import { appendToken } from "./tokens.js";

/** A sentence in which code stands between backticks. @param {string} text @returns {(Node | string)[]} */
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/** A coloured line of Python, with a part of it marked; where it is wrapped, between words. @param {string} text @param {[number, number]} [mark] */
export function pythonLine(text, mark) {
  const line = h("span", { class: "tc-code" });
  let column = 0;
  for (const [name, part] of tokenise(text, "python")) {
    for (const piece of name ? [part] : part.split(/(?<=[.,([])/)) {
      if (/^[\w"']/.test(piece)) line.append(h("wbr"));
      appendToken(line, name && `tc-t-${name}`, piece, column, mark ? [[...mark, "tc-culprit"]] : []);
      column += piece.length;
    }
  }
  return line;
}

/** What a piece of code may be changed to, line by line. @param {string[]} before @param {string[]} after */
export function rewriteOf(before, after) {
  const shared = commonIndent([...before, ...after]);
  /** @param {string} sign @param {string} name */
  const line = (sign, name) => (/** @type {string} */ text) =>
    h("div", { class: name }, h("span", { class: "tc-sign" }, sign), pythonLine(text.slice(shared)));
  const rows = [...before.map(line("−", "tc-removed")), ...after.map(line("+", "tc-added"))];
  return withCopy(h("pre", { class: "tc-snippet tc-rewrite" }, ...rows), after.join("\n"), "Copy the new lines");
}

/** Lines to copy: statements to run, or text. @param {string[]} lines @param {string} [language] */
export function statements(lines, language = "python") {
  const isPython = language === "python";
  const rows = lines.map((text) => h("div", {}, isPython ? pythonLine(text) : text || "\u00a0"));
  return withCopy(h("pre", { class: "tc-snippet" }, ...rows), lines.join("\n"), isPython ? "Copy the setting" : "Copy the text");
}

/** @param {HTMLElement} code @param {string} text @param {string} title */
function withCopy(code, text, title) {
  const button = iconButton("copy", title, async () => {
    await copyText(text);
    button.classList.add("tc-done");
    setTimeout(() => button.classList.remove("tc-done"), 1200);
  });
  return h("div", { class: "tc-copied" }, code, button);
}

/** @param {string[]} lines */
function commonIndent(lines) {
  const full = lines.filter((line) => line.trim());
  return Math.min(...full.map((line) => line.length - line.trimStart().length));
}
