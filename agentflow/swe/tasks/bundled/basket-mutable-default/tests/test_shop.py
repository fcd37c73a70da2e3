from shop import Basket, Line, Order


def filled():
    basket = Basket([])
    basket.add("tea", 350, count=2)
    basket.add("cup", 500)
    return basket


def test_new_baskets_are_empty():
    Basket().add("tea", 350)
    assert Basket().total() == 0


def test_a_list_that_was_handed_in_stays_as_it_is():
    lines = [Line("tea", 350)]
    Basket(lines).add("cup", 500)
    assert lines == [Line("tea", 350)]


def test_vouchers_belong_to_one_order():
    Order(filled()).redeem("SPRING", 200)
    assert Order(filled()).due() == 1200


def test_total():
    assert filled().total() == 1200


def test_a_voucher_counts_once():
    order = Order(filled())
    order.vouchers.clear()
    order.redeem("SPRING", 200)
    order.redeem("SPRING", 200)
    assert order.due() == 1000


def test_never_below_nothing():
    order = Order(Basket([]))
    order.redeem("BIG", 200)
    assert order.due() == 0
