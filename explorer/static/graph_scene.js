// Where everything of a graph view is: open groups are laid out inside out, each as a box of the graph around it; edges
// go through the borders of groups at ports, one for each thing outside that they come from.

import { layout } from "./layout.js";
import { counted } from "./dom.js";
import { chipName, isStack, opName, ownName, shapeInWords } from "./graph_model.js";
import { sharedStarts, shortName } from "./names.js";

/**
 * @typedef {import("./graph_model.js").Entity} Entity
 * @typedef {import("./graph_model.js").Group} Group
 * @typedef {import("./graph_model.js").GraphModel} GraphModel
 * @typedef {(text: string, font: string) => number} Measure
 * @typedef {{left: number, top: number, right: number, bottom: number}} Sight
 * @typedef {Map<string, {input: string, drawn: import("./layout.js").Drawn}>} Drawings
 *
 * A chip at a node; the last one may stand for several.
 * @typedef {{ids: string[], text: string, into: boolean, x: number, y: number, w: number, h: number, owner: Item}} Chip
 *
 * Something in sight: a node, a closed group, or an open one. `x`, `y`, `w`, `h` are in graph units; `members` are the
 * entities it stands for; `left` is the room that chips take before it.
 * @typedef {{key: string, kind: "node" | "closed" | "open", entity: Entity | null, group: Group | null, members: Entity[],
 *   title: string, detail: string, titleWidth: number, detailWidth: number, x: number, y: number, w: number,
 *   h: number, left: number, right: number, depth: number, chips: Chip[], slot: number, home: Frame, inside: Frame | null, into: Item[], out: Item[]}} Item
 *
 * A piece of a line: `net` is the item whose output it carries; `to` is null where it ends at a port.
 * @typedef {{net: Item, points: Float64Array, to: Item | null, top: number, bottom: number}} Wire
 *
 * The inside of an open group, or the whole. `slots` are items and ports (null) in the order of the layout's boxes;
 * `above` is the room over the layout.
 * @typedef {{item: Item | null, slots: (Item | null)[], links: {net: Item, from: number, to: number}[],
 *   known: Map<string, number>, inPorts: Map<Item, number>, outPorts: Map<Item, number>, portX: Float64Array,
 *   drawn: import("./layout.js").Drawn | null, firstWire: number, above: number}} Frame
 */

export const FONTS = { title: "600 12px", detail: "10.5px", chip: "10px" };
export const HEADER = 26;
export const CHIP = { height: 15, gap: 2, most: 3, width: 110 };
const NODE = { height: 38, pad: 11, width: 240, wide: 330 };
const PADDING = 14;
const BAND = 512;

/** @param {Entity} entity */
function isKernel({ kind }) {
  return kind === "kernel";
}

