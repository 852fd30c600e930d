// What a graph view shows: entities in groups by module, with inputs and outputs as chips beside the nodes.

/**
 * @typedef {import("./store.js").Entity} Entity
 *
 * A module, or the body of a higher-order operator: `title` is its path from the group around it. `nodes` are its own,
 * `members` all under it, in order.
 * @typedef {{path: string, title: string, type: string, body: boolean, parent: Group | null, groups: Group[],
 *   nodes: Entity[], members: Entity[], open: boolean}} Group
 *
 * A step of the way to a node: a module, or a body.
 * @typedef {{name: string, body: boolean}} Step
 */

const CHIP_KINDS = new Set(["placeholder", "get_attr", "output", "subgraph", "subgraph_input", "subgraph_output"]);
const ALL_OPEN = 60;
const ENOUGH = 10;

export class GraphModel {
  /** What is inside of something else (a loop of a kernel) is no node. @param {Entity[]} all */
  constructor(all) {
    const entities = all.filter((entity) => !entity.attrs.inside);
    this.entities = entities;
    this.byId = new Map(entities.map((entity) => [entity.id, entity]));
    const computed = entities.filter((entity) => !CHIP_KINDS.has(entity.kind));
    this.nodes = computed.length ? computed : entities;
    this.isNode = new Set(this.nodes.map((entity) => entity.id));
    this.root = groupByModule(this.nodes, this.byId);
    /** @type {Map<string, Group>} */
    this.groupOf = new Map();
    /** @type {Map<string, Group>} */
    this.groups = new Map();
    for (const group of under(this.root)) {
      this.groups.set(group.path, group);
      for (const node of group.nodes) this.groupOf.set(node.id, group);
    }
    this.chips = this.placeChips();
    this.openSome();
  }

  /** Ids of the chips at each node, and of the nodes at each chip. */
  placeChips() {
    /** @type {Map<string, {into: Entity[], out: Entity[]}>} */
    const chips = new Map(this.nodes.map((node) => [node.id, { into: [], out: [] }]));
    for (const entity of this.entities) {
      for (const id of new Set(entity.inputs)) {
        const source = this.byId.get(id);
        if (!source || this.isNode.has(id) === this.isNode.has(entity.id)) continue;
        if (this.isNode.has(id)) chips.get(id)?.out.push(entity);
        else chips.get(entity.id)?.into.push(source);
      }
    }
    return chips;
  }

  /** Open all of a small graph; of a big one as much as leaves between about ten and sixty things in sight. */
  openSome() {
    const groups = under(this.root).filter((group) => group !== this.root);
    let shown = this.root.nodes.length + this.root.groups.length;
    for (const group of groups) group.open = this.nodes.length <= ALL_OPEN;
    if (this.nodes.length <= ALL_OPEN) return;
    const waiting = [...this.root.groups];
    while (shown < ENOUGH && waiting.length) {
      const group = waiting.reduce((most, other) => (other.members.length > most.members.length ? other : most));
      waiting.splice(waiting.indexOf(group), 1);
      const added = group.nodes.length + group.groups.length;
      if (shown + added > ALL_OPEN || isStack(group)) continue;
      group.open = true;
      shown += added;
      waiting.push(...group.groups);
    }
  }

  /** @param {boolean} open */
  openAll(open) {
    for (const group of this.groups.values()) group.open = open;
    this.root.open = true;
  }

  /** Open every group around a node; whether any was closed. @param {string} id */
  reveal(id) {
    let changed = false;
    for (let group = this.groupOf.get(id); group; group = group.parent ?? undefined) {
      changed ||= !group.open;
      group.open = true;
    }
    return changed;
  }

  /** The node itself, or the first one that a chip is at. @param {string} id @returns {string | undefined} */
  nodeOf(id) {
    if (this.isNode.has(id)) return id;
    const entity = this.byId.get(id);
    if (!entity) return undefined;
    return (
      this.nodes.find((node) => node.inputs.includes(id))?.id ?? entity.inputs.find((source) => this.isNode.has(source))
    );
  }

  /** Ids of entities that have every word of the query in their op, name, module, code or source line. @param {string} query */
  search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    return this.entities.filter((entity) => words.every((word) => mentions(entity, word))).map((entity) => entity.id);
  }
}

/** @param {Entity} entity @param {string} word a line number at its end must be the whole number */
function mentions({ label, kind, attrs }, word) {
  const place = attrs.file ? `${attrs.file}:${attrs.line}` : "";
  if (/:\d+$/.test(word)) return place.toLowerCase().endsWith(word);
  const words = [
    label,
    kind,
    attrs.target,
    attrs.what,
    attrs.module,
    attrs.module_type,
    attrs.source,
    attrs.about,
    place,
    attrs.code,
  ];
  return words.some((text) => typeof text === "string" && text.toLowerCase().includes(word));
}

/** A group and all groups in it. @param {Group} group @returns {Group[]} */
export function under(group) {
  return [group, ...group.groups.flatMap(under)];
}

