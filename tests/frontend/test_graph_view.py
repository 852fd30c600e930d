"""The graph view in Chromium: groups, chips, selection, search, overlays, keys, and the list of nodes."""

from __future__ import annotations

import pytest

from tests.frontend.graph_page import GraphPage, chain, entity, ident, loop_with_a_branch, mlp, transformer

# Groups and chips


def test_small_graph_is_expanded(view: GraphPage) -> None:
    view.show(mlp())
    kinds = view.kinds()
    assert kinds["hidden"] == kinds["last"] == "open"
    assert kinds[ident("addmm_1")] == "node"


def test_module_of_one_node_is_not_a_group(view: GraphPage) -> None:
    view.show(mlp())
    assert "act" not in view.kinds()
    assert view.at(ident("relu_1")).kind == "node"


def test_operator_body_is_a_group(view: GraphPage) -> None:
    view.show(loop_with_a_branch())
    titles = {key: view.at(key).title for key, kind in view.kinds().items() if kind == "open"}
    assert titles == {"block": "block", "block.body": "body", "block.body.branch": "branch"}
    assert view.at("block.body.branch").detail == "subgraph · 1 node"
    assert view.at(ident("body.branch.exp_1")).title == "exp_1"
    chips = view.page.evaluate("view.scene.items.flatMap((item) => item.chips.map((chip) => [item.key, chip.text]))")
    assert sorted(chips) == [[ident("body.cond"), "arg"], [ident("body.cond"), "out"]]


def test_placeholders_and_outputs_are_chips_beside_the_nodes(view: GraphPage) -> None:
    view.show(mlp())
    assert not {ident("x"), ident("primals_1"), ident("output")} & view.kinds().keys()
    chips = view.page.evaluate("""() => view.scene.items.flatMap((item) => item.chips.map((chip) =>
        [item.key, chip.text, chip.into ? chip.x + chip.w < item.x : chip.x > item.x + item.w]))""")
    assert sorted(map(tuple, chips)) == sorted(
        [
            (ident("t_1"), "hidden.weight", True),
            (ident("addmm_1"), "x", True),
            (ident("addmm_1"), "primals_2", True),
            (ident("t_2"), "hidden.weight", True),
            (ident("relu_1"), "out", True),
            (ident("sum_1"), "out", True),
        ]
    )


def test_many_inputs_are_summarized_in_one_chip(view: GraphPage) -> None:
    inputs = [f"primals_{number}" for number in range(20)]
    view.show([*(entity(name, kind="placeholder") for name in inputs), entity("cat_1", inputs)])
    chips = view.page.evaluate("view.scene.items[0].chips.map((chip) => [chip.text, chip.ids.length])")
    assert chips == [["primals_0", 1], ["primals_1", 1], ["+18", 18]]


def test_large_graph_starts_collapsed(view: GraphPage) -> None:
    view.show(transformer(12))
    kinds = view.kinds()
    assert kinds["model"] == "open"
    assert {kinds[f"model.h.{layer}"] for layer in range(12)} == {"closed"}
    assert 10 <= sum(kind != "open" for kind in kinds.values()) <= 60


def test_module_list_is_not_a_group(view: GraphPage) -> None:
    view.show(transformer(12))
    assert "model.h" not in view.kinds()
    assert view.at("model.h.3").title == "h.3"
    assert view.at("model.h.3").detail == "Block · 10 nodes"


def test_module_with_a_single_child_is_merged(view: GraphPage) -> None:
    view.show(transformer(12))
    view.call("openAll")
    kinds = view.kinds()
    assert "model.h.0.mlp" not in kinds
    assert view.at("model.h.0.mlp.up").title == "mlp.up"


def test_a_group_opens_and_closes_in_place(view: GraphPage) -> None:
    view.show(transformer(12))
    before, camera = view.at("model.h.2"), view.camera
    view.call("toggleGroup", "model.h.2")
    opened = view.at("model.h.2")
    assert opened.kind == "open"
    assert opened.h > 3 * before.h
    assert (opened.x, opened.y) == pytest.approx((before.x, before.y))
    assert view.at("model.h.3").kind == "closed"
    inside = view.at(ident("add_2"))
    assert opened.x <= inside.x <= inside.x + inside.w <= opened.x + opened.w
    assert opened.y < inside.y < inside.y + inside.h < opened.y + opened.h
    view.call("toggleGroup", "model.h.2")
    assert view.at("model.h.2") == before
    assert view.camera == pytest.approx(camera)


