// What is known of a record: the manifest, and the parts of artifacts that have arrived. Shared by all views of it.

import { Links } from "./links.js";
import { Rainbow } from "./rainbow.js";

/**
 * @typedef {{id: string, kind: string, label: string, attrs: Record<string, any>, inputs: string[],
 *   origins: string[]}} Entity
 * @typedef {"entities" | "text" | "decisions" | "words" | "view"} PartName
 * @typedef {{digest: string, bytes: number}} PartInfo
 * @typedef {{id: string, stage: string, title: string, language: string, graph: string, lines: number, chars: number,
 *   entities: number, operations: number, drawable: boolean, start: number, level: string, half: string, side: string, pair: string, view: string, opens: string,
 *   parts: Record<string, PartInfo>}} ArtifactInfo
 * @typedef {number | string | null} Cell
 * @typedef {{columns: {title: string, about: string, unit: string}[], rows: {id: string, cells: Cell[]}[]}} List
 * @typedef {{stage: string, reason: string, hint: string, graph: string, card: string}} Problem
 * @typedef {{name: string, title: string, about: string, group: string, count: number, sides?: number[], unit: string,
 *   seconds: number | null, problems: Problem[], artifacts: ArtifactInfo[], pending: number, makes: string,
 *   list: List | null}} StageInfo
 * @typedef {{id: string, frame: string, kind: string, reason: string, file: string, line: number, function: string,
 *   code: string, what: string, explanation: string, hints: string[], gb_id: string, stack: string[]}} BreakInfo
 * @typedef {{id: string, function: string, file: string, line: number, outcome: string, reason: string,
 *   graphs: string[], calls: number, modules: string[]}} FrameInfo
 * @typedef {{callee: string, line: number, inside: string, others: string[], scripts: string[]}} ExploredCall
 * @typedef {{title: string, explored?: ExploredCall | null, options: Record<string, any>, environment: Record<string, any>, home: string[],
 *   stages: StageInfo[], absent?: string, breaks: BreakInfo[], frames: FrameInfo[], guards: number, recompiles: number, counts: {breaks: string, recompiles: string},
 *   kernels: {language: string, category: string, count: number, launches: number}[],
 *   decisions: {pass: string, verdict: string, count: number}[],
 *   compare: [string, string] | null, first: string[], embedded?: boolean, trees: string[],
 *   versus?: {names: [string, string], rows: [string, string, string][]} | null, landed: Record<string, Record<string, number[]>>, plain: Record<string, number[]>,
 *   placed: Record<string, Record<string, string>>,
 *   spans: Record<string, [number, number, number, string, boolean][]>, heat?: import("./source_heat.js").Heat,
 *   calls: Record<string, Record<string, [string, number, number, string][]>>}} Manifest
 * @typedef {{subjects: string[], pass_name: string, verdict: string, why: string,
 *   numbers: Record<string, number>}} Decision
 * @typedef {{stage?: string, title?: string, elapsed?: number}} Running
 * @typedef {{done?: number, total?: number, waiting?: boolean, stage?: string, words?: string,
 *   confirm?: {kernels: string[], count: number}}} Compiling
 * What can be asked of Python, where there is one.
 * @typedef {{compile: () => void, trust: () => void, make: (stage: string) => void, tree: (id: string) => void, evaluate: (request: any) => void, morph: (graph: string) => void, cancel: () => void, views: () => void, lab: (kernel: string) => void,
 *   patch: (fixes: string[]) => void, newCell: (fixes: string[]) => void,
 *   switchTo: (callee: string) => void}} Kernel
 * What words in a text mean: name, one line, address.
 * @typedef {Record<string, [string, string, string]>} Words
 */

/**
 * One artifact as far as it has arrived. `rows` maps a 0-based line to the entities on it, `rowsOf` the other way.
 * @typedef {{info: ArtifactInfo, entities?: Entity[], rows: Map<number, string[]>, rowsOf: Map<string, number[]>,
 *   lines?: string[], numbers?: number[], folds?: [number, number, string][], decisions?: Decision[], words?: Words, view?: any,
 *   have: Record<string, string>}} Artifact
 */

/** @type {Manifest} */
const EMPTY = {
  title: "",
  options: {},
  environment: {},
  home: [],
  stages: [],
  breaks: [],
  frames: [],
  guards: 0,
  recompiles: 0,
  counts: { breaks: "0 graph breaks", recompiles: "0 recompilations" },
  kernels: [],
  decisions: [],
  compare: null,
  first: [],
  trees: [],
  landed: {},
  plain: {},
  placed: {},
  spans: {},
  calls: {},
};

