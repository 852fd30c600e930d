// Reads answers and compares them with the truth, for saved pages: in a kernel, explorer/teach/question.py does it.

/**
 * @typedef {import("./predict.js").Question & {reading: keyof typeof READERS, counts: boolean, truth: Truth}} SavedQuestion
 * @typedef {Omit<import("./predict.js").FormData, "questions"> & {questions: SavedQuestion[],
 *   statements: Record<string, number>, dtypes: Record<string, string>}} SavedForm
 * @typedef {Omit<import("./predict.js").Grade, "given">} Truth
 * @typedef {string | number | Answer[] | null} Answer
 */

const NONE = new Set(["none", "no", "nothing", "nowhere", "-"]);
/** @type {Record<string, number>} */
const UNITS = { kib: 1024, mib: 1024 ** 2, kb: 1000, mb: 1000 ** 2 };
/** Relative difference at which a typed number is right. */
const CLOSE = 5e-3;
const SMALLEST = 1e-6;

/** How each kind of answer is read: undefined for one that can't be. Sets are sorted lists. */
const READERS = {
  /** @param {string} text @param {SavedQuestion} question @returns {Answer | undefined} */
  number(text, { counts }) {
    if (NONE.has(text)) return 0;
    const [, digits, unit = ""] = text.match(/^(\d[\d,_ ]*(?:\.\d+)?)\s*([a-z]*)\s*\.?$/) ?? [];
    const factor = UNITS[unit] ?? 1;
    const value = Math.round(Number((digits ?? "").replace(/[,_ ]/g, "")) * factor * 1e6) / 1e6;
    return digits && Number.isInteger(value) && (counts || factor === 1) ? value : undefined;
  },
  /** @param {string} text @param {SavedQuestion} _ @param {SavedForm} form @returns {Answer | undefined} */
  lines(text, _, form) {
    return NONE.has(text) ? [] : linesIn(text, form);
  },
  /** @param {string} text @param {SavedQuestion} _ @param {SavedForm} form @returns {Answer | undefined} */
  groups(text, _, form) {
    if (NONE.has(text)) return [];
    const groups = text.split(/[,;]/).filter((group) => group.trim()).map((group) => linesIn(group, form));
    const pairs = groups.flatMap((group = []) => group.flatMap((a) => group.filter((b) => a < b).map((b) => `${a}+${b}`)));
    return groups.every(Boolean) && pairs.length ? sorted(pairs) : undefined;
  },
  /** @param {string} text @returns {Answer | undefined} */
  names(text) {
    if (NONE.has(text)) return [];
    const names = text.split(/[,;\s]+/).map((name) => name.replace(/^[`'"[\](){}]+|[`'"[\](){}]+$/g, ""));
    const found = names.filter((name) => name && name !== "and").map((name) => name.split("[")[0]);
    return found.length ? sorted(found) : undefined;
  },
  /** @param {string} text @returns {Answer | undefined} */
  shape(text) {
    const bare = text.replace(/^torch\.size/, "").replace(/^[()[\] ]+|[()[\] ]+$/g, "");
    if (!bare || bare === "scalar" || NONE.has(bare)) return [];
    const sizes = bare.split(/[,x×*\s]+/).filter(Boolean);
    return sizes.every((size) => /^\w+$/.test(size)) ? sizes : undefined;
  },
  /** @param {string} text @param {SavedQuestion} _ @param {SavedForm} form @returns {Answer | undefined} */
  dtype(text, _, form) {
    return form.dtypes[text.replace(/^torch\./, "")];
  },
  /** @param {string} text @returns {Answer | undefined} */
  gradient(text) {
    const bare = text.replace(/(torch\.)?tensor/g, "").trim();
    if (["none", "no", "no gradient"].includes(bare)) return null;
    const quoted = bare.replace(/-?\b(nan|inf)\b/g, '"$&"');
    const lists = quoted.replace(/^\((.*)\)$/s, "$1").replaceAll("(", "[").replaceAll(")", "]").replace(/,\s*\]/g, "]");
    try {
      return JSON.parse(lists.replace(/(\d)\.(?!\d)/g, "$1.0").replace(/(?<!\d)\.(\d)/g, "0.$1"), numbersOnly);
    } catch {
      return undefined;
    }
  },
};

/** Answers that can't be read, each with how to write it. @param {SavedForm} form @param {Record<string, string>} answers */
export function unreadableAnswers(form, answers) {
  const asked = form.questions.filter((question) => (answers[question.name] ?? "").trim());
  const bad = asked.filter((question) => read(question, form, answers[question.name]) === undefined);
  return Object.fromEntries(bad.map(({ name, hint }) => [name, `give ${hint}`]));
}

/** Grades as the widget gets them from a kernel. @param {SavedForm} form @param {Record<string, string>} answers */
export function gradeAnswers(form, answers) {
  const grades = form.questions.map((question) => gradeOf(question, form, (answers[question.name] ?? "").trim()));
  const counted = grades.filter(({ verdict }) => verdict !== "not graded");
  const right = grades.filter(({ verdict }) => verdict === "right");
  return { score: counted.length ? `${right.length} of ${counted.length} right` : "Nothing could be graded", remark: "", grades };
}

/** @param {SavedQuestion} question @param {SavedForm} form @param {string} given */
function gradeOf(question, form, given) {
  const { truth } = question;
  if (!truth.found || !given) return { ...truth, given };
  const [said, found] = [given, truth.found].map((text) => read(question, form, text));
  const isRight = question.reading === "shape" ? sameShape(said, found) : agree(said, found, question.reading === "gradient" ? CLOSE : 0);
  return { ...truth, given, verdict: isRight ? "right" : "wrong", mark: isRight ? "right" : "not as found" };
}

/** @param {SavedQuestion} question @param {SavedForm} form @param {string} text */
function read(question, form, text) {
  return READERS[question.reading](text.trim().toLowerCase(), question, form);
}

/** @param {Answer | undefined} given @param {Answer | undefined} found @param {number} close @returns {boolean} */
function agree(given, found, close) {
  if (Array.isArray(given) && Array.isArray(found)) {
    return given.length === found.length && given.every((each, index) => agree(each, found[index], close));
  }
  if (!close || typeof given !== "number" || typeof found !== "number") return given === found;
  return Math.abs(given - found) <= Math.max(close * Math.max(Math.abs(given), Math.abs(found)), SMALLEST);
}

/** Whether sizes are equal; each symbolic size may have any name. @param {any} given @param {any} found */
function sameShape(given, found) {
  if (!given || given.length !== found.length) return false;
  const isNumber = (/** @type {string} */ size) => /^\d+$/.test(size);
  const pairs = new Set(given.map((/** @type {string} */ size, /** @type {number} */ at) => `${size} ${found[at]}`));
  const renamed = given.every((/** @type {string} */ size, /** @type {number} */ at) =>
    size === found[at] || !(isNumber(size) || isNumber(found[at])));
  return renamed && pairs.size === new Set(given).size && pairs.size === new Set(found).size;
}

/** Statements' lines in a text; undefined if it has anything else. @param {string} text @param {SavedForm} form */
function linesIn(text, form) {
  if (text.replace(/lines?|and|[\d\s,;+&]/g, "") || !/\d/.test(text)) return undefined;
  const found = (text.match(/\d+/g) ?? []).map((number) => form.statements[number]);
  return found.every(Boolean) ? sorted(found) : undefined;
}

/** Sorted, without repetitions. @template T @param {T[]} values @returns {T[]} */
function sorted(values) {
  return [...new Set(values)].sort();
}

/** @param {string} _ @param {unknown} value */
function numbersOnly(_, value) {
  if (typeof value === "number" || Array.isArray(value) || /^-?(nan|inf)$/.test(String(value))) return value;
  throw new SyntaxError("not a number");
}
