// Pictures as files: SVG, or PNG of twice as many pixels.

import { h } from "./dom.js";
import { SvgContext } from "./svg_context.js";

/** @typedef {import("./picture.js").Picture} Picture */

/** A PNG has so many pixels for one of the picture, if it is then at most so wide or high, and has so many in all. */
const SHARPNESS = 2;
const WIDEST = 16000;
const MOST_PIXELS = 64e6;

/** @param {Picture} picture @param {"svg" | "png"} kind */
export async function savePicture(picture, kind) {
  const name = picture.title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "tcompile";
  download(`${name}.${kind}`, kind === "svg" ? svgOf(picture) : await pngOf(picture));
}

/** @param {Picture} picture @returns {Blob} */
function svgOf({ size, paint }) {
  const context = new SvgContext(...size());
  paint(/** @type {CanvasRenderingContext2D} */ (/** @type {unknown} */ (context)));
  return new Blob([new XMLSerializer().serializeToString(context.svg)], { type: "image/svg+xml" });
}

/** @param {Picture} picture @returns {Promise<Blob>} */
function pngOf({ size, paint }) {
  const [width, height] = size();
  const scale = Math.min(SHARPNESS, WIDEST / Math.max(width, height), Math.sqrt(MOST_PIXELS / (width * height)));
  const canvas = h("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(scale, scale);
  paint(context);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large for a PNG")))),
  );
}

/** @param {string} name @param {Blob} content */
function download(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
