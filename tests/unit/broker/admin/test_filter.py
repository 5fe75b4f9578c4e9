"""Filters of lists: what they select, and what is no filter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.admin.filter import Listed, parse_filter
from isthmus.errors import InvalidArgumentError

DAY_MS = 86_400_000
LISTED = [
    Listed("orders", 0, DAY_MS, DAY_MS, 0),
    Listed("Orders-eu", 5, 2 * DAY_MS, 3 * DAY_MS, 4 * DAY_MS),
    Listed("returns", 7, 3 * DAY_MS, 3 * DAY_MS, 3 * DAY_MS),
]


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("path eq 'ORDERS'", "0"),
        ("path ne 'orders'", "12"),
        ("startswith(path, 'ord') eq true", "01"),
        ("startswith(path,'ord')", "01"),
        ("startsWith(Path,'ord') eq false", "2"),
        ("messageCount gt 5", "2"),
        ("messagecount ge 5 and path ne 'returns'", "1"),
        ("messageCount lt 1 or messageCount gt 6", "02"),
        ("not (messageCount lt 1 or messageCount gt 6)", "1"),
        ("not messageCount eq 0 and startswith(path, 'o')", "1"),
        ("createdAt le '1970-01-03T00:00:00Z'", "01"),
        ("updatedAt eq '1970-01-04T00:00:00'", "12"),
        ("accessedAt lt '1970-01-02'", "0"),
        ("path eq 'o''brien'", ""),
        ("messageCount gt -1", "012"),
    ],
)
def test_filters_select(text, selected):
    predicate = parse_filter(text)
    assert "".join(str(place) for place, listed in enumerate(LISTED) if predicate(listed)) == selected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("path", "ends too early"),
        ("path eq", "ends too early"),
        ("path eq orders", "wants a text in single quotes"),
        ("path like 'o'", "compares by 'like'"),
        ("size gt 5", "asks for 'size'"),
        ("messageCount gt 'x'", "wants a whole number"),
        ("messageCount gt 1.5", "not understood from"),
        ("createdAt gt 5", "wants a time"),
        ("createdAt gt 'soon'", "wants a time"),
        ("path eq 'a' path eq 'b'", "goes on after its end"),
        ("(path eq 'a'", "wants ')' before 'its end'"),
        ("startswith(path 'a')", "wants ','"),
        ("startswith(path,'a') eq 1", "wants 'true'"),
        ("path eq 'a", "not understood from"),
        ("(" * 40 + "path eq 'a'" + ")" * 40, "nested too deeply"),
        ("not " * 40 + "path eq 'a'", "nested too deeply"),
        ("path eq '" + "a" * 2048 + "'", "characters"),
    ],
)
def test_what_is_no_filter_is_refused_i1(text, message):
    with pytest.raises(InvalidArgumentError, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse_filter(text)


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["path", "eq", "'a'", "not", "(", ")", "and", "5"])).map(" ".join)
)
def test_any_text_is_parsed_or_refused_i1(text):
    try:
        predicate = parse_filter(text)
    except InvalidArgumentError:
        return
    assert [predicate(listed) in (True, False) for listed in LISTED] == [True] * 3
