// Syntax colour and folds, by small hand-written rules. A token is [class, text]; class "" is plain.

/** @typedef {[string, string]} Token */
/**
 * A stretch of text that spans lines: a string, a comment, or code in another language inside a string.
 * @typedef {{from: number, fromColumn: number, to: number, toColumn: number, kind: string, language: string}} Span
 */

/** @param {string} words */
const wordSet = (words) => new Set(words.split(" "));

const PYTHON_WORDS = wordSet(
  "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield match case",
);
const PYTHON_CONSTANTS = wordSet("None True False self cls Ellipsis NotImplemented");
const CPP_WORDS = wordSet(
  "alignas auto break case catch class const constexpr continue default delete do else enum explicit " +
    "extern for friend goto if inline mutable namespace new noexcept operator private protected public " +
    "register return sizeof static static_cast reinterpret_cast struct switch template this throw try " +
    "typedef typename union using virtual volatile while __restrict__",
);
const CPP_TYPES = wordSet(
  "bool char double float half int int8_t int16_t int32_t int64_t long short signed size_t uint8_t uint16_t uint32_t " +
    "uint64_t unsigned void bfloat16 at std c10",
);
const IR_WORDS = wordSet("define declare func module attributes target return ret br call load store for yield if");

const LLVM_WORDS = wordSet(
  "define declare target source_filename global external constant attributes tail musttail call ret br switch phi " +
    "select load store alloca getelementptr add sub mul udiv sdiv urem srem fadd fsub fmul fdiv frem fneg and or xor " +
    "shl lshr ashr trunc zext sext fptrunc fpext fptosi fptoui sitofp uitofp bitcast inttoptr ptrtoint addrspacecast " +
    "icmp fcmp insertelement extractelement insertvalue extractvalue shufflevector freeze atomicrmw cmpxchg fence " +
    "asm unreachable",
);
const LLVM_TYPES = wordSet("void ptr i1 i8 i16 i32 i64 i128 half bfloat float double x label metadata true false");
const MLIR_TYPES = wordSet(
  "tensor memref vector index none i1 i8 i16 i32 i64 f8E4M3FN f8E5M2 f16 bf16 f32 f64 true false dense",
);

/**
 * `mnemonic` tells words that are instructions.
 * @typedef {{words: Set<string>, constants: Set<string>, pattern: RegExp, mnemonic?: RegExp}} Grammar
 */

const STRING = String.raw`[rbfuRBFU]{0,2}(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?)`;
const NUMBER = String.raw`\b(?:0[xXfFdD][\da-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)[a-zA-Z]*\b`;

/**
 * Groups: 1 comment, 2 string, 3 decorator, preprocessor, register or the like, 4 number, 5 word.
 * @param {Set<string>} words @param {Set<string>} constants @param {string[]} parts comment, string, mark, word
 */
function grammar(words, constants, ...parts) {
  const [comment, string, mark, word] = parts;
  return { words, constants, pattern: new RegExp(`(${comment})|(${string})|(${mark})|(${NUMBER})|(${word})`, "g") };
}

/** Of machine code. @param {RegExp} mnemonic @param {string} comment @param {string} mark */
function instructions(mnemonic, comment, mark) {
  return { ...grammar(NONE, NONE, comment, STRING, mark, String.raw`\.?[A-Za-z_$][\w.$]*(?:::[\w.]+)*`), mnemonic };
}

const WORD = String.raw`[A-Za-z_]\w*`;
const NEVER = "$^";
const NONE = wordSet("");

