"""From scenes to SVG."""

from shapes.scene import Scene


def render(scene):
    """An SVG document; raises TypeError for anything but a scene."""
    if not isinstance(scene, Scene):
        raise TypeError(f"expected a Scene, got {type(scene).__name__}")
    body = "".join(thing.svg() for thing in scene.things)
    return f'<svg width="{scene.width}" height="{scene.height}">{body}</svg>'


def empty(width, height):
    """A scene with nothing in it."""
    return Scene(width, height)
