// The front end as an anywidget: parts of the record come from the kernel.

import { CORE } from "./core.js";
import { Explorer } from "./explorer.js";
import { Store } from "./store.js";
import { VIEWS } from "./views.js";

/** @typedef {import("./store.js").PartName} PartName */
/**
 * What anywidget gives of a model.
 * @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void,
 *   send: (message: any) => void, on: (event: string, listener: (...args: any[]) => void) => void,
 *   off: (event: string, listener?: (...args: any[]) => void) => void}} Model
 */

/** In milliseconds. */
const ASK_EVERY = 5000;

/** One per model: its views share what has arrived. */
export default () => {
  /** @type {Store} */
  let store;
  return {
    /** @param {{model: Model}} context */
    initialize({ model }) {
      store = connected(model);
      return keptUpToDate(store, model);
    },
    /** The page may have been loaded again: the model still knows where the reader was. @param {{model: Model, el: HTMLElement}} context */
    render({ model, el }) {
      const root = document.createElement("div");
      el.append(root);
      const explorer = new Explorer(root, store, { keep: (place) => keepPlace(model, place) });
      if (model.get("place")?.panes) explorer.openPlace(model.get("place"));
      const open = (/** @type {any} */ message) => {
        if (message.type !== "open") return;
        explorer.openStage(message.stage, false);
        root.scrollIntoView({ block: "nearest" });
      };
      model.on("msg:custom", open);
      return () => {
        model.off("msg:custom", open);
        explorer.destroy();
        root.remove();
      };
    },
  };
};

/** A store that follows a model, asks it for parts, and shares the selection with it. @param {Model} model */
function connected(model) {
  const store = new Store((artifact, part) => model.send({ type: "want", artifact, part }), {
    compile: () => model.send({ type: "compile" }),
    trust: () => model.send({ type: "trust" }),
    make: (stage) => model.send({ type: "make", stage }),
    tree: (id) => model.send({ type: "tree", id }),
    evaluate: (request) => model.send({ type: "evaluate", request }),
    morph: (graph) => model.send({ type: "morph", graph }),
    cancel: () => model.send({ type: "cancel" }),
    views: once(() => model.send({ type: "views" })),
    lab: (kernel) => model.send({ type: "lab", kernel }),
    patch: (fixes) => model.send({ type: "patch", fixes }),
    newCell: (fixes) => model.send({ type: "new_cell", fixes }),
    switchTo: (callee) => model.send({ type: "switch", callee }),
  });
  /** @param {string[]} key @param {DataView<ArrayBuffer>} data */
  const receive = ([artifact, part, digest], { buffer, byteOffset, byteLength }) =>
    store.receive(artifact, /** @type {PartName} */ (part), digest, new Uint8Array(buffer, byteOffset, byteLength));
  const receiveSent = () => model.get("parts").forEach((/** @type {any[]} */ [data, ...key]) => receive(key, data));
  model.on("msg:custom", (message, buffers) => {
    if (message.type === "part") receive(message.key, buffers[0]);
    else if (message.type === "tree") store.tell("tree", (store.trees.set(message.id, message.text), message.id));
    else if (message.type === "confirm") store.setCompiling({ confirm: message });
    else if (/cell|morph|evaluated/.test(message.type)) store.tell(message.type, (Object.assign(store, { [message.type]: { ...message, buffers } }), ""));
    else if (message.type === "patch") store.tell("patch", (store.patches.set(message.fixes.join(), message), ""));
    else if (message.type === "views") takeViews(message.module).then(() => store.tell("views"));
  });
  model.on("change:parts", receiveSent);
  model.on("change:manifest", () => {
    receiveSent(); // first, so that what has come in the same message is not asked for
    store.setManifest(model.get("manifest"));
  });
  model.on("change:compiling", () => store.setCompiling(model.get("compiling")));
  model.on("change:running", () => store.setRunning(model.get("running")));
  model.on("change:selection", () => takeSelection(store, model));
  store.listen((what) => {
    if (what === "selection") giveSelection(store, model);
    else if (what === "entities") takeSelection(store, model);
  });
  receiveSent();
  store.setManifest(model.get("manifest"));
  store.setRunning(model.get("running"));
  store.setCompiling(model.get("compiling"));
  takeSelection(store, model);
  return store;
}

/**
 * While something runs, ask now and then which version there is: a server drops messages of a cell that prints much,
 * and the last one of all may be among them. What is missed is asked for.
 * @param {Store} store @param {Model} model @returns {() => void} stops it
 */
function keptUpToDate(store, model) {
  model.on("msg:custom", ({ type, version }) => {
    if (type === "version" && version !== model.get("version")) model.send({ type: "state" });
  });
  const timer = setInterval(() => {
    if (store.running.stage) model.send({ type: "version" });
  }, ASK_EVERY);
  return () => clearInterval(timer);
}

/** @param {() => void} ask @returns {() => void} which asks the first time it is called, and never again */
function once(ask) {
  let asked = false;
  return () => {
    if (!asked) ask();
    asked = true;
  };
}

/** Add the views of a module, which makes them of what it finds in the core. @param {string} module */
async function takeViews(module) {
  const address = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  const { default: made } = await import(address);
  URL.revokeObjectURL(address);
  Object.assign(VIEWS, made(CORE));
}

/** @param {Model} model @param {import("./history.js").Place} place */
function keepPlace(model, place) {
  if (JSON.stringify(place) === JSON.stringify(model.get("place"))) return;
  model.set("place", place);
  model.save_changes();
}

/** @param {Store} store @param {Model} model */
function takeSelection(store, model) {
  const wanted = /** @type {string[]} */ (model.get("selection"));
  if (wanted.length !== store.primary.size || wanted.some((id) => !store.primary.has(id))) store.select(wanted);
}

/** @param {Store} store @param {Model} model */
function giveSelection(store, model) {
  const given = /** @type {string[]} */ (model.get("selection"));
  const chosen = [...store.primary];
  if (given.length === chosen.length && given.every((id, index) => id === chosen[index])) return;
  model.set("selection", chosen);
  model.save_changes();
}
