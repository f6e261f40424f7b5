import json

import pytest

from leveret.mgmt_ui.api.listing import (
    ObjectKind,
    Query,
    all_pages,
    in_order,
    one_page,
    select_columns,
)
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.yielding import FIRST_ITEMS

ITEMS = [("v", "b", 3), ("v", "A", 10), ("u", "c", None), ("u", "aa", 2)]
kind = ObjectKind(
    lambda item: item[:2],
    lambda item: {"vhost": item[0], "name": item[1], "size": item[2], "deep": {"n": item[2]}},
)


async def listed(items, parameters):
    query = Query.parse(parameters)
    ordered = await in_order(items, kind, query)
    if query.page is not None:
        return await one_page(ordered, len(items), kind, query)
    return json.loads("".join([piece async for piece in all_pages(ordered, kind, query)]))


async def names(items=ITEMS, **parameters):
    found = await listed(items, parameters)
    return [row["name"] for row in (found if isinstance(found, list) else found["items"])]


async def refusal(**parameters):
    with pytest.raises(ApiError) as caught:
        await listed(ITEMS, parameters)
    assert caught.value.status == 400
    return caught.value.error, caught.value.reason


@pytest.mark.covers("B-440")
async def test_without_page_everything_comes_by_vhost_and_name():
    assert await names() == ["aa", "c", "A", "b"]
    assert await names(page_size="1") == ["aa", "c", "A", "b"]


@pytest.mark.covers("B-440")
async def test_page_has_its_numbers_around_it():
    assert await listed(ITEMS, {"page": "2", "page_size": "3"}) == {
        "total_count": 4,
        "item_count": 1,
        "filtered_count": 4,
        "page": 2,
        "page_size": 3,
        "page_count": 2,
        "items": [{"vhost": "v", "name": "b", "size": 3, "deep": {"n": 3}}],
    }


@pytest.mark.covers("B-440")
async def test_name_is_a_part_in_any_case_and_filters_pages_only():
    assert await names(page="1", name="a") == ["aa", "A"]
    assert await names(name="a") == ["aa", "c", "A", "b"]
    answer = await listed(ITEMS, {"page": "1", "name": "A"})
    assert (answer["total_count"], answer["filtered_count"]) == (4, 2)


@pytest.mark.covers("B-440")
async def test_sorting_by_any_column_of_the_row():
    assert await names(sort="name") == ["A", "aa", "b", "c"]
    assert await names(sort="name", sort_reverse="true") == ["c", "b", "aa", "A"]
    # Numbers come before what is no number, and nothing counts as 0.
    assert await names(sort="size") == ["aa", "b", "A", "c"]
    assert await names(sort="deep.n", page="1", page_size="2") == ["aa", "b"]
    assert await names(sort="deep.missing") == ["aa", "c", "A", "b"]


async def test_many_slices_sort_as_one():
    items = [("v", f"{number * 7919 % 1009:04}", number) for number in range(1009)]
    assert len(items) > 5 * FIRST_ITEMS
    assert await names(items) == [f"{number:04}" for number in range(1009)]
    assert (await names(items, sort="size", sort_reverse="true"))[0] == items[-1][1]


@pytest.mark.parametrize("parameters", [{"page": "x"}, {"page": "1_0"}, {"page_size": ""}])
async def test_page_that_is_no_number(parameters):
    assert await refusal(**parameters) == ("bad_request", "Pagination parameters are invalid")


@pytest.mark.covers("B-440")
async def test_page_out_of_bounds():
    assert await refusal(page="0") == (
        "invalid_pagination_parameters",
        "Invalid pagination parameters: page number 0, page size undefined",
    )
    assert await refusal(page="1", page_size="501") == (
        "invalid_pagination_parameters",
        "Invalid pagination parameters: page number 1, page size 501",
    )
    assert await refusal(page="3", page_size="3") == (
        "page_out_of_range",
        "Page out of range, page: 3 page size: 3, len: 4",
    )


@pytest.mark.covers("B-440")
async def test_name_may_be_a_pattern_in_any_case():
    assert await names(page="1", name="^a", use_regex="true") == ["aa", "A"]
    assert await names(page="1", name="^(?!A)", use_regex="true") == ["c", "b"]
    assert await names(page="1", name="", use_regex="true") == ["aa", "c", "A", "b"]
    assert await names(name="^a", use_regex="true") == ["aa", "c", "A", "b"]
    assert await refusal(page="1", name="a**", use_regex="true") == (
        "bad_request",
        "name is no regular expression: bad repetition operator: **",
    )


@pytest.mark.covers("B-440")
def test_columns_are_cut_out_by_path():
    row = {"a": 1, "b": {"c": 2, "d": 3}, "e": [{"c": 4, "d": 5}], "f": 6}
    assert select_columns(row, [("a",), ("b", "c"), ("e", "d"), ("none",)]) == {
        "a": 1,
        "b": {"c": 2},
        "e": [{"d": 5}],
    }
    assert select_columns(row, [("b", "c"), ("b",)]) == {"b": {"c": 2, "d": 3}}
    assert select_columns(row, []) is row


async def test_columns_are_not_without_number():
    assert await names(columns=",".join(["name"] * 100)) == ["aa", "c", "A", "b"]
    assert await listed(ITEMS, {"columns": "," * 200 + "name,,size"}) == [
        {"name": "aa", "size": 2},
        {"name": "c", "size": None},
        {"name": "A", "size": 10},
        {"name": "b", "size": 3},
    ]
    too_many = ("bad_request", "columns are at most 100")
    for count in (101, 32_000):
        assert await refusal(columns=",".join(["name"] * count)) == too_many


@pytest.mark.parametrize("parameter", ["columns", "sort"])
async def test_columns_are_not_without_depth(parameter):
    await listed(ITEMS, {parameter: ".".join(["deep"] * 32)})
    reason = f"{parameter} has a column of more than 32 names"
    assert await refusal(**{parameter: ".".join(["deep"] * 33)}) == ("bad_request", reason)
    assert await refusal(**{parameter: "." * 60_000}) == ("bad_request", reason)


@pytest.mark.parametrize("count", [0, 1, FIRST_ITEMS, FIRST_ITEMS + 1])
async def test_pieces_of_a_whole_list_are_one_array(count):
    items = [("v", f"{number:06}", number) for number in range(count)]
    assert [row["size"] for row in await listed(items, {})] == list(range(count))