/** @type {Record<string, Grammar>} */
const GRAMMARS = {
  python: grammar(PYTHON_WORDS, PYTHON_CONSTANTS, "#.*", STRING, String.raw`^\s*@[\w.]+`, WORD),
  cpp: grammar(CPP_WORDS, CPP_TYPES, String.raw`\/\/.*|\/\*.*?\*\/`, STRING, String.raw`^\s*#\s*\w+.*`, WORD),
  bytecode: grammar(NONE, PYTHON_CONSTANTS, ";.*", STRING, String.raw`>>|-->|\b[A-Z][A-Z_]{2,}\b`, WORD),
  ir: grammar(
    IR_WORDS,
    PYTHON_CONSTANTS,
    String.raw`\/\/.*|;.*`,
    STRING,
    String.raw`[%@!#^$][\w.$#:-]+|\.[a-z]\w+|\b(?:i|f|bf|u|s|b)(?:1|8|16|32|64)\b`,
    String.raw`[A-Za-z_][\w.]*`,
  ),
  // Places in the source are not what one reads for: they are written as comments are.
  mlir: {
    ...grammar(
      wordSet("module attributes loc"),
      MLIR_TYPES,
      String.raw`\/\/.*|\bloc\((?:#loc\w*|unknown)\)|^#loc.*`,
      STRING,
      String.raw`[%@!#^][\w$#:-]+`,
      String.raw`[A-Za-z_][\w.]*`,
    ),
    mnemonic: /^[a-z_]+\.\w/,
  },
  llvm: grammar(
    LLVM_WORDS,
    LLVM_TYPES,
    String.raw`;.*|,? !dbg !\d+|^!\d+ = .*`,
    STRING,
    String.raw`[%@!#][\w.$-]+|^\w+:`,
    String.raw`[A-Za-z_][\w.]*`,
  ),
  ptx: instructions(
    /^[a-z]\w*(?:\.\w+)+(?:::[\w.]+)*$|^(?:ret|bra|exit|trap|membar)$/,
    String.raw`\/\/.*|^\s*\.(?:loc|file)\s.*`,
    String.raw`%[\w.]+|\$L\w+`,
  ),
  sass: instructions(
    /^[A-Z][A-Z0-9_]+(?:\.\w+)*$/,
    String.raw`\/\/.*|\/\*.*?\*\/`,
    String.raw`\b(?:U?R(?:\d+|Z)(?:\.\w+)?|U?P(?:\d|T)|SR_[\w.]+|B\d+)\b|\x60\(\.\w+\)|^\.\w+:`,
  ),
  amdgcn: instructions(
    /^(?:[sv]|ds|buffer|global|flat|scratch|image)_\w+/,
    String.raw`;.*|\/\/.*|^\s*\.(?:loc|file|cfi_\w+)\s.*`,
    String.raw`\b(?:[vsa]\d+|[vsa]\[\d+:\d+\]|vcc(?:_lo|_hi)?|exec(?:_lo|_hi)?|scc|m0)(?!\w)|^\.?L?\w+:`,
  ),
  // x86 in Intel's syntax and AArch64, as disassembled C++ kernels are listed.
  cpu: instructions(
    /^[a-z][a-z\d.]*$/,
    String.raw`\/\/.*|#+(?: .*|$)`,
    String.raw`\.L\w+:?|\b(?:[xyz]mm\d+|[re]?(?:[abcd]x|[sd]i|[sbi]p)|[abcd][lh]|[wx]zr|[a-z]\d+(?:\.\d*[bhsd]|[bdw]|\/[mz])?)\b`,
  ),
  text: grammar(NONE, NONE, NEVER, NEVER, NEVER, WORD),
};

/** @type {Record<string, string>} */
const ALIASES = { x86: "cpu", aarch64: "cpu" };

/** @param {string} language */
export function grammarName(language) {
  return language in GRAMMARS ? language : (ALIASES[language] ?? "text");
}

/** Lines that only say which line of the source the next ones come from: links say that too. @type {Record<string, RegExp>} */
const PLACES = {
  mlir: /^#loc\w* = /,
  llvm: /^!\d+ = |^\s*#dbg_/,
  ptx: /^\s*\.(?:loc|file)\s/,
  sass: /^\s*\/\/## /,
  amdgcn: /^\s*\.(?:loc|file|cfi_\w+)\s|^\.L(?:tmp|func_begin|func_end)\d+:/,
};

/** The rows that are no more than such places. @param {string[]} lines @param {string} language @returns {Set<number>} */
export function placeRows(lines, language) {
  const pattern = PLACES[grammarName(language)];
  return new Set(pattern ? lines.flatMap((line, row) => (pattern.test(line) ? [row] : [])) : []);
}

/** Past this many characters a line is not coloured: nobody reads that far, and the browser would crawl. */
const LONGEST = 4000;

/** @param {string} line @param {string} language @returns {Token[]} */
export function tokenise(line, language) {
  const grammar = GRAMMARS[grammarName(language)];
  /** @type {Token[]} */
  const tokens = [];
  let end = 0;
  for (const match of line.slice(0, LONGEST).matchAll(grammar.pattern)) {
    const after = match.index + match[0].length;
    const kind = tokenClass(match, grammar, line[after]);
    if (!kind) continue;
    if (match.index > end) tokens.push(["", line.slice(end, match.index)]);
    tokens.push([kind, match[0]]);
    end = after;
  }
  if (end < line.length) tokens.push(["", line.slice(end)]);
  return tokens;
}

/** @param {RegExpMatchArray} match @param {Grammar} grammar @param {string} after */
function tokenClass(match, { words, constants, mnemonic }, after) {
  if (match[1]) return "c";
  if (match[2]) return "s";
  if (match[3]) return "m";
  if (match[4]) return "n";
  if (words.has(match[0]) || mnemonic?.test(match[0])) return "k";
  if (constants.has(match[0]) || (mnemonic && match[0].startsWith("."))) return "b";
  return after === "(" ? "f" : "";
}

const SPANNING = {
  python: /#[^\n]*|("""|''')[\s\S]*?(?:\1|$(?![\s\S]))|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/g,
  cpp: /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$(?![\s\S]))|"(?:\\.|[^"\\\n])*"?/g,
};

