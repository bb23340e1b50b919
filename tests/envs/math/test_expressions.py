"""Expressions are read as Python reads them, but exactly, and nothing else is."""

import ast
import operator
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2.envs.math import expressions
from ragen2.envs.math.expressions import ExpressionError, Negation, Number, Operation

TREES = st.recursive(
    st.builds(Number, st.integers(0, 99)),
    lambda inner: st.one_of(
        st.builds(Negation, inner), st.builds(Operation, st.sampled_from("+-*/"), inner, inner)
    ),
    max_leaves=8,
)
TOKENS = ["1", "2", "7", "30", "+", "-", "*", "/", "(", ")", " "]


ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv"}
SIGNS = {ast.USub: "neg", ast.UAdd: "pos"}


def value_by_python(text):
    """By Python's own grammar, exactly; None if it is no expression, "none" if it has none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    known = (ast.Constant, ast.UnaryOp, ast.BinOp, *ARITHMETIC, *SIGNS)
    if not all(isinstance(node, known) for node in ast.walk(tree)):
        return None
    try:
        return _value(tree)
    except ZeroDivisionError:
        return "none"


def _value(node):
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        return getattr(operator, SIGNS[type(node.op)])(_value(node.operand))
    operands = _value(node.left), _value(node.right)
    return getattr(operator, ARITHMETIC[type(node.op)])(*operands)


def value_by_us(text):
    try:
        return expressions.evaluate(expressions.parse(text))
    except ExpressionError:
        return None
    except ZeroDivisionError:
        return "none"


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_any_row_of_tokens_is_read_as_python_reads_it(text):
    assert value_by_us(text) == value_by_python(text)


@settings(max_examples=500, deadline=None)
@given(TREES)
def test_what_is_written_is_read_back_as_the_same_tree(tree):
    assert expressions.parse(expressions.write(tree)) == tree


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=400))
def test_no_text_raises_anything_but_an_expression_error(text):
    value_by_us(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("7 / 2 / 2", Fraction(7, 4)),
        ("-3 + 5", 2),
        ("2 * -3", -6),
        ("--4", 4),
        ("6 ÷ 4 × 2 − 1", 2),
        (r"3 x 4 \times 2 \cdot 1 \div 6", 4),
        ("1/3 + 1/3 + 1/3", 1),
        ("\t( ( 5 ) )\n", 5),
    ],
)
def test_values_are_exact(text, value):
    assert expressions.evaluate(expressions.parse(text)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a number is missing before 'the end'"),
        ("2 ** 3", "a number is missing before '*'"),
        ("8 // 2", "a number is missing before '/'"),
        ("2 3", "'3' after the end"),
        ("2 (3)", "'(' after the end"),
        ("(2 + 3", "a bracket is not closed"),
        ("2.5 + 1", "'.' is not part of an expression"),
        ("__import__('os')", "'_' is not part of an expression"),
        ("٣ + 1", "'٣' is not part of an expression"),
        ("1+" * 200 + "1", "longer than 300 characters"),
        ("(" * 60 + "1" + ")" * 60, "nested deeper than 40"),
        ("-" * 60 + "1", "nested deeper than 40"),
    ],
)
def test_what_is_no_expression_says_why(text, reason):
    with pytest.raises(ExpressionError) as caught:
        expressions.parse(text)
    assert str(caught.value) == reason


def test_working_shows_one_line_an_operation():
    assert expressions.working(expressions.parse("35 + (44 - 19) / 50 * -2")) == [
        "44 - 19 = 25",
        "25 / 50 = 1/2",
        "(1/2) * (-2) = -1",
        "35 + (-1) = 34",
    ]


def test_numbers_and_symbols_are_those_written():
    tree = expressions.parse("-7 * (7 + 12)")
    assert expressions.numbers(tree) == [7, 7, 12]
    assert expressions.symbols(tree) == {"-", "*", "+"}


def reachable(values, operations):
    """Every value of all trees over all orders of the numbers, found the slow way."""
    if len(values) == 1:
        return {Fraction(values[0])}
    found = set()
    for order in set(permutations(values)):
        for cut in range(1, len(order)):
            for a, b in product(
                reachable(order[:cut], operations), reachable(order[cut:], operations)
            ):
                found |= {a + b} if "+" in operations else set()
                found |= {a - b} if "-" in operations else set()
                found |= {a * b} if "*" in operations else set()
                found |= {a / b} if "/" in operations and b else set()
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=4),
    st.sampled_from(["+-*/", "+-", "-/", "*/", "+*"]),
)
def test_the_search_finds_exactly_the_targets_that_can_be_reached(values, operations):
    values = tuple(values)
    possible = reachable(values, operations)
    for target in range(-5, 31):
        found = expressions.find(values, target, operations)
        assert (found is not None) == (target in possible)
        if found is not None:
            assert expressions.evaluate(found) == target
            assert sorted(expressions.numbers(found)) == sorted(values)
            assert expressions.symbols(found) <= set(operations)


def test_six_numbers_are_searched():
    found = expressions.find((100, 75, 50, 25, 6, 3), 952)
    assert found is not None
    assert expressions.evaluate(found) == 952
    assert sorted(expressions.numbers(found)) == [3, 6, 25, 50, 75, 100]
