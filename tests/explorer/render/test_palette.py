"""Colours of graphs and of source lines are distinguishable with any colour vision, in both themes."""

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

from explorer.run.frontend import static_text
from explorer.run.static_view import GRAPH_COLOURS

#: Machado, Oliveira and Fernandes (2009), severity 1: linear RGB to linear RGB as a dichromat sees it.
VISION = {
    "trichromacy": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
DISTINCT = 25.0  # CIELAB ΔE*ab of two small patches that nobody confuses; 2.3 is just noticeable
CONTRAST = 3.0  # WCAG 1.4.11: graphical objects
#: The lightest and darkest backgrounds of a theme: the page's and JupyterLab's.
BACKGROUNDS = {"light": ("#ffffff",), "dark": ("#111111", "#212121")}


def srgb(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])


def linear_of(values: np.ndarray) -> np.ndarray:
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def linear(colour: str) -> np.ndarray:
    return linear_of(srgb(colour))


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(colour: str) -> float:
    return float(XYZ[1] @ linear(colour))


def palette(theme: str) -> list[str]:
    """The graph colours of each theme in the style sheet, light first."""
    found = re.findall(r"--tc-g\d: (#\w{6});", static_text("style.css"))
    assert len(found) == 12
    return found[:6] if theme == "light" else found[6:]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_graph_colours_differ_for_every_colour_vision(theme: str, vision: str) -> None:
    seen = {colour: lab(VISION[vision] @ linear(colour)) for colour in palette(theme)}
    near = {(one, other): float(np.linalg.norm(seen[one] - seen[other])) for one, other in combinations(seen, 2)}
    assert min(near.values()) > DISTINCT, min(near, key=lambda pair: near[pair])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_graph_colours_stand_out_from_the_background(theme: str) -> None:
    for colour in palette(theme):
        for background in BACKGROUNDS[theme]:
            dark, light = sorted((luminance(colour), luminance(background)))
            assert (light + 0.05) / (dark + 0.05) >= CONTRAST, (colour, background)


def test_the_static_view_has_the_same_colours() -> None:
    assert list(GRAPH_COLOURS) == palette("light")


#: ΔE*ab of tints: of lines next to each other, next but one, and of any two; 2.3 is just noticeable.
NEIGHBOURS, NEXT_BUT_ONE, ANY = 10.0, 5.5, 2.5
READABLE = 4.5  # WCAG 1.4.3: text


def variables(theme: str, pattern: str) -> list[str]:
    """Values of the style sheet's variables, of the light theme or of the dark one, which comes second."""
    found = re.findall(rf"--tc-{pattern}: ([^;v]+);", static_text("style.css"))
    return found[: len(found) // 2] if theme == "light" else found[len(found) // 2 :]


def tints(theme: str, background: str) -> list[np.ndarray]:
    """The backgrounds of texts that are coloured by source line, as sRGB."""
    share = int(variables(theme, "tint")[0].rstrip("%")) / 100
    return [share * srgb(colour) + (1 - share) * srgb(background) for colour in variables(theme, r"r\d")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_neighbouring_lines_differ(theme: str, vision: str) -> None:
    for background in BACKGROUNDS[theme]:
        seen = [lab(VISION[vision] @ linear_of(tint)) for tint in tints(theme, background)]
        for (i, one), (j, other) in combinations(enumerate(seen), 2):
            apart = min(j - i, len(seen) - j + i)
            least = {1: NEIGHBOURS, 2: NEXT_BUT_ONE}.get(apart, ANY)
            assert np.linalg.norm(one - other) > least, (i, j)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_code_is_readable_on_colours_of_lines(theme: str) -> None:
    texts = [*variables(theme, r"t-\w+"), "#1c2128" if theme == "light" else "#e3e7ec"]
    assert len(texts) == 7
    for background in BACKGROUNDS[theme]:
        for tint, text in product(tints(theme, background), texts):
            dark, light = sorted((float(XYZ[1] @ linear_of(tint)), luminance(text)))
            assert (light + 0.05) / (dark + 0.05) >= READABLE, (tint, text)
