// The page of a job: the index first; a compilation is opened from the page's own data.

import { counted, h, iconButton } from "./dom.js";
import { Explorer } from "./explorer.js";
import { JobIndex } from "./job_index.js";
import { LATE_VIEWS } from "./late_views.js";
import { bytesOf, findBlock, followSystem, storeOf } from "./page_data.js";
import { decompress } from "./store.js";
import { VIEWS } from "./views.js";

class JobPage {
  /** @param {HTMLElement} root @param {HTMLElement[]} blocks @param {any} data */
  constructor(root, blocks, data) {
    this.root = root;
    this.blocks = blocks;
    this.data = data;
    this.index = new JobIndex(data.document, (name) => (window.location.hash = encodeURIComponent(name)));
    this.heading = h("h1", { tabIndex: -1 }, data.title);
    this.notice = h("p", { class: "tc-job-notice", role: "status" });
    /** @type {Explorer | null} */
    this.explorer = null;
    /** Where the reader was in the index. */
    this.scrolled = 0;
    this.opened = "";
    const head = h("header", { class: "tcompile tc-job-head" }, this.heading, iconButton("theme", "Light or dark", turnTheme));
    this.home = h("div", { class: "tcompile tc-job-home" }, head, this.notice, this.index.root);
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("keydown", (event) => {
      if (event.key === "/" && !this.opened && !(event.target instanceof HTMLInputElement)) event.preventDefault(), this.index.filter.focus();
    });
    root.append(this.home);
    this.follow();
  }

  /** Show what the address names: a compilation, or the index. */
  follow() {
    const name = decodeURIComponent(window.location.hash.slice(1));
    if (name === this.opened) return;
    const own = this.blocks.filter(({ dataset }) => dataset.record === name);
    this.notice.textContent = name && !own.length ? leftOut(name, this.data) : "";
    if (name && own.length) this.openRecord(name, own);
    else this.showIndex();
  }

  showIndex() {
    const last = this.opened;
    this.explorer?.destroy();
    this.explorer = null;
    this.opened = "";
    this.root.replaceChildren(this.home);
    document.title = this.data.title;
    window.scrollTo(0, this.scrolled);
    const link = [...this.index.root.querySelectorAll("button")].find((button) => last && button.textContent === last);
    if (this.notice.textContent) this.notice.scrollIntoView({ block: "nearest" });
    else link?.focus({ preventScroll: true });
  }

  /** @param {string} name @param {HTMLElement[]} own */
  async openRecord(name, own) {
    if (!this.opened) this.scrolled = window.scrollY;
    this.explorer?.destroy();
    this.opened = name;
    const shared = this.blocks.filter(({ dataset }) => dataset.part === "words");
    const store = storeOf([...own, ...shared]);
    const back = h("button", { class: "tc-button tc-text tc-job-back", type: "button", onclick: () => (window.location.hash = "") }, `← ${counted(this.data.count, this.data.things ?? "compilation")}`);
    const place = h("div", { class: "tc-job-record" });
    this.root.replaceChildren(h("nav", { class: "tcompile tc-job-nav", "aria-label": "Job" }, back, h("b", {}, this.data.things ? name : `compilation ${name}`)), place);
    this.explorer = new Explorer(place, store, { page: true });
    const manifest = findBlock(own, "", "manifest");
    if (manifest) store.setManifest(await decompress(bytesOf(manifest)));
    document.title = `${name}, ${this.data.title}`;
    back.focus({ preventScroll: true });
  }
}

/** @param {string} name @param {any} data */
function leftOut(name, data) {
  return `The record of ${name} is not in this page, to keep it small. In a terminal: ${data.how.replace("ID", name)}`;
}

function turnTheme() {
  const { dataset } = document.documentElement;
  dataset.tcTheme = dataset.tcTheme === "dark" ? "light" : "dark";
}

async function openPage() {
  followSystem();
  Object.assign(VIEWS, LATE_VIEWS);
  const blocks = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("script[data-part]")]);
  const index = findBlock(blocks, "", "index");
  if (index) new JobPage(/** @type {HTMLElement} */ (document.getElementById("tcompile")), blocks, await decompress(bytesOf(index)));
}

openPage();
