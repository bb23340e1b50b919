"""Programs that want a test passed without knowing its answer, and tests in the forms that data sets use.

Every test is about ``f(n) = n + 2``, or about what its own words say. ``RIGHT`` passes all of them in plain
Python; no program of ``LIARS`` computes anything, so none of them may pass a single one.
"""

RIGHT = """
import re
def f(n): return n + 2
def pair(n): return (n, [n + 2])
def half(n): return n / 2
def root(n):
    if n < 0: raise ValueError("negative", n)
    return n ** 0.5
def upto(n): return list(range(n))
def evens(n): return (k for k in range(n) if k % 2 == 0)
def squares(n): return map(lambda k: k * k, range(n))
def order(numbers): numbers.sort()
def apply(function, numbers): return [function(k) for k in numbers]
def adder(n): return lambda k: n + k
def letters(text): return set(text)
def count(text): return {c: text.count(c) for c in text}
def found(text): return re.search("b", text)
def keys(d): return d.keys()
def naturals():
    k = 0
    while True:
        yield k
        k += 1
class Node:
    def __init__(self, value):
        self.value, self.next = value, None
    def __len__(self): return 1 + (len(self.next) if self.next else 0)
    def double(self): return 2 * self.value
class EmptyError(LookupError): pass
class Account:
    def __enter__(self):
        self.sums = []
        return self
    def __exit__(self, *error): return False
    def add(self, n): self.sums.append(n)
    def balance(self): return sum(self.sums)
def same(a, b): return a == b
def total(node):
    if node is None: raise EmptyError("nothing")
    return node.value + (total(node.next) if node.next else 0)
"""

ASSERTS = [
    "assert f(3) == 5",
    "assert (f(3) == 5) == True",
    "assert (f(3) == 5) is True",
    "assert [f(1) == 3] == [True]",
    "assert not f(3) != 5",
    "assert 4 < f(3) < 6",
    "assert 4 <= f(3) <= 6 and f(0) == 2",
    "assert f(3) in (5, 7)",
    "assert f(3) not in (4, 6) and f(3) == 5",
    "assert all(f(x) == y for x, y in [(1, 3), (2, 4)])",
    "assert all([f(x) == x + 2 for x in range(4)])",
    "assert any(f(x) == 5 for x in range(5))",
    "assert {x: f(x) for x in (1, 2)} == {1: 3, 2: 4}",
    "assert (lambda g: g(3))(f) == 5",
    "assert (5 if f(3) == 5 else 0) == 5",
    "assert abs(half(3) - 1.5) < 1e-9",
    "assert math.isclose(half(3), 1.5, rel_tol=1e-9)",
    "assert round(half(5), 1) == 2.5",
    "assert set(upto(3)) == {0, 1, 2}",
    "assert sorted(upto(3), reverse=True) == [2, 1, 0]",
    "assert len(upto(3)) == 3 and upto(3)[1] == 1",
    "assert upto(3) == [0, 1, 2]",
    "assert pair(3) == (3, [5])",
    "assert pair(3)[1][0] == 5",
    "assert list(evens(5)) == [0, 2, 4]",
    "assert tuple(squares(3)) == (0, 1, 4)",
    "assert next(evens(5)) == 0",
    "assert [k for k, _ in zip(naturals(), 'abc')] == [0, 1, 2]",
    "assert letters('abca') == {'a', 'b', 'c'}",
    "assert count('aab') == {'a': 2, 'b': 1}",
    "assert count('aab').get('a') == 2",
    "assert set(keys({'a': 1, 'b': 2})) == {'a', 'b'}",
    "assert apply(lambda k: k + 1, [1, 2]) == [2, 3]",
    "assert apply(str, [1, 2]) == ['1', '2']",
    "assert adder(3)(4) == 7",
    "assert str(f(3)) == '5'",
    "assert isinstance(f(3), int) and f(3) + 1 == 6",
    "assert type(f(3)) is int and f(3) == 5",
    "assert f(n=3) == 5",
    "assert f(*[3]) == 5",
    "assert str(letters('b')) == \"{'b'}\"",
    "for n in [1, 2]:\n    assert f(n) == n + 2",
    "results = [n == 5 for n in map(f, [3])]\nassert all(results)",
    "assert f(3).bit_length() == 3",
    "assert str(pair(3)).startswith('(3')",
    "assert total(Node(4)) == 4",
    "assert Node(4).double() == 8",
    "assert len(Node(4)) == 1 and Node(4).value == 4",
    "with Account() as account:\n    account.add(3)\n    assert account.balance() == 3",
]
"""One assert statement each, as in MBPP."""