export class Scene {
  /** @param {GraphModel} model @param {Measure} measure @param {Drawings} drawings the layouts made so far, by group */
  constructor(model, measure, drawings) {
    this.model = model;
    this.measure = measure;
    this.drawings = drawings;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Wire[]} */
    this.wires = [];
    /** @type {Map<string, Item>} by entity id or group path; an entity in a closed group has that group */
    this.itemOf = new Map();
    /** @type {Map<string, Item>} */
    this.groupItems = new Map();
    /** @type {Map<string, Chip[]>} */
    this.chipsOf = new Map();
    /** How much of their beginning all kernels' names share. */
    this.shared = sharedStarts(model.root.members.filter(isKernel).map(({ label }) => label));
    this.root = this.enter(model.root, null, 0);
    this.connectAll();
    this.arrange(this.root);
    this.width = this.root.drawn?.width ?? 0;
    this.height = this.root.drawn?.height ?? 0;
    this.settle(this.root, 0, 0);
    this.itemBands = bands(this.items, this.height, (item) => [item.y, item.y + item.h]);
    this.wireBands = bands(this.wires, this.height, (wire) => [wire.top, wire.bottom]);
  }

  /** Make the items in a group. @param {Group} group @param {Item | null} item @param {number} depth @returns {Frame} */
  enter(group, item, depth) {
    /** @type {Frame} */
    const frame = {
      item,
      slots: [],
      links: [],
      known: new Map(),
      inPorts: new Map(),
      outPorts: new Map(),
      portX: new Float64Array(0),
      drawn: null,
      firstWire: 0,
      above: 0,
    };
    for (const inner of group.groups) {
      const made = this.addGroup(inner, frame, depth);
      if (inner.open) made.inside = this.enter(inner, made, depth + 1);
      else for (const entity of inner.members) this.itemOf.set(entity.id, made);
    }
    for (const entity of group.nodes) this.itemOf.set(entity.id, this.addNode(entity, frame, depth));
    return frame;
  }

  /** @param {Group} group @param {Frame} frame @param {number} depth */
  addGroup(group, frame, depth) {
    const stacks = group.groups.filter(isStack).map(({ title }) => title);
    const size = stacks.length && !group.open ? stacks : [counted(group.members.length, "node")];
    const detail = [group.type, ...size].filter(Boolean).join(" · ");
    const item = this.add(frame, group.open ? "open" : "closed", group.path, group.title, detail, depth, group.members);
    item.group = group;
    this.groupItems.set(group.path, item);
    return item;
  }

  /** @param {Entity} entity @param {Frame} frame @param {number} depth */
  addNode(entity, frame, depth) {
    const op = opName(entity);
    const name = ownName(entity);
    const title = name.includes(op) ? name : `${op} · ${name}`;
    const item = this.add(frame, "node", entity.id, title, shapeInWords(entity), depth, [entity]);
    item.entity = entity;
    this.addChips(item);
    return item;
  }

  /**
   * @param {Frame} home @param {Item["kind"]} kind @param {string} key @param {string} title @param {string} detail
   * @param {number} depth @param {Entity[]} members @returns {Item}
   */
  add(home, kind, key, title, detail, depth, members) {
    const pad = kind === "node" ? NODE.pad : NODE.pad + 7;
    const room = (members.some(({ attrs }) => "about" in attrs) ? NODE.wide : NODE.width) - 2 * pad;
    const shared = kind === "node" && isKernel(members[0]) && title === members[0].label ? this.shared.get(title) : 0;
    const shownTitle = this.clip(title, FONTS.title, kind === "open" ? Infinity : room, shared);
    const shownDetail = this.clip(detail, FONTS.detail, kind === "open" ? Infinity : room);
    const titleWidth = this.measure(shownTitle, FONTS.title);
    const detailWidth = this.measure(shownDetail, FONTS.detail);
    const w = Math.ceil(Math.max(60, Math.max(titleWidth, detailWidth) + 2 * pad));
    /** @type {Item} */
    const item = {
      key,
      kind,
      title: shownTitle,
      detail: shownDetail,
      titleWidth,
      detailWidth,
      depth,
      members,
      home,
      w,
      entity: null,
      group: null,
      x: 0,
      y: 0,
      h: NODE.height,
      left: 0,
      right: 0,
      chips: [],
      slot: home.slots.length,
      inside: null,
      into: [],
      out: [],
    };
    home.slots.push(item);
    this.items.push(item);
    return item;
  }

  /** The text, shortened if it is wider than that. @param {string} text @param {string} font @param {number} width @param {number} [shared] as of `shortName` */
  clip(text, font, width, shared = 0) {
    if (this.measure(text, font) <= width) return text;
    let [fits, over] = [0, text.length];
    while (over - fits > 1) {
      const middle = (fits + over) >> 1;
      if (this.measure(shortName(text, middle, shared), font) <= width) fits = middle;
      else over = middle;
    }
    return shortName(text, fits, shared);
  }

  /** @param {Item} item */
  addChips(item) {
    const { into, out } = this.model.chips.get(item.key) ?? { into: [], out: [] };
    item.left = this.chipColumn(item, into, true);
    item.right = this.chipColumn(item, out, false);
    const most = Math.min(CHIP.most, Math.max(into.length, out.length));
    item.h = Math.max(item.h, most * (CHIP.height + CHIP.gap));
  }

  /** @param {Item} owner @param {Entity[]} entities @param {boolean} into @returns {number} the room it takes */
  chipColumn(owner, entities, into) {
    const over = entities.length > CHIP.most ? entities.slice(CHIP.most - 1) : [];
    const shown = over.length ? entities.slice(0, CHIP.most - 1) : entities;
    const labels = shown.map((entity) => ({ ids: [entity.id], text: chipName(entity) }));
    if (over.length) labels.push({ ids: over.map((entity) => entity.id), text: `+${over.length}` });
    const rows = labels.length * (CHIP.height + CHIP.gap) - CHIP.gap;
    let widest = 0;
    labels.forEach(({ ids, text }, i) => {
      const shown = this.clip(text, FONTS.chip, CHIP.width - 12);
      const w = Math.ceil(this.measure(shown, FONTS.chip) + 12);
      const chip = {
        ids,
        text: shown,
        into,
        x: 0,
        y: i * (CHIP.height + CHIP.gap) - rows / 2,
        w,
        h: CHIP.height,
        owner,
      };
      owner.chips.push(chip);
      for (const id of ids) this.chipsOf.set(id, [...(this.chipsOf.get(id) ?? []), chip]);
      widest = Math.max(widest, w);
    });
    return widest && widest + 8;
  }

  connectAll() {
    for (const node of this.model.nodes) {
      const to = /** @type {Item} */ (this.itemOf.get(node.id));
      for (const id of node.inputs) {
        const from = this.itemOf.get(id);
        if (from && from !== to && !from.out.includes(to)) this.connect(from, to);
      }
    }
  }

  /** @param {Item} from @param {Item} to */
  connect(from, to) {
    from.out.push(to);
    to.into.push(from);
    for (const { frame, a, b } of path(from, to)) {
      const key = `${from.key} ${a} ${b}`;
      if (frame.known.has(key)) continue;
      frame.known.set(key, frame.links.length);
      frame.links.push({ net: from, from: a, to: b });
    }
  }

  /** Lay out a frame, those in it first. @param {Frame} frame */
  arrange(frame) {
    for (const item of frame.slots) if (item?.inside) this.arrange(item.inside);
    const boxes = frame.slots.map((item) => (item ? boxOf(item) : { width: 0, height: 0 }));
    const ports = frame.links.flatMap(({ net, from, to }) => [
      portOffset(frame.slots[from], net, false),
      portOffset(frame.slots[to], net, true),
    ]);
    const [top, bottom] = [[...frame.inPorts.values()], [...frame.outPorts.values()]];
    frame.drawn = this.drawing(
      frame,
      boxes,
      frame.links.map(({ from, to }) => [from, to]),
      { ports, top, bottom },
    );
    if (!frame.item) return;
    const header = frame.item.titleWidth + frame.item.detailWidth + 48;
    frame.item.w = Math.ceil(Math.max(frame.drawn.width + 2 * PADDING, header));
    frame.above = HEADER + (top.length ? 0 : PADDING);
    frame.item.h = frame.drawn.height + frame.above + (bottom.length ? 0 : PADDING);
    frame.portX = frame.drawn.x.map((x) => x + (frame.item ? frame.item.w - (frame.drawn?.width ?? 0) : 0) / 2);
  }

  /** The layout of a frame: the last one of its group if nothing has changed. @param {Frame} frame @param {import("./layout.js").Box[]} boxes @param {number[][]} edges @param {import("./layout.js").LayoutOptions} options */
  drawing(frame, boxes, edges, options) {
    const path = frame.item?.key ?? "";
    const input = JSON.stringify([boxes, edges, options]);
    const known = this.drawings.get(path);
    if (known?.input === input) return known.drawn;
    const drawn = layout(boxes, edges, options);
    this.drawings.set(path, { input, drawn });
    return drawn;
  }

  /** Give everything in a frame its place in the whole. @param {Frame} frame @param {number} left @param {number} top */
  settle(frame, left, top) {
    const drawn = /** @type {import("./layout.js").Drawn} */ (frame.drawn);
    frame.slots.forEach((item, i) => {
      if (!item) return;
      item.x = left + drawn.x[i] - item.w / 2;
      item.y = top + drawn.y[i] - item.h / 2;
      for (const chip of item.chips) {
        chip.x = chip.into ? item.x - 8 - chip.w : item.x + item.w + 8;
        chip.y += item.y + item.h / 2;
      }
      if (item.inside)
        this.settle(item.inside, item.x + (item.w - (item.inside.drawn?.width ?? 0)) / 2, item.y + item.inside.above);
    });
    frame.firstWire = this.wires.length;
    frame.links.forEach(({ net, from, to }, i) =>
      this.addWire(frame, net, frame.slots[from], frame.slots[to], drawn.routes[i], left, top),
    );
  }

  /**
   * @param {Frame} frame @param {Item} net @param {Item | null} from @param {Item | null} to @param {Float64Array} route
   * @param {number} left @param {number} top
   */
  addWire(frame, net, from, to, route, left, top) {
    const points = route.map((value, i) => value + (i % 2 ? top : left));
    if (!from && frame.item) points[1] = frame.item.y;
    if (!to && frame.item) points[points.length - 1] = frame.item.y + frame.item.h;
    const target = to && !to.inside ? to : null;
    const [first, last] = [points[1], points[points.length - 1]];
    this.wires.push({ net, points, to: target, top: Math.min(first, last), bottom: Math.max(first, last) });
  }

  /** The wires that carry one item's output to another. @param {Item} from @param {Item} to @returns {Wire[]} */
  trace(from, to) {
    return path(from, to).map(
      ({ frame, a, b }) => this.wires[frame.firstWire + (frame.known.get(`${from.key} ${a} ${b}`) ?? 0)],
    );
  }

  /**
   * What is at a point: the header of an open group, a chip, a node or a closed group.
   * @param {number} x @param {number} y @param {Sight} sight @returns {{item: Item, chip: Chip | null} | null}
   */
  at(x, y, sight) {
    const near = (this.itemBands[Math.floor(y / BAND)] ?? []).map((i) => this.items[i]).reverse();
    const header = near.find((item) => item.kind === "open" && inside(headerBox(item, sight), x, y));
    if (header) return { item: header, chip: null };
    for (const item of near) {
      const chip = item.chips.find((one) => inside(one, x, y));
      if (chip || (item.kind !== "open" && inside(item, x, y))) return { item, chip: chip ?? null };
    }
    return null;
  }

  /** Items and wires that may be between two heights, each once. @param {number} top @param {number} bottom */
  between(top, bottom) {
    const [first, last] = [Math.max(0, Math.floor(top / BAND)), Math.floor(bottom / BAND)];
    const pick = (/** @type {number[][]} */ all) => {
      if (first === 0 && last >= all.length - 1) return null;
      return [...new Set(all.slice(first, last + 1).flat())];
    };
    const [items, wires] = [pick(this.itemBands), pick(this.wireBands)];
    return {
      items: items ? items.map((i) => this.items[i]) : this.items,
      wires: wires ? wires.map((i) => this.wires[i]) : this.wires,
    };
  }
}

