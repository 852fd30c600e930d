// What saved pages share: records in blocks of data, and light or dark.

import { Store } from "./store.js";

/** @param {Element} block @returns {Uint8Array<ArrayBuffer>} the bytes of a data block */
export function bytesOf(block) {
  return Uint8Array.from(atob((block.textContent ?? "").trim()), (character) => character.charCodeAt(0));
}

/** Follow the system's light or dark until the reader chooses; the choice is kept when the page is reloaded. */
export function followSystem() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    document.documentElement.dataset.tcTheme = dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", follow);
  follow();
  const { theme } = window.history.state ?? {};
  if (theme === "dark" || theme === "light") document.documentElement.dataset.tcTheme = theme;
}

/** @param {HTMLElement[]} blocks @param {string} artifact @param {string} part */
export function findBlock(blocks, artifact, part) {
  return blocks.find(({ dataset }) => dataset.artifact === artifact && dataset.part === part);
}

/** A store that takes the parts of a record from blocks of data. @param {HTMLElement[]} blocks */
export function storeOf(blocks) {
  const store = new Store((artifact, part) => {
    const language = store.artifacts.get(artifact)?.info.language ?? "";
    const block = findBlock(blocks, part === "words" ? language : artifact, part);
    if (block) store.receive(artifact, part, block.dataset.digest ?? "", bytesOf(block));
  });
  return store;
}