/** The modules around an entity, and stacks of equal modules: layers, 0–31 × 32, 5. @param {Entity} entity @returns {string[]} */
function modulesOf({ attrs }) {
  const names = typeof attrs.module === "string" ? attrs.module.split(".").filter(Boolean) : [];
  return attrs.stacks ? names.flatMap((name, depth) => (attrs.stacks[depth] ? [attrs.stacks[depth], name] : name)) : names;
}

/** Whether a group holds equal modules. @param {Group} group */
export function isStack({ title }) {
  return title.includes("×");
}

/**
 * The way to an entity: modules and bodies around it. In a body, modules begin where the operator stands.
 * @param {Entity} entity @param {Map<string, Entity>} byId @returns {Step[]}
 */
function wayTo(entity, byId) {
  const modules = modulesOf(entity);
  const body = byId.get(entity.attrs.subgraph);
  if (!body || !entity.label.startsWith(`${body.label}.`)) return modules.map((name) => ({ name, body: false }));
  const outer = modulesOf(body);
  const shared = outer.every((name, i) => modules[i] === name) ? outer.length : 0;
  const inner = modules.slice(shared).map((name) => ({ name, body: false }));
  return [...wayTo(body, byId), { name: ownName(body), body: true }, ...inner];
}

/** The name of a node without those of the bodies around it. @param {Entity} entity */
export function ownName({ label, attrs }) {
  return "subgraph" in attrs ? label.slice(label.lastIndexOf(".") + 1) : label;
}

/** @param {Entity[]} nodes @param {Map<string, Entity>} byId */
function groupByModule(nodes, byId) {
  const root = newGroup("", false, null);
  for (const node of nodes) {
    let group = root;
    group.members.push(node);
    for (const { name, body } of wayTo(node, byId)) {
      group = group.groups.find((other) => other.title === name) ?? newGroup(name, body, group);
      group.members.push(node);
    }
    group.nodes.push(node);
    group.type ||= node.attrs.module_type ?? "";
  }
  simplify(root);
  root.open = true;
  return root;
}

/** @param {string} name @param {boolean} body @param {Group | null} parent @returns {Group} */
function newGroup(name, body, parent) {
  const path = parent?.path ? `${parent.path}.${name}` : name;
  /** @type {Group} */
  const group = { path, title: name, type: body ? "subgraph" : "", body, parent, groups: [], nodes: [], members: [], open: false };
  parent?.groups.push(group);
  return group;
}

/**
 * Leave out modules that say nothing: those of a single node, and those that only hold one group or a numbered list of
 * groups (their names go before the names of what they hold).
 * @param {Group} group
 */
function simplify(group) {
  group.groups.forEach(simplify);
  if (isStack(group)) group.type ||= group.groups[0]?.type ?? "";
  const kept = group.groups.filter((inner) => inner.body || inner.members.length > 1);
  for (const inner of group.groups) if (!kept.includes(inner)) group.nodes.push(...inner.members);
  group.groups = kept.flatMap((inner) => {
    const idle =
      !inner.body &&
      !isStack(inner) &&
      !inner.nodes.length && (inner.groups.length === 1 || inner.groups.every(({ title }) => /^\d/.test(title)));
    if (!idle) return [inner];
    for (const one of inner.groups) ((one.title = `${inner.title}.${one.title}`), (one.parent = group));
    return inner.groups;
  });
}

/** The operation in one word: `mul` for `aten.mul.Tensor`. What the frame map holds has words. @param {Entity} entity */
export function opName({ kind, label, attrs }) {
  if (CHIP_KINDS.has(kind) || "about" in attrs) return label;
  const parts = String(attrs.target || attrs.what || label)
    .replace(/^torch\.ops\./, "")
    .split(".");
  return parts.length === 3 && parts[0] !== "torch" && parts[0] !== "operator" ? parts[1] : parts[parts.length - 1];
}

/** What a chip says: `ln_1.weight` for a parameter's long name. @param {Entity} entity */
export function chipName(entity) {
  const { kind, label, attrs } = entity;
  if (kind === "output") return label === "output" ? "out" : label;
  if (kind === "subgraph_output") return "out";
  if (kind === "subgraph_input") return ownName(entity);
  const names = [...String(attrs.source ?? "").matchAll(/\['?([^'\]]+)'?\]/g)].map((match) => match[1]);
  return (
    names
      .filter((name) => name !== "self" && name !== "kwargs")
      .slice(-2)
      .join(".") || label
  );
}

const DTYPES = { float: "f", bfloat: "bf", int: "i", uint: "u", bool: "b8", complex: "c" };

/** `f32[8, 128]`, or what else says how an entity looks. @param {Entity} entity */
export function shapeInWords({ kind, attrs }) {
  if ("about" in attrs) return attrs.about;
  const dtype = String(attrs.dtype ?? "").replace(
    /^(bfloat|float|uint|int|complex|bool)/,
    (word) => DTYPES[/** @type {keyof typeof DTYPES} */ (word)],
  );
  if (Array.isArray(attrs.shape)) return [`${dtype}[${attrs.shape.join(", ")}]`, attrs.placements?.join(", ")].filter(Boolean).join(" ");
  return String(attrs.what ?? attrs.category ?? (kind === "call" ? "" : kind));
}
