// The page that `run.morph().save("morph.html")` writes: one graph from eager mode to kernels, from the data in the page.

import { MorphView } from "./morph_view.js";

/** @param {Element} block */
async function unpack(block) {
  const bytes = Uint8Array.from(atob((block.textContent ?? "").trim()), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

async function openMorph() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const page = document.documentElement;
  page.dataset.theme ??= dark.matches ? "dark" : "light";
  const film = await unpack(/** @type {Element} */ (document.querySelector("script[data-part=film]")));
  const view = new MorphView(/** @type {HTMLElement} */ (document.getElementById("morph")), film);
  dark.addEventListener("change", () => {
    page.dataset.theme = dark.matches ? "dark" : "light";
    view.paintSoon();
  });
}

openMorph();
