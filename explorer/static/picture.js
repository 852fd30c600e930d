// Buttons of views that are pictures: a graph, a map. They zoom it, and save it as SVG or PNG.

import { h, iconButton } from "./dom.js";
import { TOOLS } from "./views.js";

/**
 * What can be saved as a picture: `size` in pixels, and `paint`, which draws all of it. `title` names the file.
 * @typedef {{title: string, size: () => [number, number], paint: (context: CanvasRenderingContext2D) => void}} Picture
 * What can be zoomed, by a factor.
 * @typedef {{zoom: (factor: number) => void, fit: () => void, actualSize: () => void}} Zoomed
 */

export const ZOOM_STEP = 1.25;

/** @param {Zoomed} view @returns {HTMLElement} */
export function zoomButtons({ zoom, fit, actualSize }) {
  return h(
    "span",
    { class: "tc-picture-tools", role: "group", "aria-label": "Zoom" },
    iconButton("minus", "Zoom out (−)", () => zoom(1 / ZOOM_STEP)),
    iconButton("plus", "Zoom in (+)", () => zoom(ZOOM_STEP)),
    iconButton("fit", "Fit into the pane (f)", fit),
    textButton("1:1", "Actual size (1)", actualSize),
  );
}

/** @param {Picture} picture @param {(then: () => void) => void} withTools calls back once the late views are there */
export function saveButtons(picture, withTools) {
  /** @param {"svg" | "png"} kind */
  const button = (kind) => textButton(kind.toUpperCase(), `Save the picture as ${kind.toUpperCase()}`, () => withTools(() => TOOLS.savePicture?.(picture, kind)));
  return h("span", { class: "tc-picture-tools", role: "group", "aria-label": "Save the picture" }, button("svg"), button("png"));
}

/** @param {string} text @param {string} title @param {() => void} onclick */
export function textButton(text, title, onclick) {
  return h("button", { class: "tc-button tc-text", type: "button", title, onclick }, text);
}