def test_open_group_title_stays_visible_and_closes_it(view: GraphPage) -> None:
    view.show(transformer(12))
    view.call("pan", 0, -500)
    assert view.at("model").y < -300
    view.click((view.at("model").x + 8, 10))
    assert view.kinds() == {"model": "closed"}


def test_all_groups_open_and_close(view: GraphPage) -> None:
    view.show(transformer(3))
    view.call("openAll")
    assert set(view.kinds().values()) == {"open", "node"}
    view.call("closeAll")
    assert view.kinds() == {"model": "closed"}


def test_nothing_overlaps_whatever_is_open(view: GraphPage) -> None:
    view.show(transformer(4))
    for path in ("model.h.1", "model.h.1.attn", "model.h.3"):
        view.call("toggleGroup", path)
        overlaps = view.page.evaluate("""() => {
            const { items } = view.scene;
            const apart = (a, b) => a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
            const around = (a, b) => b !== null && (a === b || around(a, b.home.item));
            const overlap = (a, b) => !around(a, b) && !around(b, a) && !apart(a, b);
            return items.flatMap((a) => items.filter((b) => overlap(a, b)).map((b) => [a.key, b.key]));
        }""")
        assert overlaps == []


def test_every_edge_connects_its_nodes_across_borders(view: GraphPage) -> None:
    view.show(transformer(4))
    view.call("openAll")
    broken = view.page.evaluate("""() => view.scene.items.flatMap((from) => from.out.flatMap((to) => {
        const wires = view.scene.trace(from, to).map(({ points }) => points);
        const ends = wires.map((points) => [points.at(-2), points.at(-1)]);
        const near = (x, y, [u, v]) => Math.abs(x - u) <= 1.5 && Math.abs(y - v) <= 1.5;
        const joined = wires.slice(1).every((points, i) => near(points[0], points[1], ends[i]));
        const starts = near(wires[0][0], wires[0][1], [from.x + from.w / 2, from.y + from.h]);
        const arrives = near(to.x + to.w / 2, to.y, ends.at(-1));
        return joined && starts && arrives ? [] : [[from.key, to.key, joined, starts, arrives]];
    }))""")
    assert broken == []


def test_modules_calling_each_other_are_drawn(view: GraphPage) -> None:
    """Groups can form a cycle where nodes do not."""
    turns = [entity(f"mul_{n}", [f"mul_{n - 1}"] if n else [], module="ab"[n % 2]) for n in range(80)]
    view.show(turns)
    view.call("closeAll")
    assert view.kinds() == {"a": "closed", "b": "closed"}
    assert view.page.evaluate("view.scene.wires.length") == 2


def test_graph_without_computation_shows_inputs_and_outputs(view: GraphPage) -> None:
    view.show([entity("x", kind="placeholder"), entity("output", ["x"], kind="output")])
    assert view.kinds() == {ident("x"): "node", ident("output"): "node"}


def test_an_empty_graph_is_shown(view: GraphPage) -> None:
    view.show([])
    assert view.kinds() == {}
    view.press("ArrowDown", "Enter", "f", "l", "ArrowDown", "Enter")


# Selection


def test_click_selects_and_ctrl_or_shift_click_adds(view: GraphPage) -> None:
    view.show(mlp())
    view.click(view.at(ident("relu_1")).middle)
    assert view.selected == [ident("relu_1")]
    view.click(view.at(ident("mul_1")).middle, modifiers=["Control"])
    assert view.selected == [ident("relu_1"), ident("mul_1")]
    view.click(view.at(ident("sum_1")).middle, modifiers=["Shift"])
    assert view.selected == [ident("relu_1"), ident("mul_1"), ident("sum_1")]
    view.click(view.at(ident("relu_1")).middle, modifiers=["Control"])
    assert view.selected == [ident("mul_1"), ident("sum_1")]


def test_click_on_the_background_clears(view: GraphPage) -> None:
    view.show(mlp())
    view.click(view.at(ident("relu_1")).middle)
    view.click((5, 5))
    assert view.selected == []


