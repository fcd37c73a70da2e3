"""Order: a basket with its vouchers."""


class Order:
    """What the customer pays for `basket`."""

    vouchers = {}

    def __init__(self, basket):
        self.basket = basket

    def redeem(self, code, amount):
        """Take `amount` off; a code counts once."""
        self.vouchers[code] = amount

    def due(self):
        """What is left to pay, never below nothing."""
        return max(self.basket.total() - sum(self.vouchers.values()), 0)
