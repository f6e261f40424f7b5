from leveret.ports.callbacks import call_each


def test_one_that_raises_is_reported_and_hurts_no_other():
    called, reported = [], []

    def fail():
        called.append("fails")
        raise KeyError("a bug")

    call_each(
        [lambda: called.append("first"), fail, lambda: called.append("last")],
        lambda callback, error: reported.append((callback, str(error))),
    )
    assert called == ["first", "fails", "last"]
    assert reported == [(fail, "'a bug'")]