def test_click_on_a_chip_selects_its_entity(view: GraphPage) -> None:
    view.show(mlp())
    x, y = view.page.evaluate("""() => {
        const [chip] = view.scene.itemOf.get("forward[0/0].t_1").chips;
        const { scale, left, top } = view.camera;
        return [left + (chip.x + chip.w / 2) * scale, top + (chip.y + chip.h / 2) * scale];
    }""")
    view.click((x, y))
    assert view.selected == [ident("primals_1")]


def test_click_on_a_closed_group_selects_its_nodes(view: GraphPage) -> None:
    view.show(transformer(12))
    view.click(view.at("model.h.0").middle)
    assert len(view.selected) == 10
    assert ident("softmax_0") in view.selected


def test_double_click_or_triangle_click_toggles_a_group(view: GraphPage) -> None:
    view.show(transformer(12))
    view.click(view.at("model.h.0").middle, click_count=2)
    assert view.at("model.h.0").kind == "open"
    place = view.at("model.h.1")
    view.click((place.x + 8, place.y + 10))
    assert view.at("model.h.1").kind == "open"
    view.click((view.at("model.h.1").x + 8, view.at("model.h.1").y + 10))
    assert view.at("model.h.1").kind == "closed"


def test_selection_gets_a_ring_and_highlighted_edges(view: GraphPage) -> None:
    view.show(mlp())
    place = view.at(ident("relu_1"))
    ring = (place.middle[0], place.y - 1.5)
    assert view.pixel(*ring) != (11, 99, 197)
    view.select([ident("relu_1")], [ident("mul_1")])
    assert view.pixel(*ring) == (11, 99, 197)
    linked = view.at(ident("mul_1"))
    assert view.pixel(linked.x - 1.5, linked.middle[1]) == (224, 138, 0)
    assert view.page.evaluate("view.marks.wires.size") == 3


def test_closed_group_counts_links_and_stays_closed(view: GraphPage) -> None:
    view.show(transformer(12))
    view.select([], [ident("mm_3"), ident("bmm_3"), ident("mm_4")])
    counts = view.page.evaluate("Object.fromEntries([...view.marks.linked].map(([item, n]) => [item.key, n]))")
    assert counts == {"model.h.3": 2, "model.h.4": 1}
    assert view.at("model.h.3").kind == "closed"


def test_offscreen_selection_is_scrolled_into_view(view: GraphPage) -> None:
    view.show(chain(300))
    assert view.at(ident("mul_280")).y > 700
    view.select([ident("mul_280")])
    assert 0 < view.at(ident("mul_280")).y < 700


def test_visible_selection_does_not_move_the_view(view: GraphPage) -> None:
    view.show(chain(300))
    camera = view.camera
    view.select([ident("mul_2")], [ident("mul_280")])
    assert view.camera == camera


def test_preview_is_shown_and_removed(view: GraphPage) -> None:
    view.show(mlp())
    place = view.at(ident("sum_1"))
    ring = (place.middle[0], place.y - 1.5)
    before = view.pixel(*ring)
    view.page.evaluate("id => view.setPreview(new Set([id]))", ident("sum_1"))
    assert view.pixel(*ring) != before
    view.call("setPreview", None)
    assert view.pixel(*ring) == before


def test_the_pointer_over_a_node_previews_it(view: GraphPage) -> None:
    view.show(mlp())
    view.page.mouse.move(*view.at(ident("relu_1")).middle)
    assert view.page.evaluate("hovered.at(-1)") == ident("relu_1")
    assert "mlp.py:123" in view.page.locator("canvas").get_attribute("title")
    view.page.mouse.move(3, 3)
    assert view.page.evaluate("hovered") == [ident("relu_1"), None]


# Search and focus


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("aten.mm", ["mm_1"]),
        ("RELU", ["relu_1"]),
        ("hidden", ["primals_1", "t_1", "addmm_1"]),
        ("linear t_", ["t_1", "t_2"]),
        ("mlp.py:12", ["t_1", "addmm_1"]),
        ("mlp.py:123", ["relu_1"]),
        ("self.hidden(x)", ["t_1", "addmm_1"]),
        ("x.sum()", ["sum_1"]),
        ("no such thing", []),
        ("  ", []),
    ],
)
def test_search_covers_ops_names_modules_lines_and_code(view: GraphPage, query: str, found: list[str]) -> None:
    view.show(mlp())
    assert view.call("search", query) == [ident(name) for name in found]