/** @param {Uint8Array<ArrayBuffer>} bytes zlib-compressed JSON */
export async function decompress(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

export class Store {
  /**
   * @param {(artifact: string, part: PartName) => void} ask gets a part on its way; it arrives by `receive`
   * @param {Kernel | null} [kernel] absent on a saved page
   */
  constructor(ask, kernel = null) {
    this.ask = ask;
    this.kernel = kernel;
    /** @type {Compiling} */
    this.compiling = {};
    /** @type {Manifest} */
    this.manifest = EMPTY;
    /** @type {Map<string, Artifact>} */
    this.artifacts = new Map();
    /** Calls at each level of decomposition, as text, by id. @type {Map<string, string>} */
    this.trees = new Map();
    /** What sets of fixes give, by their sorted ids. @type {Map<string, {text: string, promise: string[], problem: string}>} */
    this.patches = new Map();
    /** A graph, evaluated again; `data` is null if it can't be, `buffers` has the numbers that it refers to. @type {any} */
    this.evaluated = null;
    /** The page of a graph's way to kernels, or why there is none. @type {any} */
    this.morph = null;
    /** The text of a new cell, and what to do with it. */
    this.cell = { text: "", words: "", problem: "" };
    /** @type {Running} */
    this.running = {};
    this.runningSince = 0;
    /** @type {Links | null} */
    this.index = null;
    /** Whether source lines and what came from them are coloured. */
    this.colours = false;
    /** @type {Rainbow | null} */
    this.knownRainbow = null;
    /** @type {Set<string>} */
    this.asked = new Set();
    /** Those of them that are being unpacked. @type {Set<string>} */
    this.arriving = new Set();
    /** Those that could not be unpacked. @type {Set<string>} */
    this.damaged = new Set();
    /** @type {Set<(what: string, artifact: string) => void>} */
    this.listeners = new Set();
    /** @type {Set<string>} */
    this.primary = new Set();
    /** @type {Set<string>} */
    this.linked = new Set();
    /** @type {Map<string, number>} */
    this.linkedIn = new Map();
  }

  /** @param {(what: string, artifact: string) => void} listener @returns {() => void} stops it */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /**
   * @param {string} what "manifest", "running", "compiling", "cell", "patch", "selection", "rainbow", or the name of a part
   * @param {string} [artifact]
   */
  tell(what, artifact = "") {
    for (const listener of [...this.listeners]) {
      try {
        listener(what, artifact);
      } catch (error) {
        reportError(error); // one view's fault is not to keep the others, or what is yet to be told, from the record
      }
    }
  }

  /**
   * Take the manifest as it now is, and ask for every artifact's entities: links need them all.
   * @param {Manifest} now
   */
  setManifest(now) {
    if (!now || !now.stages) return;
    this.manifest = now;
    const infos = now.stages.flatMap((stage) => stage.artifacts);
    for (const id of this.artifacts.keys()) if (!infos.some((info) => info.id === id)) this.artifacts.delete(id);
    for (const info of infos) this.place(info);
    this.index = null;
    this.tell("manifest");
    for (const info of infos) this.need(info.id, "entities");
  }

  /** @param {ArtifactInfo} info */
  place(info) {
    const known = this.artifacts.get(info.id);
    if (known) known.info = info;
    else this.artifacts.set(info.id, { info, rows: new Map(), rowsOf: new Map(), have: {} });
  }

  /** @param {Running} running */
  setRunning(running) {
    this.running = running ?? {};
    this.runningSince = performance.now() - 1000 * (this.running.elapsed ?? 0);
    this.tell("running");
  }

  /** @param {Compiling} compiling */
  setCompiling(compiling) {
    this.compiling = compiling ?? {};
    this.tell("compiling");
  }

  /** What words in an artifact mean, once that has arrived; asks for it. @param {string} id @returns {Words} */
  wordsOf(id) {
    const artifact = this.artifacts.get(id);
    if (artifact?.words) return artifact.words;
    const key = `${id} words`;
    if (artifact && !this.asked.has(key)) {
      this.asked.add(key);
      this.ask(id, "words");
    }
    return {};
  }

  /** Ask for a part unless it is there, on its way, or does not exist. @param {string} id @param {PartName} part */
  need(id, part) {
    const artifact = this.artifacts.get(id);
    const wanted = artifact?.info.parts[part]?.digest;
    const key = `${id} ${part} ${wanted}`;
    if (!artifact || !wanted || artifact.have[part] === wanted || this.asked.has(key)) return;
    this.asked.add(key);
    this.ask(id, part);
  }

  /**
   * A part has arrived, asked for or not.
   * @param {string} id @param {PartName} part @param {string} digest @param {Uint8Array<ArrayBuffer>} bytes
   */
  async receive(id, part, digest, bytes) {
    const key = `${id} ${part} ${digest}`;
    if (this.arriving.has(key) || this.artifacts.get(id)?.have[part] === digest) return;
    this.arriving.add(key);
    this.asked.add(key);
    const content = await decompress(bytes).catch((error) => reportError(error));
    this.arriving.delete(key);
    if (content === undefined) return this.askAgain(id, part, key);
    const artifact = this.artifacts.get(id);
    if (artifact && part === "words") artifact.words = content;
    if (part === "words") return this.tell(part, id);
    if (!artifact || artifact.info.parts[part]?.digest !== digest) return this.asked.delete(key);
    artifact.have[part] = digest;
    if (part === "entities") this.takeEntities(artifact, content);
    else if (part === "text") takeText(artifact, content);
    else if (part === "view") artifact.view = content;
    else artifact.decisions = content;
    this.tell(part, id);
  }

  /**
   * For a part that was damaged on the way: once at once, then when it is needed again, as it may always be damaged.
   * @param {string} id @param {PartName} part @param {string} key of what arrived
   */
  askAgain(id, part, key) {
    this.asked.delete(part === "words" ? `${id} words` : key);
    if (this.damaged.has(key)) return;
    this.damaged.add(key);
    if (part === "words") this.wordsOf(id);
    else this.need(id, part);
  }

  /** @param {Artifact} artifact @param {{entities: Entity[], lines: Record<string, string[]>, stacks?: Record<string, Record<string, string>>}} content */
  takeEntities(artifact, content) {
    artifact.entities = content.entities;
    for (const { id, attrs } of content.stacks ? content.entities : []) attrs.stacks = content.stacks?.[id];
    artifact.rows = new Map(Object.entries(content.lines).map(([line, ids]) => [Number(line) - 1, ids]));
    artifact.rowsOf = new Map();
    for (const [row, ids] of artifact.rows) {
      for (const id of ids) addTo(artifact.rowsOf, id, row);
    }
    this.index = null;
    this.follow();
  }

  /** @returns {Links} */
  get links() {
    this.index ??= new Links([...this.artifacts].map(([id, artifact]) => [id, artifact.entities ?? []]));
    return this.index;
  }

  /** The colours by source line of what has arrived, if they are shown. */
  get rainbow() {
    if (this.colours && this.knownRainbow?.links !== this.links) this.knownRainbow = new Rainbow(this);
    return this.colours ? this.knownRainbow : null;
  }

  /** @param {string} id of an entity @returns {Artifact | undefined} */
  artifactOf(id) {
    return this.artifacts.get(this.links.owner(id));
  }

  /** @param {string} name */
  stage(name) {
    return this.manifest.stages.find((stage) => stage.name === name);
  }

  /** Whether there is a stage, an artifact or an entity of that name. @param {string} name */
  has(name) {
    return Boolean(this.stage(name) ?? this.artifacts.get(name) ?? this.links.entity(name));
  }

  /** Once the entities of all artifacts are there: links lead through all of them. @param {() => void} then */
  whenLinked(then) {
    const all = () => [...this.artifacts.values()].every(({ info, entities }) => entities || !info.parts.entities);
    if (all()) return then();
    const stop = this.listen((what) => {
      if (what !== "entities" || !all()) return;
      stop();
      then();
    });
  }

  /** @param {Iterable<string>} ids @param {string} [from] which pane it was selected in: it does not scroll */
  select(ids, from = "") {
    this.primary = new Set(ids);
    this.follow();
    this.tell("selection", from);
  }

  /** Find what the selection is linked to, and how much of it is in each artifact. */
  follow() {
    this.linked = this.primary.size ? this.links.closure(this.primary) : new Set();
    this.linkedIn = new Map([...this.byArtifact(this.linked)].map(([artifact, ids]) => [artifact, ids.length]));
  }

  /** @param {Iterable<string>} ids of entities */
  byArtifact(ids) {
    /** @type {Map<string, string[]>} */
    const groups = new Map();
    for (const id of ids) addTo(groups, this.links.owner(id), id);
    return groups;
  }

  /** The call stack in the user's source that an entity came from, outermost first. @param {string} id */
  stack(id) {
    return this.links.nearest(id, new Set(this.manifest.home));
  }
}

/** @template T @param {Map<string, T[]>} lists @param {string} key @param {T} value */
function addTo(lists, key, value) {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

/** @param {Artifact} artifact @param {{text: string, numbers: number[] | null, folds?: [number, number, string][]}} content */
function takeText(artifact, content) {
  artifact.lines = content.text.split("\n");
  if (artifact.lines.at(-1) === "") artifact.lines.pop();
  artifact.numbers = content.numbers ?? undefined;
  artifact.folds = content.folds;
}
