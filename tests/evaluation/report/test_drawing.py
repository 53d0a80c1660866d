"""A figure is always the same image, and a dark page has dark colors."""

from gshard_nmt.evaluation.report import drawing


def image_of(palette: drawing.Palette) -> bytes:
    def draw():
        figure = drawing.new_figure((3, 2), palette)
        axes = figure.subplots()
        axes.plot([1, 2], label="a")
        axes.legend()
        drawing.paint(figure, palette)
        return figure

    return drawing.image(draw, "svg")


def test_images_are_repeatable_and_dark_ones_differ():
    light, dark = image_of(drawing.LIGHT), image_of(drawing.DARK)
    assert light == image_of(drawing.LIGHT)
    assert drawing.DARK.background.encode() in dark
    assert drawing.DARK.text.encode() in dark
    assert drawing.DARK.background.encode() not in light