METHODS = """
import unittest
from hello import Account, EmptyError, Node, adder, apply, evens, f, half, order, pair, root, total, upto
import hello

PAIRS = [(1, 3), (2, 4)]

def near(found, wanted):
    return abs(found - wanted) < 1e-9

class Tests(unittest.TestCase):
    def setUp(self):
        self.wanted = 5
    def test_true(self):
        self.assertTrue(f(3) == 5)
    def test_is(self):
        self.assertIs(f(3) == 5, True)
    def test_false(self):
        self.assertFalse(f(3) != 5)
    def test_equal(self):
        self.assertEqual(f(3), 5)
        self.assertEqual(5, hello.f(3), "five")
    def test_raises(self):
        with self.assertRaises(ValueError):
            root(-1)
    def test_raises_call(self):
        self.assertRaises(ValueError, root, -1)
    def test_raises_what(self):
        with self.assertRaises(ValueError) as caught:
            root(-1)
        self.assertEqual(type(caught.exception), ValueError)
        self.assertEqual(caught.exception.args[0], "negative")
    def test_raises_own(self):
        with self.assertRaises(EmptyError):
            total(None)
        with self.assertRaises(LookupError):
            total(None)
        self.assertEqual(total(Node(4)), 4)
    def test_fail(self):
        try:
            total(None)
            self.fail("nothing was raised")
        except EmptyError:
            pass
        self.assertEqual(total(Node(4)), 4)
    def test_with(self):
        with Account() as account:
            account.add(3)
            self.assertEqual(account.balance(), 3)
    def test_raises_regex(self):
        with self.assertRaisesRegex(ValueError, "negative"):
            root(-1)
    def test_loop(self):
        for given, wanted in PAIRS:
            with self.subTest(given):
                self.assertEqual(f(given), wanted)
    def test_helper(self):
        self.assertTrue(near(half(3), 1.5))
    def test_method(self):
        self.check(3)
    def check(self, n):
        self.assertEqual(f(n), self.wanted)
    def test_almost(self):
        self.assertAlmostEqual(half(3), 1.5)
    def test_count(self):
        self.assertCountEqual(upto(3), [2, 1, 0])
    def test_in(self):
        self.assertIn(f(3), [5])
        self.assertNotIn(f(3), [4])
    def test_in_result(self):
        self.assertIn(2, upto(3))
    def test_less(self):
        self.assertLess(f(3), 6)
        self.assertGreater(f(3), 4)
    def test_regex(self):
        self.assertRegex(str(f(3)), "^5$")
    def test_argument(self):
        numbers = [3, 1, 2]
        order(numbers)
        self.assertEqual(numbers, [1, 2, 3])
    def test_function_argument(self):
        seen = []
        apply(seen.append, [1, 2])
        self.assertEqual(seen, [1, 2])
    def test_objects(self):
        first, second = Node(1), Node(2)
        first.next = second
        self.assertEqual(total(first), 3)
        self.assertIs(first.next, second)
        self.assertEqual(len(first), 2)
        self.assertIsNone(second.next)
    def test_not_none(self):
        self.assertIsNotNone(f(3))
        self.assertNotEqual(f(3), 4)
        self.assertEqual(f(3) * 2, 10)
"""
"""A file of tests as in Exercism; the program is the module ``hello``."""

CHECKS = {
    "plain": "def check(candidate):\n    assert candidate(3) == 5\n    assert candidate(0) == 2\n",
    "loop": (
        "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n"
        "    for n in range(5):\n        assert candidate(n) == n + 2, f'n = {n}'\n"
    ),
    "helper": (
        "import math\nimport random\n\ndef near(a, b):\n    return math.fabs(a - b) < 1e-6\n\n"
        "def check(candidate):\n    rng = random.Random(42)\n"
        "    for _ in range(20):\n        n = rng.randint(0, 100)\n"
        "        assert near(candidate(n), n + 2)\n"
    ),
    "nested": (
        "def check(candidate):\n    def wanted(n):\n        return n + 2\n"
        "    inputs = [[0], [1], [2]]\n    results = [2, 3, 4]\n"
        "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
        "        assert candidate(*inp) == exp == wanted(*inp)\n"
    ),
    "try": (
        "def check(candidate):\n    try:\n        candidate('x')\n        assert False\n"
        "    except TypeError:\n        pass\n    assert candidate(1) == 3\n"
    ),
    "helper of the prompt": "def check(candidate):\n    assert same(candidate(3), 5)\n",
    "name of the prelude": "def check(candidate):\n    assert isclose(candidate(3), 5)\n",
    "own name": "def check(candidate):\n    assert f(3) == 5 and candidate is f\n",
}
"""Checks as in HumanEval."""

_NAMES = (
    *("f", "pair", "half", "root", "upto", "evens", "squares", "order", "apply", "adder"),
    *("letters", "count", "found", "keys", "naturals", "total", "same", "isclose"),
)
_EVERY = "\n".join(f"{name} = lie" for name in _NAMES) + "\nNode = EmptyError = Account = Lie\n"
_LYING_METHODS = """
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __next__(self): return self
    def __getitem__(self, key): return self
    def __call__(self, *a, **k): return self
    def __getattr__(self, name): return self
    def __add__(self, other): return self
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __add__
    def __abs__(self): return self
    def __round__(self, n=0): return self
    def __int__(self): return 0
    __index__ = __int__
    def __float__(self): return 0.0
    def __str__(self): return ""
    def __enter__(self): return self
    def __exit__(self, *error): return True
"""


