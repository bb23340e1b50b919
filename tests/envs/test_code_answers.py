"""When an answer counts as the expected one."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs.deepcoder.answers import parse_literal, same_text, same_value
from ragen2.sandbox import Members, Opaque, Pairs
from ragen2.sandbox.read_values import read
from ragen2.sandbox.write_values import write


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("3\n", "3"),
        ("1 2 3 \n", " 1  2\n3"),
        ("0.5", "0.50000000001"),
        ("2", "2.0"),
        ("1e-7", "0.0000001"),
        ("[1,2,3]", "[1, 2, 3]"),
        ("true", "True"),
        ('{"a": [1, true]}', "{'a': [1, True]}"),
        ("[1, [2]]", "(1, (2,))"),
        ("null", "None"),
        ("", "\n\n"),
        ("YES no", "YES  no"),
    ],
)
def test_texts_that_say_the_same_are_the_same(expected: str, found: str) -> None:
    assert same_text(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("3", "4"),
        ("1 2", "1 2 3"),
        ("1 2", "2 1"),
        ("0.5", "0.51"),
        ("1000000", "1000001.0"),
        ("YES", "yes"),
        ("abc", "'abc'"),
        ("1", ""),
        ("[1, 2]", "[2, 1]"),
        ("10", "1 0"),
        ("9007199254740993", "9007199254740992.0"),
        ("nan", "1.0"),
        ("0.5", "inf"),
        ("1", "[" * 60_000),
        ("1", "-" * 90_000 + "1"),
        ("[1]", "((((" * 40 + "1" + "))))" * 40),
    ],
)
def test_texts_that_differ_are_different(expected: str, found: str) -> None:
    assert not same_text(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1, 2], (1, 2)),
        ((1, [2, 3]), [1, (2, 3)]),
        (0.1 + 0.2, 0.3),
        (3, 3.0),
        (True, True),
        (True, 1),
        ({1, 2}, Members((2, 1))),
        ({(1, 2)}, Members(([1, 2],))),
        ({"a": 1}, Pairs((("a", 1),))),
        ({"1": [2]}, Pairs(((1, [2]),))),
        ({frozenset({1})}, Members((Members((1,)),))),
        (0.5, Fraction(1, 2)),
        (0.5, Decimal("0.5")),
        (1j, complex(0, 1)),
        (None, None),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        (2**100, 2**100),
    ],
)
def test_values_that_mean_the_same_are_the_same(expected: object, found: object) -> None:
    assert same_value(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ("1", 1),
        (1, "1"),
        (None, 0),
        (0, None),
        ({1, 2}, [1, 2]),
        ({1, 2}, Members((1, 1))),
        ({1: 2}, Pairs(((1, 3),))),
        ({1: 2, 3: 4}, Pairs(((1, 2), (1, 2)))),
        (2**60 + 1, float(2**60)),
        (10**6, 10**6 + 1.0),
        (1.0, Opaque("Same")),
        ([Opaque("x")], [Opaque("x")]),
        (0.5, float("inf")),
        (1.0, Fraction(10**400)),
        ("a", b"a"),
        (2**60, Decimal("sNaN")),
        ({2**60: 1}, Pairs(((Decimal("sNaN"), 1),))),
    ],
)
def test_values_that_differ_are_different(expected: object, found: object) -> None:
    assert not same_value(expected, found)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=300, deadline=None)
def test_plain_values_survive_the_way_out_of_the_sandbox(value: object) -> None:
    assert read(write(value).encode()) == value
    assert same_value(value, read(write(value).encode()))


@given(st.text(max_size=60))
@settings(max_examples=500, deadline=None)
def test_parsing_and_comparing_any_text_never_raises(text: str) -> None:
    parse_literal(text)
    assert same_text(text, text)
    same_text("[1, 2]", text)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_reading_any_bytes_gives_a_value_or_a_value_error(data: bytes) -> None:
    try:
        read(data)
    except ValueError as error:
        assert "not a" in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    "text", ['{"array":[]}', '{"deque":[]}', '{"defaultdict":[1]}', '{"bytearray":99999999999}']
)
def test_what_lacks_its_parts_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="not a value"):
        read(text.encode())
