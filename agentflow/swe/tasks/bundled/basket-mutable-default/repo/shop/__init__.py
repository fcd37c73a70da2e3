"""Baskets and orders; amounts are in cents."""

from shop.basket import Basket, Line
from shop.order import Order

__all__ = ["Basket", "Line", "Order"]
