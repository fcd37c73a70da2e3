"""The things that can be in a scene."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Circle:
    x: float
    y: float
    radius: float

    def svg(self):
        return f'<circle cx="{self.x}" cy="{self.y}" r="{self.radius}"/>'


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    def svg(self):
        return f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"/>'
