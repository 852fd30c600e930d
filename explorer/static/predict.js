// The form of a prediction: questions that are answered before anything is shown, then what torch.compile did.

import { h } from "./dom.js";

/** What a form needs of anywidget's model. @typedef {Pick<import("./widget.js").Model, "get" | "on" | "off" | "send">} FormModel */
/** @typedef {{name: string, form: "lines" | "groups" | "number" | "text", ask: string, hint: string}} Question */
/** @typedef {{title: string, showsCode: boolean, lines: [number, string][], computing: number[],
 *   hints: string[], isSaved?: boolean, questions: Question[]}} FormData */
/**
 * @typedef {{question: string, verdict: string, mark: string, given: string, found: string, words: string,
 *   titles: Record<string, string>, explanations: {words: string, stage: string, ids: string[]}[]}} Grade
 */

const LETTERS = "ABCDEFGH";
const NONE = "none";
const SIGNS = { right: "✓", wrong: "✗", unanswered: "–", unreadable: "?", "not graded": "–" };

export class PredictForm {
  /** @param {FormModel} model */
  constructor(model) {
    this.model = model;
    /** @type {FormData} */
    this.form = model.get("form");
    /** Answers as text, by question. @type {Map<string, string>} */
    this.answers = new Map(Object.entries(model.get("answers")));
    /** @type {Map<string, {note: HTMLElement, grade: HTMLElement, field: HTMLElement}>} */
    this.places = new Map();
    this.status = h("p", { class: "tc-predict-status", role: "status" });
    this.button = h("button", { class: "tc-predict-compare", type: "button", onclick: () => this.compare() });
    this.root = h("section", { class: "tcompile tc-predict", "aria-label": this.title() },
      h("h3", {}, this.title()),
      this.form.showsCode && !this.form.questions.some(({ form }) => form === "lines" || form === "groups") && this.code(),
      ...this.form.questions.map((question, index) => this.question(question, index)),
      ...this.form.hints.map((hint) => h("details", { class: "tc-predict-hint" }, h("summary", {}, "Hint"), ...inCode(hint))),
      h("div", { class: "tc-predict-end" }, this.button, this.status));
    this.listeners = /** @type {[string, () => void][]} */ ([
      ["change:state", () => this.update(true)],
      ["change:grades", () => this.update(true)],
      ["change:notes", () => this.showNotes()],
      ["change:progress", () => this.showStatus()],
    ]);
    for (const [event, listener] of this.listeners) model.on(event, listener);
    /** A plain key here is not Jupyter's, to which D twice deletes the cell. @param {KeyboardEvent} event */
    this.keepFromJupyter = (event) => {
      if (!(event.target instanceof HTMLElement) || !this.root.contains(event.target)) return;
      event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey && !event.altKey);
    };
    window.addEventListener("keydown", this.keepFromJupyter, { capture: true }); // before Jupyter sees it
    this.update(false);
    this.showNotes();
  }

  destroy() {
    for (const [event, listener] of this.listeners) this.model.off(event, listener);
    window.removeEventListener("keydown", this.keepFromJupyter, { capture: true });
    this.root.remove();
  }

  title() {
    return this.form.title ? `Predict: ${this.form.title}` : "Predict, before it runs";
  }

  compare() {
    this.model.send({ type: "compare", answers: Object.fromEntries(this.answers) });
  }

  /** @param {Question} question @param {number} index */
  question(question, index) {
    const note = h("p", { class: "tc-predict-note", role: "alert" });
    const grade = h("div", { class: "tc-predict-grade", tabIndex: -1 });
    const field = h("fieldset", { class: "tc-predict-question" },
      h("legend", {}, h("span", { class: "tc-predict-number" }, `${index + 1}`), ...inCode(question.ask)),
      this.input(question), note, grade);
    this.places.set(question.name, { note, grade, field });
    return field;
  }

  /** @param {Question} question */
  input(question) {
    if (question.form === "lines") return this.lines(question);
    if (question.form === "groups") return this.groups(question);
    const input = h("input", {
      class: "tc-predict-input", type: "text", value: this.answers.get(question.name) ?? "", spellcheck: false,
      autocomplete: "off", placeholder: question.hint, "aria-label": `${question.ask} ${question.hint}`,
      inputMode: question.form === "number" ? "numeric" : "text",
      oninput: () => this.answer(question, input.value),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") this.compare();
      },
    });
    return input;
  }

  /** Lines to click: each is a button that is pressed or not. @param {Question} question */
  lines(question) {
    const chosen = new Set(numbersIn(this.answers.get(question.name) ?? ""));
    const none = h("button", { type: "button", class: "tc-predict-none", onclick: () => choose(0) }, "No line");
    const buttons = new Map(this.form.lines.map(([number, text]) => [number, h("button", {
      type: "button", class: "tc-predict-line", "aria-label": `Line ${number}: ${text.trim() || "empty"}`,
      disabled: !text.trim(), onclick: () => choose(number),
    }, h("span", { class: "tc-predict-gutter" }, `${number}`), h("code", {}, text || " "))]));
    const mark = () => {
      for (const [number, button] of buttons) button.setAttribute("aria-pressed", `${chosen.has(number)}`);
      none.setAttribute("aria-pressed", `${this.answers.get(question.name) === NONE}`);
    };
    const choose = (/** @type {number} */ number) => {
      const wasNone = this.answers.get(question.name) === NONE;
      if (!number) chosen.clear();
      else if (!chosen.delete(number)) chosen.add(number);
      this.answer(question, number ? [...chosen].sort((a, b) => a - b).join(", ") : wasNone ? "" : NONE);
      mark();
    };
    mark();
    return h("div", { class: "tc-predict-code", role: "group", "aria-label": question.ask,
      onkeydown: (/** @type {KeyboardEvent} */ event) => moveIn(event, [...buttons.values(), none]) },
    ...buttons.values(), none);
  }

  /** Lines to sort into kernels: a line may be in several. @param {Question} question */
  groups(question) {
    const chosen = groupsIn(this.answers.get(question.name) ?? "");
    const none = h("button", { type: "button", class: "tc-predict-none", onclick: () => choose("", 0) }, "No two lines share one");
    /** @type {HTMLButtonElement[]} */
    const letters = [];
    const width = Math.min(LETTERS.length, Math.max(2, this.form.computing.length - 1));
    const rows = this.form.lines.map(([number, text]) => {
      const asked = this.form.computing.includes(number);
      const buttons = [...LETTERS].slice(0, asked ? width : 0).map((letter) => h("button", {
        type: "button", class: "tc-predict-letter", "data-letter": letter, "data-line": number,
        "aria-label": `Line ${number} is in kernel ${letter}`, onclick: () => choose(letter, number),
      }, letter));
      letters.push(...buttons);
      return h("div", { class: `tc-predict-row${asked ? "" : " tc-predict-quiet"}` },
        h("span", { class: "tc-predict-gutter" }, `${number}`),
        h("span", { class: "tc-predict-letters", style: { minWidth: `${30 * width}px` } }, ...buttons), h("code", {}, text || " "));
    });
    const mark = () => {
      for (const button of letters) {
        const { letter = "", line } = button.dataset;
        button.setAttribute("aria-pressed", `${chosen.get(letter)?.has(Number(line)) ?? false}`);
      }
      none.setAttribute("aria-pressed", `${this.answers.get(question.name) === NONE}`);
    };
    const choose = (/** @type {string} */ letter, /** @type {number} */ line) => {
      const wasNone = this.answers.get(question.name) === NONE;
      const group = chosen.get(letter) ?? new Set();
      if (!letter) chosen.clear();
      else if (!group.delete(line)) chosen.set(letter, group.add(line));
      const text = [...chosen.values()].filter((lines) => lines.size > 1).map((lines) => [...lines].sort((a, b) => a - b).join("+"));
      this.answer(question, letter ? text.join(", ") : wasNone ? "" : NONE);
      mark();
    };
    mark();
    return h("div", { class: "tc-predict-code", role: "group", "aria-label": question.ask,
      onkeydown: (/** @type {KeyboardEvent} */ event) => moveIn(event, [...letters, none]) }, ...rows, none);
  }

  /** Keep an answer, which is no longer the one that could not be read. @param {Question} question @param {string} text */
  answer(question, text) {
    this.answers.set(question.name, text);
    const place = this.places.get(question.name);
    if (place) place.note.textContent = "";
    place?.field.querySelector("input")?.removeAttribute("aria-invalid");
  }

  code() {
    return h("div", { class: "tc-predict-code" }, ...this.form.lines.map(([number, text]) =>
      h("div", { class: "tc-predict-row" }, h("span", { class: "tc-predict-gutter" }, `${number}`), h("code", {}, text || " "))));
  }

  /** @param {boolean} changed whether this answers the reader, who is then led to the grades */
  update(changed) {
    const state = this.model.get("state");
    this.button.disabled = state === "running";
    const first = this.form.isSaved ? "Compare" : "Run and compare";
    this.button.textContent = state === "running" ? "Running…" : state === "graded" ? "Compare again" : first;
    this.root.dataset.state = state;
    const { grades = [] } = this.model.get("grades");
    for (const grade of /** @type {Grade[]} */ (grades)) this.showGrade(grade);
    this.showStatus();
    const lost = !document.activeElement || document.activeElement === document.body;
    if (state === "graded" && (changed || lost) && grades.length) this.places.get(grades[0].question)?.grade.focus({ preventScroll: true });
  }

  showStatus() {
    const state = this.model.get("state");
    const { score = "", remark = "" } = this.model.get("grades");
    const asking = this.form.isSaved ? "" : "Nothing has run yet: cells below may need it. Answers stay on this computer.";
    const said = state === "running" ? this.model.get("progress") || "The code runs…" : [score, remark].filter(Boolean).join(". ");
    this.status.textContent = state === "asking" ? asking : said;
  }

  showNotes() {
    const notes = this.model.get("notes");
    for (const [name, { note, field }] of this.places) {
      note.textContent = notes[name] ? `This can't be read: ${notes[name]}.` : "";
      if (notes[name]) field.querySelector("input")?.setAttribute("aria-invalid", "true");
    }
    const first = this.form.questions.find(({ name }) => notes[name]);
    if (first) this.places.get(first.name)?.field.querySelector("input")?.focus();
  }

  /** @param {Grade} grade */
  showGrade(grade) {
    const place = this.places.get(grade.question);
    if (!place) return;
    place.field.dataset.verdict = grade.verdict;
    const sign = SIGNS[/** @type {keyof typeof SIGNS} */ (grade.verdict)];
    place.grade.replaceChildren(
      h("p", { class: "tc-predict-verdict" }, h("span", { class: "tc-predict-sign", "aria-hidden": "true" }, sign), `${capital(grade.mark)}. `,
        grade.found ? h("span", {}, "Found: ", h("strong", {}, grade.found)) : grade.words),
      h("ul", {}, ...grade.explanations.map(({ words, stage, ids }) => h("li", {}, ...inCode(capital(words)), stage ? " " : null,
        stage ? h("button", { type: "button", class: "tc-predict-stage", title: `Open the stage ${grade.titles[stage]}`,
          onclick: () => this.model.send({ type: "show", stage, ids }) }, `${grade.titles[stage]} →`) : null))),
    );
  }
}

/** Move the focus with the arrow keys. @param {KeyboardEvent} event @param {HTMLButtonElement[]} buttons */
function moveIn(event, buttons) {
  const open = buttons.filter((button) => !button.disabled);
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const at = open.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
  if (!step || at < 0) return;
  event.preventDefault();
  open[Math.min(open.length - 1, Math.max(0, at + step))].focus();
}

/** @param {string} text */
function numbersIn(text) {
  return (text.match(/\d+/g) ?? []).map(Number);
}

/** `3+4, 6+7` as the lines of kernels A and B. @param {string} text @returns {Map<string, Set<number>>} */
function groupsIn(text) {
  const groups = text.split(/[,;]/).map(numbersIn).filter((lines) => lines.length);
  return new Map(groups.slice(0, LETTERS.length).map((lines, index) => [LETTERS[index], new Set(lines)]));
}

/** Words with code in backticks. @param {string} words @returns {Node[]} */
function inCode(words) {
  return words.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : document.createTextNode(part)));
}

/** @param {string} text */
function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
