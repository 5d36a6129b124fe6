"""Colours can be read in both themes, and told apart by lightness alone."""

from __future__ import annotations

import pytest

from otdd_flash.palette import COLOURS, LEVELS, Theme, contrast, ink_on, luminance

THEMES: tuple[Theme, ...] = ("light", "dark")


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the published example
    assert contrast("#123456", "#123456") == 1.0
    assert luminance("#ff0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_stand_out(theme: Theme) -> None:
    colours = COLOURS[theme]
    for name in ("ink", "soft", "accent"):
        for ground in ("ground", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["ink"], colours["gap"]) >= 4.5
    assert contrast(colours["alarm"], colours["alarm-ground"]) >= 4.5
    assert contrast(colours["muted"], colours["ground"]) >= 3
    assert contrast(colours["accent"], colours["gap"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_levels_are_ordered_by_lightness_and_carry_text(theme: Theme) -> None:
    lights = [luminance(colour) for colour in LEVELS[theme]]
    assert lights == sorted(lights, reverse=theme == "light")
    assert len(set(lights)) == len(LEVELS["light"]) == len(LEVELS["dark"])
    away = [contrast(colour, COLOURS[theme]["ground"]) for colour in LEVELS[theme]]
    assert away == sorted(away)
    for colour in LEVELS[theme]:
        assert contrast(ink_on(colour), colour) >= 4.5, colour


def test_themes_name_the_same_colours() -> None:
    assert COLOURS["light"].keys() == COLOURS["dark"].keys()