def test_focus_opens_enclosing_groups_and_centers_the_node(view: GraphPage) -> None:
    view.show(transformer(12))
    view.call("focus", ident("softmax_11"))
    assert view.at("model.h.11").kind == view.at("model.h.11.attn").kind == "open"
    assert view.at(ident("softmax_11")).middle == pytest.approx((500, 350), abs=1)
    assert view.camera["scale"] >= 0.8


def test_focus_on_a_parameter_centers_its_node(view: GraphPage) -> None:
    view.show(mlp())
    view.call("focus", ident("primals_2"))
    assert view.at(ident("addmm_1")).middle == pytest.approx((500, 350), abs=1)


def test_focus_on_a_missing_node_does_nothing(view: GraphPage) -> None:
    view.show(mlp())
    camera = view.camera
    view.call("focus", "forward[0/0].nothing")
    assert view.camera == camera


# Colours


def test_legend_names_families_dtypes_and_byte_range(view: GraphPage) -> None:
    view.show(mlp())
    view.page.evaluate("shell.append(view.legend)")
    legend = view.page.locator(".tc-legend")
    assert "matmul" in legend.inner_text()
    view.call("setOverlay", "dtype")
    assert legend.locator("span").all_inner_texts() == ["float32", "int64"]
    view.call("setOverlay", "bytes")
    assert legend.inner_text() == "64 B to 4.00 KiB"


def test_overlays_colour_the_nodes(view: GraphPage) -> None:
    view.show(mlp())
    inside = [(view.at(ident(name)).x + 8, view.at(ident(name)).y + 3) for name in ("relu_1", "mul_1", "sum_1")]
    plain = [view.pixel(*point) for point in inside]
    view.call("setOverlay", "bytes")
    by_bytes = [view.pixel(*point) for point in inside]
    assert len(set(by_bytes)) == 3
    assert by_bytes[0] < by_bytes[2] < by_bytes[1], "the more bytes, the darker"
    view.call("setOverlay", "dtype")
    by_dtype = [view.pixel(*point) for point in inside]
    assert by_dtype[0] == by_dtype[2] != by_dtype[1]
    view.call("setOverlay", "none")
    assert [view.pixel(*point) for point in inside] == plain


def test_the_view_follows_the_theme(view: GraphPage) -> None:
    view.show(mlp())
    assert view.pixel(2, 2) == (255, 255, 255)
    view.page.evaluate("document.documentElement.dataset.tcTheme = 'dark'")
    view.call("themeChanged")
    assert sum(view.pixel(2, 2)) < 150


def test_jupyter_colours_are_used_without_a_shell(view: GraphPage) -> None:
    view.page.evaluate("""() => {
        shell.className = "";
        shell.style.display = "flex";
        shell.style.setProperty("--jp-layout-color1", "rgb(10 20 30)");
        view.themeChanged();
    }""")
    assert view.pixel(2, 2) == (10, 20, 30)


# Keys


def test_tab_reaches_the_view_and_its_list(view: GraphPage) -> None:
    view.show(mlp())
    view.page.keyboard.press("Tab")
    assert view.page.evaluate("document.activeElement.getAttribute('role')") == "application"
    view.page.keyboard.press("Tab")
    assert view.page.evaluate("document.activeElement.getAttribute('role')") == "listbox"


def test_arrows_move_along_edges_and_within_a_layer(view: GraphPage) -> None:
    diamond = [
        entity("mul_0"),
        entity("add_1", ["mul_0"]),
        entity("sub_1", ["mul_0"]),
        entity("mm_2", ["add_1", "sub_1"]),
    ]
    view.show(diamond)
    left, right = sorted((ident("add_1"), ident("sub_1")), key=lambda key: view.at(key).x)
    view.press("ArrowDown")
    assert (view.cursor, view.selected) == (ident("mul_0"), [ident("mul_0")])
    view.press("ArrowDown", "ArrowDown")
    assert view.cursor == ident("mm_2")
    view.call("focus", left)
    view.press("ArrowRight")
    assert (view.cursor, view.selected) == (right, [right])
    view.press("ArrowRight")
    assert view.cursor == right, "there is nothing further"
    view.press("ArrowLeft", "ArrowUp")
    assert view.cursor == ident("mul_0")