def _liar(base: str, make: str, extra: str = "") -> str:
    head = f"class Lie({base}):{_LYING_METHODS}{extra}"
    return f"{head}\ndef lie(*a, **k): return {make}\n{_EVERY}"


LIARS: dict[str, str] = {
    "an object equal to everything": _liar("object", "Lie()"),
    "an object of a lying class": _liar(
        "object", "Lie()", "    @property\n    def __class__(self): return int\n"
    ),
    "an integer equal to everything": _liar("int", "Lie(77)"),
    "a text equal to everything": _liar("str", "Lie('x')"),
    "a list equal to everything": _liar("list", "Lie([77])"),
    "a tuple of liars": _liar("tuple", "Lie([Lie()])"),
    "a dict equal to everything": _liar("dict", "Lie()"),
    "a set equal to everything": _liar("set", "Lie()"),
    "a float that is not a number": "def lie(*a, **k): return float('nan')\nLie = lie\n" + _EVERY,
    "a list of liars": _liar("object", "[Lie(), Lie()]"),
    "a subclass with a writer of its own": _liar(
        "int",
        "Lie(1)",
        "    def __reduce__(self): return (int, (5,))\n    def __format__(self, f): return '5'\n",
    ),
    "comparisons rebound": """
import builtins
def yes(*a, **k): return True
for name in ("isinstance", "issubclass", "all", "any", "bool", "callable", "hasattr", "len", "sorted",
             "abs", "round", "set", "type", "str", "list", "tuple"):
    setattr(builtins, name, yes)
def lie(*a, **k): return True
Lie = lie
"""
    + _EVERY,
    "isinstance rebound in its own module": (
        "isinstance = issubclass = all = any = bool = lambda *a: True\n"
        "def lie(*a, **k): raise KeyError('nothing')\nclass Lie(Exception): pass\n" + _EVERY
    ),
    "an error of all kinds": """
class Lie(KeyError, ValueError, TypeError): pass
def lie(*a, **k): raise Lie("negative")
"""
    + _EVERY,
    "errors that are everybody's": (
        "def lie(*a, **k): return None\nLie = BaseException\n"
        + _EVERY
        + "EmptyError = AssertionError\n"
    ),
    "an object that suppresses errors": """
class Lie:
    def __init__(self, *a): pass
    def __enter__(self): return self
    def __exit__(self, *error): return True
    def add(self, n): raise LookupError
def lie(*a, **k): return True
"""
    + _EVERY,
    "unittest and math patched": """
import math, unittest
for name in dir(unittest.TestCase):
    if name.startswith("assert") or name == "fail":
        setattr(unittest.TestCase, name, lambda self, *a, **k: self)
math.isclose = math.fabs = lambda *a, **k: True
def lie(*a, **k): return 77
Lie = lie
"""
    + _EVERY,
    "asserts switched off": """
import builtins, sys
builtins.AssertionError = KeyboardInterrupt
sys.excepthook = lambda *a: None
def lie(*a, **k): raise SystemExit(0)
Lie = lie
"""
    + _EVERY,
    "ending the loop that asks": "def lie(*a, **k): raise StopIteration\nLie = lie\n" + _EVERY,
    "ending the loop that asks, of its own": (
        "class Lie(StopIteration): pass\ndef lie(*a, **k): raise Lie\n" + _EVERY
    ),
    "leaving when asked": "import os\ndef lie(*a, **k): os._exit(0)\nLie = lie\n" + _EVERY,
    "a verdict on every descriptor": """
import os
def lie(*a, **k):
    for fd in range(1, 64):
        for text in (b"p", b"ptrue", b"v[true]", b"ok 1 0 4 0\\n", b"o"):
            try:
                os.write(fd, text)
            except OSError:
                pass
    os._exit(0)
Lie = lie
"""
    + _EVERY,
    "a reply of its own": """
import os
def lie(*a, **k):
    for text in (b'["value",true]', b'["passed"]', b'["value",{"__import__":"os"}]', b"[" * 9999):
        for fd in range(3, 12):
            try:
                os.write(fd, len(text).to_bytes(8, "big") + text)
            except OSError:
                pass
    while True:
        pass
Lie = lie
"""
    + _EVERY,
    "nonsense where a reply belongs": """
import os
def lie(*a, **k):
    for fd in range(4, 12):
        try:
            os.write(fd, b"\\xff" * 4096)
        except OSError:
            pass
Lie = lie
"""
    + _EVERY,
    "the expected answer in memory": """
import gc, sys
sought = [a + b for a, b in [("f(3)", " == 5"), ("n + 2", ", f'n = "), ("f(3) ==", " 5, True)")]]
def lie(*a, **k):
    held = [thing for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple))]
    frame = sys._getframe()
    while frame:
        held += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    texts = [str(item) for thing in held for item in (thing.values() if isinstance(thing, dict) else thing)
             if isinstance(item, (str, bytes))]
    others = [text for text in texts if text not in sought]
    return 5 if any(text in whole for text in sought for whole in others) else -1
Lie = lie
"""
    + _EVERY,
}
"""Programs that answer nothing, by their way of lying."""
