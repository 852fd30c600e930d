// The links between entities: `origins`, followed up to where a thing came from and down to what came from it.

/** @typedef {import("./store.js").Entity} Entity */

/** An index over all entities that are there; made anew when more arrive. */
export class Links {
  /** @param {Iterable<[string, Entity[]]>} groups artifact id and its entities */
  constructor(groups) {
    /** @type {Entity[]} */
    this.entities = [];
    /** @type {string[]} */
    this.owners = [];
    /** @type {Map<string, number>} */
    this.numbers = new Map();
    for (const [artifact, entities] of groups) for (const entity of entities) this.add(artifact, entity);
    /** @type {number[][]} */
    this.down = this.entities.map(() => []);
    /** @type {number[][]} */
    this.up = this.entities.map((entity) => this.numbersOf(entity.origins));
    this.up.forEach((origins, child) => origins.forEach((origin) => this.down[origin].push(child)));
  }

  /** @param {string} artifact @param {Entity} entity */
  add(artifact, entity) {
    this.numbers.set(entity.id, this.entities.length);
    this.entities.push(entity);
    this.owners.push(artifact);
  }

  /** @param {Iterable<string>} ids @returns {number[]} those that are known */
  numbersOf(ids) {
    const numbers = [];
    for (const id of ids) {
      const number = this.numbers.get(id);
      if (number !== undefined) numbers.push(number);
    }
    return numbers;
  }

  /** @param {string} id @returns {Entity | undefined} */
  entity(id) {
    const number = this.numbers.get(id);
    return number === undefined ? undefined : this.entities[number];
  }

  /** @param {string} id of an entity @returns {string} id of its artifact, "" when it is unknown */
  owner(id) {
    return this.owners[this.numbers.get(id) ?? -1] ?? "";
  }

  /**
   * The nearest ancestors in some artifacts, as the first entity that has any lists them: for source lines, the call
   * stack, outermost first.
   * @param {string} id @param {Set<string>} artifacts @returns {string[]}
   */
  nearest(id, artifacts) {
    const seen = new Set([id]);
    for (const next of seen) {
      const origins = this.entity(next)?.origins ?? [];
      const found = origins.filter((origin) => artifacts.has(this.owner(origin)));
      if (found.length) return found;
      origins.forEach((origin) => seen.add(origin));
    }
    return [];
  }

  /**
   * What an entity stands for: the instructions made of a line of a kernel, and the kernel in machine code, stand for
   * that line and for the kernel. So PTX and SASS of the same line are linked, though neither came from the other.
   * @param {string} id
   */
  standsFor(id) {
    const entity = this.entity(id);
    const origin = entity?.origins.length === 1 ? this.entity(entity.origins[0]) : undefined;
    const stands = (entity?.kind === "instructions" && origin?.kind === "triton") || (entity?.kind === "kernel" && origin?.kind === "kernel");
    return origin && stands ? [id, origin.id] : [id];
  }

  /**
   * The ids themselves, all they came from, and all that came from them. Directional: what a common origin also led
   * to is not linked.
   * @param {Iterable<string>} ids @returns {Set<string>}
   */
  closure(ids) {
    const start = this.numbersOf([...ids].flatMap((id) => this.standsFor(id)));
    const found = new Uint8Array(this.entities.length);
    this.walk(start, this.up, found, 1);
    this.walk(start, this.down, found, 2);
    /** @type {Set<string>} */
    const names = new Set();
    found.forEach((mark, number) => mark && names.add(this.entities[number].id));
    return names;
  }

  /** @param {number[]} start @param {number[][]} edges @param {Uint8Array} found @param {number} mark */
  walk(start, edges, found, mark) {
    const todo = [...start];
    for (const number of start) found[number] |= mark;
    for (let number = todo.pop(); number !== undefined; number = todo.pop()) {
      for (const next of edges[number]) {
        if (found[next] & mark) continue;
        found[next] |= mark;
        todo.push(next);
      }
    }
  }
}
