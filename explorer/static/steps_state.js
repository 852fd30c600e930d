// What TorchDynamo held at each step of a reading, rebuilt from what changed, as `explorer/findings/replay.py` does it.

/**
 * The columns of `explorer/findings/steps.py`.
 * @typedef {{title: string, frame: string, attempt: number, why: string, spans: [number, number][]}} ReadingInfo
 * @typedef {{at: number[], calls: number[], kept: number[], pushed: number[][], changed: number[][], nodes: number[][],
 *   guards: number[][], ended: [number, number][], readings: ReadingInfo[], breaks: [number, string][], cut: string,
 *   places: number[][], strings: string[]}} StepsData
 * One instruction, and where it is.
 * @typedef {{function: string, file: string, line: number, offset: number, opcode: string, argument: string,
 *   source: string, depth: number, first: boolean, ended: string}} Step
 * A call that is being read: where it was entered, and its state.
 * @typedef {{begun: number, last: number, stack: string[], locals: Map<string, string>}} Call
 * The stack is bottom first; so many of its lowest were there before. Of nodes and guards, the last `new…` are new.
 * @typedef {{stack: string[], kept: number, locals: Map<string, string>, changed: Set<string>, calls: Call[],
 *   nodes: string[], newNodes: number, guards: string[], newGuards: number}} State
 */

/** A copy of the state is kept every so many steps. */
const EVERY = 256;

export class Reading {
  /** @param {StepsData} data @param {number} number */
  constructor(data, number) {
    this.data = data;
    this.info = data.readings[number];
    /** The number in the record of each step. */
    this.steps = this.info.spans.flatMap(([first, end]) => Array.from({ length: end - first }, (_, at) => first + at));
    this.nodes = new Added(this.steps, data.nodes);
    this.guards = new Added(this.steps, data.guards);
    this.ended = new Map(data.ended);
    /** @type {Call[][]} */
    this.copies = [[]];
  }

  get length() {
    return this.steps.length;
  }

  /** @param {number} at @returns {Step} */
  step(at) {
    const { data } = this;
    const number = this.steps[at];
    const [name, file, line, offset, opcode, argument, source] = data.places[data.at[number]];
    const text = (/** @type {number} */ index) => data.strings[index];
    const calls = data.calls[number];
    const ended = this.ended.get(number);
    return {
      function: text(name),
      file: text(file),
      line,
      offset,
      opcode: text(opcode),
      argument: text(argument),
      source: text(source),
      depth: calls >> 1,
      first: Boolean(calls & 1),
      ended: ended === undefined ? "" : text(ended),
    };
  }

  /** @param {number} at */
  depth(at) {
    return this.data.calls[this.steps[at]] >> 1;
  }

  /** What was held when step `at` was come to. @param {number} at @returns {State} */
  state(at) {
    const calls = this.callsAt(at);
    const number = this.steps[at];
    const call = calls[this.depth(at)];
    const changed = this.data.changed[number].filter((_, index) => index % 2 === 0);
    return {
      stack: call.stack,
      kept: this.data.kept[number],
      locals: call.locals,
      changed: new Set(changed.map((name) => this.data.strings[name])),
      calls: calls.slice(0, this.depth(at) + 1),
      nodes: this.texts(this.nodes.before(at)),
      newNodes: this.nodes.count(at - 1),
      guards: this.texts(this.guards.before(at)),
      newGuards: this.guards.count(at - 1),
    };
  }

  /** @param {number[]} numbers */
  texts(numbers) {
    return numbers.map((number) => this.data.strings[number]);
  }

  /** The calls with step `at` applied. @param {number} at */
  callsAt(at) {
    const nearest = Math.min(Math.floor(at / EVERY), this.copies.length - 1);
    const calls = this.copies[nearest].map(copied);
    for (let next = nearest * EVERY; next <= at; next++) {
      if (next % EVERY === 0 && next / EVERY === this.copies.length) this.copies.push(calls.map(copied));
      this.apply(calls, next);
    }
    return calls;
  }

  /** @param {Call[]} calls @param {number} at */
  apply(calls, at) {
    const { data } = this;
    const number = this.steps[at];
    const depth = data.calls[number] >> 1;
    if (data.calls[number] & 1 || !calls[depth]) calls[depth] = { begun: at, last: at, stack: [], locals: new Map() };
    const call = calls[depth];
    call.last = at;
    call.stack.splice(data.kept[number], Infinity, ...this.texts(data.pushed[number]));
    const changed = this.texts(data.changed[number]);
    for (let index = 0; index < changed.length; index += 2) {
      if (changed[index + 1]) call.locals.set(changed[index], changed[index + 1]);
      else call.locals.delete(changed[index]);
    }
  }

  /**
   * The next step that is not inside of a call made here; back, the one before.
   * @param {number} at @param {number} direction
   */
  over(at, direction) {
    const depth = this.depth(at);
    let next = at + direction;
    while (next > 0 && next < this.length - 1 && this.depth(next) > depth) next += direction;
    return Math.min(Math.max(next, 0), this.length - 1);
  }

  /**
   * The next step on a source line, else the first; -1 where there is none.
   * @param {string} source @param {number} from
   */
  find(source, from) {
    const index = this.data.strings.indexOf(source);
    const on = (/** @type {number} */ number) => this.data.places[this.data.at[number]][6] === index;
    const after = this.steps.findIndex((number, at) => at >= from && on(number));
    return after >= 0 ? after : this.steps.findIndex(on);
  }

  /**
   * The steps whose instruction or function has a text in it, or that add a node that has.
   * @param {string} wanted in small letters
   */
  search(wanted) {
    const { data } = this;
    const has = data.strings.map((text) => text.toLowerCase().includes(wanted));
    const places = data.places.map(([name, , , , opcode, argument]) => has[name] || has[opcode] || has[argument]);
    const found = (/** @type {number} */ number) =>
      places[data.at[number]] || data.nodes[number].some((node) => has[node]);
    return this.steps.flatMap((number, at) => (found(number) ? [at] : []));
  }

  /** Where a step of the record is among these; -1 where it is not. @param {number} number */
  place(number) {
    return this.steps.indexOf(number);
  }
}

/** What steps added, one after the other: all before a step are the first so many. */
class Added {
  /** @param {number[]} steps @param {number[][]} column */
  constructor(steps, column) {
    this.all = steps.flatMap((number) => column[number]);
    this.ends = new Int32Array(steps.length + 1);
    steps.forEach((number, at) => {
      this.ends[at + 1] = this.ends[at] + column[number].length;
    });
  }

  /** @param {number} at */
  before(at) {
    return this.all.slice(0, this.ends[at]);
  }

  /** How many step `at` added. @param {number} at */
  count(at) {
    return at < 0 ? 0 : this.ends[at + 1] - this.ends[at];
  }
}

/** @param {Call} call @returns {Call} */
function copied({ begun, last, stack, locals }) {
  return { begun, last, stack: [...stack], locals: new Map(locals) };
}
