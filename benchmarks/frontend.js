// What benchmarks/frontend.py measures inside the page. Times are milliseconds.

(() => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));

  /** After the frame that is being made has been painted. */
  const painting = () =>
    new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve(undefined);
      port2.postMessage(null);
    });

  /** From the start of some work until the frame that shows it is painted: what a user waits. */
  async function waited(work) {
    const start = performance.now();
    work();
    await frame(); // what the work asked for is painted in this frame: it asked first
    await painting();
    return performance.now() - start;
  }

  const rest = async () => {
    for (let count = 0; count < 3; count++) await frame();
  };

  async function until(condition, what) {
    for (const start = performance.now(); !condition(); await frame()) {
      if (performance.now() - start > 30_000) throw new Error(`waited 30 s for ${what}`);
    }
  }

  /** From the page's last byte being parsed until the source, and the stage that opens first, are painted. */
  async function firstPaint() {
    const opened = ".tc-pane:not(.tc-home) .tc-pane-body :is(.tc-drawing canvas, .tc-row, .tc-bc-row, .tc-finding > *)";
    const shown = () => document.querySelector(".tc-home .tc-line") && document.querySelector(opened);
    await until(shown, "the source and the first stage");
    await painting();
    const { domInteractive } = performance.getEntriesByType("navigation")[0];
    return performance.now() - domInteractive;
  }

  /** The id of each stage's biggest artifact. */
  function biggest() {
    const { stages } = window.tcompile.explorer.store.manifest;
    const bySize = (artifacts) => [...artifacts].sort((a, b) => b.entities - a.entities);
    return Object.fromEntries(stages.map((stage) => [stage.name, bySize(stage.artifacts)[0]?.id]));
  }

  /** Open an artifact as a graph, another one's text beside it, and the source. */
  async function openPanes(graph, text) {
    const { explorer } = window.tcompile;
    if (!explorer.stagePanes.length) explorer.addPane();
    explorer.stagePanes[0].show(graph, "graph");
    if (!explorer.stagePanes[1]) explorer.split(explorer.stagePanes[0]);
    explorer.stagePanes[1].show(text, "text");
    const views = () => [explorer.source, ...explorer.stagePanes].every((pane) => pane.view);
    await until(views, `${graph} and ${text}`);
    await rest();
    return explorer.stagePanes[0].view.graph;
  }

  /** Select nodes all over the graph, one after the other; how long until all panes show it. */
  async function selections(artifact, text, count) {
    await openPanes(artifact, text);
    const { explorer } = window.tcompile;
    const calls = explorer.store.artifacts.get(artifact).entities.filter((entity) => entity.kind === "call");
    const times = [];
    for (let number = 0; number < count; number++) {
      const { id } = calls[Math.floor((number * calls.length) / count)];
      times.push(await waited(() => explorer.select([id], false, "")));
      if (!explorer.store.primary.has(id) || explorer.store.linked.size < 3) throw new Error(`${id} was not selected`);
      await rest();
    }
    explorer.clear();
    return times;
  }

  /** Open every group that is closed when the graph comes up, those inside it while it is open, and close it again. */
  async function openings(artifact, text, most) {
    const graph = await openPanes(artifact, text);
    const times = [];
    async function openInside(group) {
      for (const { path, open } of group.groups) {
        if (times.length === most) return;
        if (!open) times.push(await waited(() => graph.toggleGroup(path)));
        if (!graph.model.groups.get(path).open) throw new Error(`${path} did not open`);
        await openInside(graph.model.groups.get(path));
        if (!open) graph.toggleGroup(path);
        await rest();
      }
    }
    await openInside(graph.model.root);
    if (!times.length) throw new Error(`${artifact} has no closed group`);
    return times;
  }

  /** Open all groups of a graph at once. */
  async function openingAll(artifact, text) {
    const graph = await openPanes(artifact, text);
    const time = await waited(() => graph.openAll());
    graph.closeAll();
    await rest();
    return time;
  }

  /** Drag a graph that fills the window about for some seconds; paintings a second. */
  async function panning(entities, seconds, whole) {
    const { explorer } = window.tcompile;
    const GraphView = explorer.stagePanes[0].view.graph.constructor;
    const root = document.createElement("div");
    Object.assign(root.style, { position: "fixed", inset: "0", zIndex: "99", background: "white" });
    explorer.root.append(root);
    const graph = new GraphView(root, { onSelect() {}, onHover() {} });
    graph.setGraph(entities);
    graph.openAll();
    if (whole) graph.fit();
    await rest();
    let painted = 0;
    const paint = graph.paint.bind(graph);
    graph.paint = () => {
      painted += 1;
      paint();
    };
    const start = performance.now();
    for (let step = 0; performance.now() - start < 1000 * seconds; step++) {
      const turn = step / 15;
      if (!graph.pan(9 * Math.cos(turn), 9 * Math.sin(turn))) throw new Error("the graph did not move");
      await frame();
    }
    const fps = (1000 * painted) / (performance.now() - start);
    graph.destroy();
    root.remove();
    return fps;
  }

  /** Go through a text that fills the window, so many lines a step; how long until what is in sight then is painted. */
  async function scrolling(artifact, lines, steps, far) {
    const { explorer } = window.tcompile;
    const [pane] = explorer.stagePanes;
    pane.show(artifact, "text");
    await until(() => pane.view?.lines, `the text of ${artifact}`);
    const root = document.createElement("div");
    Object.assign(root.style, { position: "fixed", inset: "0", zIndex: "99", background: "white", display: "grid" });
    explorer.root.append(root);
    const callbacks = { onSelect() {}, onHover() {}, actions: {} };
    const text = { info: pane.view.artifact.info, rows: new Map(), rowsOf: new Map(), have: {}, lines };
    const view = new pane.view.constructor(root, callbacks, text);
    await rest();
    const times = [];
    for (let step = 1; step <= steps; step++) {
      times.push(await waited(() => (view.scroller.scrollTop = step * far * view.rows.height)));
      if (view.rows.inSight()[0] !== step * far) throw new Error(`the text did not move to line ${step * far}`);
    }
    view.destroy();
    root.remove();
    return times;
  }

  window.bench = { firstPaint, biggest, selections, openings, openingAll, panning, scrolling };
})();