/**
 * The stretches that span lines. A long string that a code-compiling call takes is code: Inductor's wrapper holds its
 * kernels like that.
 * @param {string[]} lines @param {string} language @returns {Span[]}
 */
export function spans(lines, language) {
  const name = grammarName(language);
  if (name !== "python" && name !== "cpp") return [];
  const text = lines.join("\n");
  /** @type {Span[]} */
  const found = [];
  let line = 0;
  let start = 0;
  for (const match of text.matchAll(SPANNING[name])) {
    if (!match[0].includes("\n")) continue;
    for (let next = text.indexOf("\n", start); next !== -1 && next < match.index; next = text.indexOf("\n", start)) {
      start = next + 1;
      line += 1;
    }
    found.push(spanAt(match[0], line, match.index - start, name, lines[line].slice(0, match.index - start)));
  }
  return found;
}

/** @param {string} text @param {number} line @param {number} column @param {string} name @param {string} before */
function spanAt(text, line, column, name, before) {
  const rows = text.split("\n");
  const embedded = name === "python" ? embeddedLanguage(before) : "";
  const kind = name === "cpp" ? "c" : "s";
  return {
    from: line,
    fromColumn: column,
    to: line + rows.length - 1,
    toColumn: rows[rows.length - 1].length,
    kind,
    language: embedded,
  };
}

/** @param {string} before what stands on the line before a long string */
function embeddedLanguage(before) {
  const call = /async_compile\.(\w+)\(|(\w*(?:cpp|triton|cuda|ptx)\w*)\s*(?:\(|=)/.exec(before);
  if (!call) return "";
  return /triton/.test(call[1] ?? call[2]) ? "triton" : "cpp";
}

/**
 * The tokens of one line, with the span it lies in.
 * @param {string} line @param {number} row @param {string} language @param {Span | undefined} span
 * @returns {Token[]}
 */
export function tokeniseRow(line, row, language, span) {
  if (!span || row < span.from || row > span.to) return tokenise(line, language);
  const from = row === span.from ? span.fromColumn : 0;
  const to = row === span.to ? span.toColumn : line.length;
  const inside = line.slice(from, to);
  /** @type {Token[]} */
  const middle = span.language ? tokenise(inside, span.language) : [[span.kind, inside]];
  return [...tokenise(line.slice(0, from), language), ...middle, ...tokenise(line.slice(to), language)];
}

/** @param {Span[]} all in order @param {number} row @returns {Span | undefined} the span that reaches into a row */
export function spanOf(all, row) {
  let low = 0;
  let high = all.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (all[middle].to < row) low = middle + 1;
    else if (all[middle].from > row) high = middle - 1;
    else return all[middle];
  }
  return undefined;
}

/** A block shorter than this is not worth folding. */
const SHORTEST_FOLD = 4;

/**
 * What can be folded: first row -> last row, by indentation and by code inside strings.
 * @param {string[]} lines @param {Span[]} all @returns {Map<number, number>}
 */
export function foldRegions(lines, all) {
  /** @type {Map<number, number>} */
  const regions = new Map();
  /** @type {{indent: number, row: number}[]} */
  const open = [];
  let last = 0;
  lines.forEach((line, row) => {
    const indent = line.search(/\S/);
    if (indent < 0) return;
    closeFolds(open, indent, last, regions);
    open.push({ indent, row });
    last = row;
  });
  closeFolds(open, 0, last, regions);
  for (const span of all) if (span.to - span.from >= SHORTEST_FOLD) regions.set(span.from, span.to);
  return regions;
}

/**
 * @param {{indent: number, row: number}[]} open @param {number} indent @param {number} last
 * @param {Map<number, number>} regions
 */
function closeFolds(open, indent, last, regions) {
  for (let block = open.at(-1); block && block.indent >= indent; block = open.at(-1)) {
    if (last - block.row >= SHORTEST_FOLD) regions.set(block.row, last);
    open.pop();
  }
}

/**
 * The blocks to fold when all are: outermost, but not one that is most of the text.
 * @param {Map<number, number>} folds @param {number} total
 */
export function outermost(folds, total) {
  const rows = [];
  let end = -1;
  for (const [first, last] of [...folds].sort((a, b) => a[0] - b[0])) {
    if (first <= end || last - first > 0.6 * total) continue;
    rows.push(first);
    end = last;
  }
  return rows;
}

/** @typedef {{spans: Span[], folds: Map<number, number>, widest: number}} Structure */

/** @type {WeakMap<string[], Structure>} */
const structures = new WeakMap();

/**
 * What is found by reading a whole text, which is done once.
 * @param {string[]} lines @param {string} language @returns {Structure}
 */
export function structureOf(lines, language) {
  const known = structures.get(lines);
  if (known) return known;
  const all = spans(lines, language);
  const widest = lines.reduce((most, line) => Math.max(most, line.length), 0);
  const structure = { spans: all, folds: foldRegions(lines, all), widest };
  structures.set(lines, structure);
  return structure;
}