/**
 * The links that lead from one item to another: out of the groups around the first, and into those around the second.
 * @param {Item} from @param {Item} to @returns {{frame: Frame, a: number, b: number}[]}
 */
function path(from, to) {
  const [up, down] = [framesAround(from), framesAround(to)];
  const meet = /** @type {Frame} */ (up.find((frame) => down.includes(frame)));
  const links = [];
  let at = from;
  for (const frame of up.slice(0, up.indexOf(meet))) {
    links.push({ frame, a: at.slot, b: port(frame, frame.outPorts, from) });
    at = /** @type {Item} */ (frame.item);
  }
  const inner = down.slice(0, down.indexOf(meet)).reverse();
  links.push({ frame: meet, a: at.slot, b: (inner[0]?.item ?? to).slot });
  inner.forEach((frame, i) =>
    links.push({ frame, a: port(frame, frame.inPorts, from), b: (inner[i + 1]?.item ?? to).slot }),
  );
  return links;
}

/** @param {Item} item */
function framesAround(item) {
  const frames = [item.home];
  for (let at = item.home.item; at; at = at.home.item) frames.push(at.home);
  return frames;
}

/** The port of a net in a frame, made when it is first asked for. @param {Frame} frame @param {Map<Item, number>} ports @param {Item} net */
function port(frame, ports, net) {
  const known = ports.get(net);
  if (known !== undefined) return known;
  ports.set(net, frame.slots.length);
  return frame.slots.push(null) - 1;
}

