// Forms of predictions on a saved page, which has what torch.compile did: answers are graded without a kernel.

import { h } from "./dom.js";
import { PredictForm } from "./predict.js";
import { gradeAnswers, unreadableAnswers } from "./predict_answers.js";

/** @typedef {import("./predict_answers.js").SavedForm} SavedForm */

/** Answers a form as anywidget's model does. */
class SavedModel {
  /** @param {SavedForm} form */
  constructor(form) {
    this.form = form;
    /** @type {Record<string, any>} */
    this.values = { form, answers: {}, state: "asking", grades: {}, notes: {}, progress: "" };
    this.events = new EventTarget();
  }

  /** @param {string} name */
  get(name) {
    return this.values[name];
  }

  /** @param {string} event @param {() => void} listener */
  on(event, listener) {
    this.events.addEventListener(event, listener);
  }

  /** @param {string} event @param {(...args: any[]) => void} [listener] */
  off(event, listener) {
    if (listener) this.events.removeEventListener(event, listener);
  }

  /** @param {{answers: Record<string, string>}} message */
  send({ answers }) {
    const notes = unreadableAnswers(this.form, answers);
    const graded = Object.keys(notes).length ? {} : { grades: gradeAnswers(this.form, answers), state: "graded" };
    for (const [name, value] of Object.entries({ notes, ...graded })) {
      this.values[name] = value;
      this.events.dispatchEvent(new Event(`change:${name}`));
    }
  }
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => {
  document.documentElement.dataset.tcTheme = dark.matches ? "dark" : "light";
};
dark.addEventListener("change", follow);
follow();
const packed = atob(document.getElementById("tc-forms")?.textContent ?? "");
const text = new TextDecoder().decode(Uint8Array.from(packed, (character) => character.charCodeAt(0)));
const forms = /** @type {SavedForm[]} */ (JSON.parse(text));
const about = "Answer each question, then compare. What torch.compile did is in this page; nothing is sent anywhere.";
document.getElementById("tcompile")?.append(
  h("header", { class: "tcompile tc-predict" }, h("h1", {}, document.title), h("p", {}, about)),
  ...forms.map((form) => new PredictForm(new SavedModel(form)).root),
);
