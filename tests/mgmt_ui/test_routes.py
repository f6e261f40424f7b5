"""Routes that FastAPI analyses at their first request."""

import pytest
from fastapi import Depends, FastAPI, HTTPException

from leveret.mgmt_ui.api.describing import describe_operations
from leveret.mgmt_ui.routes import LazyRouter
from tests.support.http import in_process_client

router = LazyRouter(prefix="/shops")


async def refuse_strangers(key: str = "") -> None:
    if key != "secret":
        raise HTTPException(403)


@router.get("/{number}", dependencies=[Depends(refuse_strangers)])
async def show(number: int, *, doubled: bool = False) -> dict[str, int]:
    return {"number": number * (1 + doubled)}


@pytest.fixture
def app():
    app = FastAPI()
    app.router.routes += router.routes
    return app


async def test_first_request_is_answered_as_the_next_ones(app):
    async with in_process_client(app) as client:
        for _ in range(2):
            assert (await client.get("/shops/7")).status_code == 403
            known = {"key": "secret", "doubled": "true"}
            assert (await client.get("/shops/7", params=known)).json() == {"number": 14}
            assert (await client.get("/shops/x", params=known)).status_code == 422
            assert (await client.post("/shops/7")).status_code == 405
            assert (await client.get("/shops")).status_code == 404


def test_only_what_is_asked_for_is_analysed():
    made = LazyRouter()
    made.get("/one")(show)
    made.get("/two")(show)
    one, two = made.routes
    one.analyse()
    assert one.dependant.query_params
    assert not hasattr(two, "dependant")


def test_descriptions_have_every_route():
    made = LazyRouter(prefix="/shops")
    made.get("/{number}")(show)
    (operation,) = describe_operations(made.routes)["/shops/{number}"].values()
    assert [one["name"] for one in operation["parameters"]] == ["number", "doubled"]
