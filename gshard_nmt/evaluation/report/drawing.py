"""What all figures share: their colors, and how they become images."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Palette:
    """The colors of a figure.

    Attributes:
      background, text, faint: the page, the words and axes, and the lines behind the data.
      points, interval, bars: the values of each language, their intervals, and the training pairs.
      systems: a color for each system, used again from the start if there are more systems.
    """

    background: str
    text: str
    faint: str
    points: str
    interval: str
    bars: str
    systems: tuple[str, ...]


LIGHT = Palette(
    *("#ffffff", "#1c1c1c", "#999999", "#1f5fa8", "#9db8d9", "#7a8a99"),
    ("#d1492e", "#1f5fa8", "#2a8a57", "#8a4fb0", "#b8860b", "#00899a", "#c2417f", "#5d6770"),
)
DARK = Palette(
    *("#16191d", "#e6e6e6", "#777777", "#7fb2ee", "#3f5f85", "#5d6b78"),
    ("#ff8d70", "#7fb2ee", "#6fd09a", "#c79aec", "#e8bf4d", "#55cddb", "#f08cbb", "#aab4bd"),
)


def new_figure(size: tuple[float, float], palette: Palette) -> Any:
    """Returns an empty figure of this width and height, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained", facecolor=palette.background)


def paint(figure: Any, palette: Palette) -> None:
    """Gives the axes, texts and legends of a figure the colors of a palette."""
    for axes in figure.axes:
        axes.set_facecolor(palette.background)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(palette.faint)
        axes.tick_params(colors=palette.text, which="both")
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_color(palette.text)
        if legend := axes.get_legend():
            for text in (*legend.get_texts(), legend.get_title()):
                text.set_color(palette.text)


def image(draw: Callable[[], Any], kind: str) -> bytes:
    """Returns a figure as PNG or SVG. The same figure always gives the same bytes."""
    import matplotlib

    image = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    # Letters of an SVG stay text, because their outlines would be most of the page.
    style = matplotlib.rc_context(
        {"font.size": 9, "svg.hashsalt": "gshard-nmt", "svg.fonttype": "none"}
    )
    with style:
        draw().savefig(image, format=kind, dpi=150, metadata=metadata)
    return image.getvalue()