/** @param {Item} item */
function boxOf({ w, h, left, right }) {
  return { width: left + w + right, height: h, anchor: left + w / 2 };
}

/** How far from the middle of a box a wire meets it. @param {Item | null} item @param {Item} net @param {boolean} into */
function portOffset(item, net, into) {
  if (!item?.inside) return 0;
  const slot = (into ? item.inside.inPorts : item.inside.outPorts).get(net);
  return slot === undefined ? 0 : item.inside.portX[slot] - item.w / 2;
}

/**
 * The header of an open group: at its top left, or in sight's as long as some of the group is in sight.
 * @param {Item} item @param {Sight} sight
 */
export function headerBox({ x, y, w, h, depth, titleWidth, detailWidth }, sight) {
  const own = titleWidth + detailWidth + 46;
  const left = Math.max(x, Math.min(sight.left, x + w - own));
  const top = Math.max(y, Math.min(sight.top + depth * HEADER, y + h - HEADER));
  return { x: left, y: top, w: own, h: HEADER };
}

/** @param {{x: number, y: number, w: number, h: number}} box @param {number} x @param {number} y */
function inside(box, x, y) {
  return x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h;
}

/**
 * Indices of things by the horizontal band they are in.
 * @template T
 * @param {T[]} things @param {number} height @param {(thing: T) => [number, number]} extent
 */
function bands(things, height, extent) {
  const rows = Array.from({ length: Math.floor(height / BAND) + 1 }, () => /** @type {number[]} */ ([]));
  things.forEach((thing, i) => {
    const [top, bottom] = extent(thing);
    const last = Math.min(rows.length - 1, Math.floor(bottom / BAND));
    for (let row = Math.max(0, Math.floor(top / BAND)); row <= last; row++) rows[row].push(i);
  });
  return rows;
}
