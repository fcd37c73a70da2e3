"""Scene: an ordered collection of things."""

from shapes.render import render


class Scene:
    """Things are drawn in the order they were added."""

    def __init__(self, width, height):
        self.width = width
        self.height = height
        self.things = []

    def add(self, *things):
        """Add things; returns the scene."""
        self.things.extend(things)
        return self

    def to_svg(self):
        """The scene as an SVG document."""
        return render(self)