def test_arrows_with_shift_add_to_the_selection(view: GraphPage) -> None:
    view.show(chain(5))
    view.press("ArrowDown", "Shift+ArrowDown", "Shift+ArrowDown", "Shift+ArrowUp")
    assert view.selected == [ident("mul_0"), ident("mul_1"), ident("mul_2")]


def test_enter_toggles_a_group_and_arrows_enter_it(view: GraphPage) -> None:
    view.show(transformer(12))
    view.press("ArrowDown", "ArrowDown")
    assert view.cursor == "model.h.0"
    view.press("Enter")
    assert view.at("model.h.0").kind == "open"
    view.press("ArrowDown")
    assert view.cursor == ident("norm_0")
    view.press("Backspace")
    assert (view.at("model.h.0").kind, view.cursor) == ("closed", "model.h.0")
    view.press("Enter", "Enter")
    assert view.at("model.h.0").kind == "closed"


def test_escape_clears(view: GraphPage) -> None:
    view.show(mlp())
    view.press("ArrowDown")
    assert view.selected
    view.press("Escape")
    assert (view.selected, view.cursor) == ([], None)


def test_handled_keys_do_not_propagate(view: GraphPage) -> None:
    view.show(mlp())
    view.page.evaluate("window.keys = []; document.addEventListener('keydown', (event) => keys.push(event.key)); null")
    view.press("ArrowDown", "f", "n", "Enter", "/")
    assert view.page.evaluate("keys") == ["n", "/"]


def test_keyboard_position_is_announced(view: GraphPage) -> None:
    view.show(transformer(12))
    view.press("ArrowDown", "ArrowDown")
    assert view.page.get_by_role("status").inner_text() == "h.0, closed group, Block · 10 nodes, 1 input, 1 user"


# The list


def test_list_names_every_node_and_is_virtualized(view: GraphPage) -> None:
    view.show(chain(5000))
    view.press("l")
    options = view.page.get_by_role("listbox", name="Nodes of the graph").get_by_role("option")
    assert options.count() < 100
    first = options.first
    assert first.inner_text() == "mul_0, f32[8, 16]"
    assert first.get_attribute("aria-setsize") == "5000"
    view.page.keyboard.press("End")
    assert view.page.locator("[aria-posinset='5000']").inner_text() == "mul_4999, f32[8, 16]"


def test_list_is_visible_only_with_focus(view: GraphPage) -> None:
    view.show(mlp())
    opacity = "() => getComputedStyle(document.querySelector('[role=listbox]')).opacity"
    assert view.page.evaluate(opacity) == "0"
    view.press("l")
    assert view.page.evaluate(opacity) == "1"
    view.page.keyboard.press("Escape")
    assert view.page.evaluate(opacity) == "0"
    assert view.page.evaluate("document.activeElement === view.canvas")


def test_enter_in_the_list_selects(view: GraphPage) -> None:
    view.show(mlp())
    view.press("l")
    for _ in range(3):
        view.page.keyboard.press("ArrowDown")
    view.page.keyboard.press("Enter")
    assert view.selected == [ident("t_1")]
    option = view.page.locator("[role=option][aria-selected=true]")
    assert option.inner_text() == "t_1, f32[8, 16], hidden"
    active = view.page.get_by_role("listbox").get_attribute("aria-activedescendant")
    assert option.get_attribute("id") == active


# Manners


def test_names_are_escaped(view: GraphPage) -> None:
    name = "<img src=x onerror=alert(1)>"
    view.show([entity(name, module="<b>"), entity("mul_1", [name], module="<b>")])
    view.press("l", "ArrowDown")
    assert view.page.locator("img").count() == 0
    assert name in view.page.get_by_role("option").first.inner_text()


def test_destroying_the_view_removes_all_elements(view: GraphPage) -> None:
    view.show(mlp())
    assert view.page.evaluate("document.body.children.length") == 1
    view.call("destroy")
    assert view.page.evaluate("root.children.length") == 0
    view.page.evaluate("shell.style.width = '500px'")
    view.page.mouse.move(300, 300)


def test_new_graph_replaces_the_old(view: GraphPage) -> None:
    view.show(transformer(12))
    view.select([ident("mm_3")])
    view.show(mlp())
    assert "model" not in view.kinds()
    assert view.page.evaluate("view.marks.primary.size") == 0
    assert 0 < view.at(ident("addmm_1")).x < 1000
