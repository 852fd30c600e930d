// What views that are loaded late take from the core, by name: filled in when the modules are joined (frontend.py).

/** @type {Record<string, any>} */
export const CORE = {};
