import pytest


def test_render():
    from shapes.render import empty, render

    assert render(empty(3, 4)) == '<svg width="3" height="4"></svg>'


def test_to_svg():
    from shapes.model import Box, Circle
    from shapes.scene import Scene

    svg = Scene(9, 9).add(Circle(1, 2, 3), Box(0, 0, 4, 5)).to_svg()
    assert svg.index("<circle") < svg.index("<rect")


def test_only_scenes():
    from shapes.render import render

    with pytest.raises(TypeError):
        render([])


def test_models_alone():
    from shapes.model import Circle

    assert Circle(1, 2, 3).svg() == '<circle cx="1" cy="2" r="3"/>'
