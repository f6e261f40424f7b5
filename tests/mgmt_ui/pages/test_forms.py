"""Forms as browsers send them, unfinished ones included."""

import pytest
from fastapi import Request

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.forms import read_form
from leveret.mgmt_ui.pages.uploads import read_upload


@pytest.mark.parametrize("read", [read_form, lambda request: read_upload(request, None)])
async def test_who_leaves_half_way_is_no_mistake_of_the_node(read):
    async def receive():
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(ApiError, match="is incomplete"):
        await read(request)


async def test_forms_of_strangers_are_small(browser):
    assert (await browser.submit("/login", user="n" * 8000, password="wrong")).status_code == 401
    assert (await browser.submit("/login", user="n" * 9000, password="wrong")).status_code == 413


async def test_names_of_strangers_do_not_fill_the_log(browser, caplog):
    await browser.submit("/login", user="n" * 8000, password="wrong")
    assert "HTTP access denied" in caplog.text
    assert len(caplog.text) < 1000
