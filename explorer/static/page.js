// The front end as a saved page: parts of the record are in the page itself.

import { Explorer } from "./explorer.js";
import { LATE_VIEWS } from "./late_views.js";
import { bytesOf, findBlock, followSystem, storeOf } from "./page_data.js";
import { addressOf, placeOf } from "./places.js";
import { decompress } from "./store.js";
import { VIEWS } from "./views.js";

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
  const blocks = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("script[data-part]")]);
  const store = storeOf(blocks);
  const root = /** @type {HTMLElement} */ (document.getElementById("tcompile"));
  const explorer = new Explorer(root, store, { page: true });
  const manifest = findBlock(blocks, "", "manifest");
  if (manifest) store.setManifest(await decompress(bytesOf(manifest)));
  if (store.manifest.embedded) root.classList.add("tc-embedded", "tc-no-inspector");
  followAddress(explorer);
}

openPage();
