"""The front end's store of a record: damaged parts."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

RECEIVE = """async ([part, arrivals]) => {
    const { Store } = await import("/store.js");
    const digest = "d1";
    const info = { id: "a", stage: "forward", parts: { [part]: { digest, bytes: 1 } } };
    const reported = [], asked = [], told = [];
    const note = (event) => (event.preventDefault(), reported.push(event.error.name));
    const store = new Store((artifact, name) => asked.push(`${artifact} ${name}`));
    store.listen((what) => told.push(what));
    store.setManifest({ stages: [{ name: "forward", artifacts: [info] }] });
    const packed = async (content) => {
        const stream = new Blob([JSON.stringify(content)]).stream().pipeThrough(new CompressionStream("deflate"));
        return new Uint8Array(await new Response(stream).arrayBuffer());
    };
    const whole = await packed({ entities: [], lines: {}, text: "first\\nsecond", numbers: null, view: 1 });
    const need = () => (part === "words" ? store.wordsOf("a") : store.need("a", part));
    need();
    const counts = [asked.length];
    addEventListener("error", note);
    for (const arrival of arrivals) {
        await store.receive("a", part, digest, arrival === "whole" ? whole : whole.slice(0, whole.length / 2));
        counts.push(asked.length);
    }
    need();
    counts.push(asked.length);
    removeEventListener("error", note);
    const artifact = store.artifacts.get("a");
    const there = part === "words" ? Boolean(artifact.words) : artifact.have[part] === digest;
    return { asked: [...new Set(asked)], counts, reported, there, told: told.filter((what) => what === part).length };
}"""


def received(modules: Page, part: str, *arrivals: str) -> dict[str, Any]:
    """Deliver a part several times, "whole" or in "half", and need it again after each.

    `counts` has the number of requests after each delivery.
    """
    return dict(modules.evaluate(RECEIVE, [part, arrivals]))


@pytest.mark.parametrize("part", ["entities", "text", "view", "words"])
def test_damaged_part_is_requested_again(modules: Page, part: str) -> None:
    found = received(modules, part, "half", "whole")
    assert found["asked"] == [f"a {part}"]
    assert found["counts"] == [1, 2, 2, 2]
    assert found["there"]
    assert found["told"] == 1
    assert len(found["reported"]) == 1, "what was damaged is said"


@pytest.mark.parametrize("part", ["entities", "text", "view", "words"])
def test_always_damaged_part_is_requested_when_needed(modules: Page, part: str) -> None:
    found = received(modules, part, "half", "half", "half")
    assert found["counts"] == [1, 2, 2, 2, 3], "once again at once, and then as it is needed"
    assert not found["there"]
    assert len(found["reported"]) == 3


def test_present_part_is_not_requested(modules: Page) -> None:
    assert received(modules, "entities", "whole", "half") == {
        "asked": ["a entities"], "counts": [1, 1, 1, 1], "reported": [], "there": True, "told": 1,
    }  # fmt: skip
