"""A graph view on a page, with queries for tests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page

START = """async ([theme, width, height]) => {
    const { GraphView } = await import("/graph.js");
    document.documentElement.dataset.tcTheme = theme;
    const [shell, root] = [document.createElement("div"), document.createElement("div")];
    shell.className = "tcompile";
    Object.assign(shell.style, { width: `${width}px`, height: `${height}px`, border: "0", resize: "none" });
    Object.assign(root.style, { flex: "1", minHeight: "0" });
    document.body.style.margin = "0";
    document.body.append(shell);
    shell.append(root);
    Object.assign(window, { root, shell, selected: [], hovered: [] });
    window.view = new GraphView(root, {
        onSelect: (ids) => { selected.push(ids); view.setSelection(new Set(ids), new Set()); },
        onHover: (id) => hovered.push(id),
    });
}"""
PLACE = """key => {
    const item = view.scene.groupItems.get(key) ?? view.scene.itemOf.get(key);
    const { scale, left, top } = view.camera;
    return item && { x: left + item.x * scale, y: top + item.y * scale, w: item.w * scale, h: item.h * scale,
        kind: item.kind, title: item.title, detail: item.detail };
}"""
PIXEL = """([x, y]) => {
    const ratio = view.camera.ratio;
    view.paint();
    return [...view.context.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data.slice(0, 3)];
}"""


@dataclass(frozen=True)
class Place:
    """A position on the screen, in CSS pixels."""

    x: float
    y: float
    w: float
    h: float
    kind: str
    title: str
    detail: str

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.w / 2, self.y + self.h / 2


@dataclass(frozen=True)
class GraphPage:
    page: Page
    errors: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, page: Page, theme: str = "light") -> GraphPage:
        view = cls(page)
        view.page.on("console", lambda message: view.errors.append(message.text) if message.type == "error" else None)
        view.page.on("pageerror", lambda error: view.errors.append(str(error)))
        view.page.evaluate(START, [theme, 1000, 700])
        return view

    def show(self, entities: list[dict[str, Any]]) -> None:
        self.page.evaluate("entities => view.setGraph(entities)", entities)

    def call(self, method: str, *arguments: Any) -> Any:
        return self.page.evaluate("([method, given]) => view[method](...given)", [method, list(arguments)])

    def until(self, condition: str, argument: Any = None, seconds: float = 10) -> None:
        """Wait for it. (Playwright's own wait evaluates strings in the page, which the policy forbids.)"""
        end = time.monotonic() + seconds
        while not self.page.evaluate(condition, argument):
            assert time.monotonic() < end, f"it never came to be that {condition}"
            self.page.wait_for_timeout(20)

    def select(self, primary: Iterable[str], linked: Iterable[str] = ()) -> None:
        sets = [list(primary), list(linked)]
        self.page.evaluate("([one, two]) => view.setSelection(new Set(one), new Set(two))", sets)

    def place(self, key: str) -> Place | None:
        """The position of a node or a group; for a node in a closed group, the group's position."""
        found = self.page.evaluate(PLACE, key)
        return Place(**found) if found else None

    def at(self, key: str) -> Place:
        place = self.place(key)
        assert place, f"{key} is not in the view"
        return place

    def click(self, point: tuple[float, float], **options: Any) -> None:
        self.page.mouse.move(*point)
        for key in options.get("modifiers", ()):
            self.page.keyboard.down(key)
        self.page.mouse.click(*point, click_count=options.get("click_count", 1))
        for key in options.get("modifiers", ()):
            self.page.keyboard.up(key)

    def press(self, *keys: str) -> None:
        self.page.locator("canvas").focus()
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def selected(self) -> list[str]:
        """The last selection."""
        return self.page.evaluate("selected.at(-1)")

    @property
    def camera(self) -> dict[str, float]:
        return self.page.evaluate("({ ...view.camera })")

    @property
    def cursor(self) -> str | None:
        return self.page.evaluate("view.marks.cursor?.key ?? null")

    def kinds(self) -> dict[str, str]:
        """The kind of each visible element after scrolling to it: `node`, `closed` or `open`, by id or module path."""
        return self.page.evaluate("Object.fromEntries(view.scene.items.map((item) => [item.key, item.kind]))")

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        red, green, blue = self.page.evaluate(PIXEL, [x, y])
        return red, green, blue


def entity(name: str, inputs: Iterable[str] = (), kind: str = "call", **attrs: Any) -> dict[str, Any]:
    given = {"target": f"aten.{name.rsplit('_', 1)[0]}.default", "dtype": "float32", "shape": [8, 16], "bytes": 512}
    attrs = {**given, **attrs} if kind == "call" else attrs
    ids = [f"forward[0/0].{source}" for source in inputs]
    return {"id": f"forward[0/0].{name}", "kind": kind, "label": name, "attrs": attrs, "inputs": ids, "origins": []}


def ident(name: str) -> str:
    return f"forward[0/0].{name}"


def loop_with_a_branch() -> list[dict[str, Any]]:
    """A `while_loop` in a module; in its body a `cond`, and in a branch of that one node."""
    inside, nested = {"subgraph": ident("body")}, {"subgraph": ident("body.branch")}
    return [
        entity("body.arg", kind="subgraph_input", **inside),
        entity("body.branch.exp_1", module="block.act", target="aten.exp.default", **nested),
        entity("body.branch", kind="subgraph", module="block", **inside),
        entity("body.cond", ["body.arg", "body.branch.exp_1"], module="block", **inside),
        entity("body.output", ["body.cond"], kind="subgraph_output", **inside),
        entity("body", kind="subgraph", module="block"),
        entity("while_loop", ["body.cond"], module="block", subgraphs=[ident("body")]),
        entity("neg_1", ["while_loop"], module="block"),
    ]


def mlp() -> list[dict[str, Any]]:
    """Seven nodes: a linear layer, an activation, another linear layer; parameters, an input and the output."""
    linear = {"module_type": "Linear", "file": "mlp.py", "line": 12, "code": "x = self.hidden(x)"}
    source = "L['self']._modules['hidden']._parameters['weight']"
    return [
        entity("x", kind="placeholder", source="L['x']"),
        entity("primals_1", kind="placeholder", source=source),
        entity("primals_2", kind="placeholder"),
        entity("t_1", ["primals_1"], module="hidden", **linear),
        entity("addmm_1", ["x", "primals_2", "t_1"], module="hidden", **linear),
        entity("relu_1", ["addmm_1"], module="act", module_type="ReLU", file="mlp.py", line=123, bytes=4096),
        entity("mul_1", ["relu_1", "relu_1"], dtype="int64", bytes=64),
        entity("t_2", ["primals_1"], module="last", module_type="Linear"),
        entity("mm_1", ["mul_1", "t_2"], module="last", module_type="Linear"),
        entity("sum_1", ["mm_1"], shape=[], code="return x.sum()"),
        entity("output", ["sum_1", "relu_1"], kind="output"),
    ]


def transformer(layers: int = 12) -> list[dict[str, Any]]:
    """Layers with attention (in two modules), an MLP of one module, and two residual sums each."""
    made = [entity("ids", kind="placeholder"), entity("embedding_0", ["ids"], module="model.wte")]
    last = "embedding_0"
    for layer in range(layers):
        path = f"model.h.{layer}"
        names = [f"{op}_{layer}" for op in ("norm", "mm", "split", "bmm", "softmax", "view", "gelu", "tanh")]
        modules = ["ln", "attn.qkv", "attn.qkv", "attn", "attn", "attn", "mlp.up", "mlp.up"]
        before = last
        for name, module in zip(names, modules, strict=True):
            inputs = [before] if module != "mlp.up" or name.startswith("tanh") else [f"add_{layer}"]
            if name.startswith("gelu"):
                made.append(entity(f"add_{layer}", [last, before], module=path, module_type="Block"))
            made.append(entity(name, inputs, module=f"{path}.{module}", module_type="Linear"))
            before = name
        last = f"sum_{layer}"
        made.append(entity(last, [f"add_{layer}", before], module=path, module_type="Block"))
    return [*made, entity("output", [last], kind="output")]


def chain(count: int) -> list[dict[str, Any]]:
    """Nodes in a row, with an edge past nine of them from each tenth."""
    return [
        entity(f"mul_{node}", [f"mul_{source}" for source in (node - 1, node - 10 * (node % 10 == 0)) if source >= 0])
        if node
        else entity("mul_0")
        for node in range(count)
    ]
