from leveret.mgmt_ui.log_budget import LineBudget


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def written(budget, count, *about):
    return sum(budget.take(*about) for _ in range(count))


def test_flood_is_cut_to_a_burst_and_then_to_the_rate():
    clock = Clock()
    budget = LineBudget(50, clock)
    assert written(budget, 5000, "a") == 1000
    clock.now += 2
    assert written(budget, 5000, "a") == 100


def test_other_categories_and_addresses_keep_their_room():
    budget = LineBudget(50, Clock())
    assert written(budget, 5000, "a", "10.0.0.1") == 200
    assert written(budget, 100, "a", "10.0.0.2") == 100
    assert written(budget, 100, "b") == 100


def test_what_was_left_out_is_counted_and_told_now_and_then():
    clock = Clock()
    budget = LineBudget(1, clock)
    written(budget, 120, "a")
    assert budget.left_out() == []
    clock.now += 10
    assert budget.left_out() == [("a", 100)]
    assert budget.left_out() == []


def test_addresses_are_forgotten_beyond_a_number(monkeypatch):
    monkeypatch.setattr("leveret.mgmt_ui.log_budget.SOURCES_MAX", 10)
    budget = LineBudget(1000, Clock())
    for number in range(100):
        budget.take("a", str(number))
    assert len(budget._sources) == 10
