// The front end as a saved page: parts of the record are in the page itself.

import { Explorer } from "./explorer.js";
import { LATE_VIEWS } from "./late_views.js";
import { addressOf, placeOf } from "./places.js";
import { decompress, Store } from "./store.js";
import { VIEWS } from "./views.js";

/** @param {Element} block @returns {Uint8Array<ArrayBuffer>} the bytes of a data block */
function bytesOf(block) {
  return Uint8Array.from(atob((block.textContent ?? "").trim()), (character) => character.charCodeAt(0));
}

/** Follow the system's light or dark until the reader chooses; the choice is kept when the page is reloaded. */
function followSystem() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    document.documentElement.dataset.tcTheme = dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", follow);
  follow();
  const { theme } = window.history.state ?? {};
  if (theme === "dark" || theme === "light") document.documentElement.dataset.tcTheme = theme;
}

/** In milliseconds: browsers refuse to change the address more often. */
const ADDRESS_EVERY = 400;

/** The page's address follows the reader, who can share it, or load the page again. @param {Explorer} explorer */
function followAddress(explorer) {
  const breaks = explorer.store.manifest.breaks.map(({ id }) => `breaks.${id}`);
  let timer = 0;
  explorer.keep = (place) => {
    clearTimeout(timer);
    const state = { theme: document.documentElement.dataset.tcTheme };
    timer = setTimeout(() => window.history.replaceState(state, "", `#${addressOf(place, breaks)}`), ADDRESS_EVERY);
  };
  const go = () => {
    const address = window.location.hash.slice(1);
    const place = placeOf(address, breaks);
    if (!place) explorer.notify("The address after # can't be read, and is ignored.");
    else if (address) explorer.openPlace(place);
  };
  window.addEventListener("hashchange", go);
  go();
}

async function openPage() {
  followSystem();
  Object.assign(VIEWS, LATE_VIEWS);
  const blocks = [...document.querySelectorAll("script[data-part]")];
  const find = (/** @type {string} */ artifact, /** @type {string} */ part) =>
    /** @type {HTMLElement | undefined} */ (
      blocks.find(
        (block) => block instanceof HTMLElement && block.dataset.artifact === artifact && block.dataset.part === part,
      )
    );
  const store = new Store((artifact, part) => {
    const language = store.artifacts.get(artifact)?.info.language ?? "";
    const block = find(part === "words" ? language : artifact, part);
    if (block) store.receive(artifact, part, block.dataset.digest ?? "", bytesOf(block));
  });
  const root = /** @type {HTMLElement} */ (document.getElementById("tcompile"));
  const explorer = new Explorer(root, store, { page: true });
  const manifest = find("", "manifest");
  if (manifest) store.setManifest(await decompress(bytesOf(manifest)));
  if (store.manifest.embedded) root.classList.add("tc-embedded", "tc-no-inspector");
  followAddress(explorer);
}

openPage();
