"""Basket: what a customer is about to buy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One article; the price is for one piece."""

    article: str
    price: int
    count: int = 1

    @property
    def amount(self):
        return self.price * self.count


class Basket:
    """Lines in the order they were added."""

    def __init__(self, lines=[]):
        self.lines = lines

    def add(self, article, price, count=1):
        """Put an article in."""
        self.lines.append(Line(article, price, count))

    def total(self):
        """The sum of all lines."""
        return sum(line.amount for line in self.lines)
