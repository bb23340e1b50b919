"""Answers compared by math-verify: what is the same mathematics, and what must not stop a run."""

import os
import threading

import pytest

from ragen2.envs import check_env, make
from ragen2.envs.math import answers as symbolic
from ragen2.envs.math.answers import same_answer, same_mathematics
from ragen2.errors import DependencyError

needs_math_verify = pytest.mark.skipif(
    symbolic.importlib.util.find_spec("math_verify") is None,
    reason="math-verify is not installed; pip install 'ragen2[math]'",
)


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("\\dfrac{\\sqrt{8}}{4}", "\\frac{\\sqrt{2}}{2}"),
        ("\\frac{2\\pi}{4}", "\\frac{\\pi}{2}"),
        ("\\{3, 2, 1\\}", "\\{1, 2, 3\\}"),
        ("x \\in [1, 2]", "[1,2]"),
        ("(-\\infty, 2\\sqrt{2}]", "\\left(-\\infty, \\sqrt{8}\\right]"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        ("It is \\boxed{2\\sqrt{2}}", "$\\sqrt{8}$"),
        (
            "\\begin{pmatrix} 2/4 \\\\ 3 \\end{pmatrix}",
            "\\begin{pmatrix} 1/2 \\\\ 3 \\end{pmatrix}",
        ),
    ],
)
def test_math_verify_finds_what_the_exact_rule_cannot(answer, right):
    assert not same_answer(answer, right)
    assert same_mathematics(answer, right)


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("\\frac{1}{3}", "\\frac{1}{2}"),
        ("[1, 2]", "[1, 2)"),
        ("(2, 1)", "(1, 2)"),
        ("\\{1, 2\\}", "\\{1, 2, 3\\}"),
        ("x^2 + 1", "(x+1)^2"),
        ("god", "dog"),
        ("\\text{god}", "\\text{dog}"),
        ("", "2"),
        ("2 " * 1000, "2"),
    ],
)
def test_other_mathematics_is_wrong(answer, right):
    assert not same_mathematics(answer, right)


@pytest.mark.parametrize(
    ("answer", "right"), [("50%", "0.5"), ("1 1/2", "\\frac{3}{2}"), ("Yes", "yes"), ("$12", "12")]
)
def test_what_the_exact_rule_takes_needs_no_other_process(monkeypatch, answer, right):
    monkeypatch.setattr(symbolic, "_PROCESS", None)
    assert same_mathematics(answer, right)


@needs_math_verify
def test_a_comparison_that_does_not_end_is_wrong_and_the_next_one_works(monkeypatch):
    process = symbolic._VerifyProcess()
    assert process.ask("(x+1)^2", "x^2 + 2x + 1")
    monkeypatch.setattr(symbolic, "ANSWER_SECONDS", 0.2)
    assert not process.ask("((9^{9999})^{9999})^{9999}", "2")
    assert process._process is None
    monkeypatch.undo()
    assert process.ask("2\\sqrt{2}", "\\sqrt{8}")
    process._end()


@needs_math_verify
def test_it_answers_in_any_thread():
    found = []
    thread = threading.Thread(
        target=lambda: found.append(same_mathematics("3\\sqrt{2}", "\\sqrt{18}"))
    )
    thread.start()
    thread.join()
    assert found == [True]


@needs_math_verify
def test_a_forked_child_asks_a_process_of_its_own():
    process = symbolic._VerifyProcess()
    assert process.ask("2\\sqrt{2}", "\\sqrt{8}")
    parents = process._process
    process._owner = os.getpid() + 1  # as a forked child finds it
    assert process.ask("2\\sqrt{2}", "\\sqrt{8}")
    assert process._process is not parents
    assert parents.poll() is None
    process._end()
    parents.kill()
    parents.communicate()


@needs_math_verify
def test_the_contract_holds_with_math_verify():
    assert check_env(make("MetaMathQA", answer_rule="math_verify", num_steps=1), seeds=range(3))


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(symbolic.importlib.util, "find_spec", lambda name: None)
    env = make("MetaMathQA", answer_rule="math_verify")
    with pytest.raises(DependencyError) as error:
        env.start(0, 0)
    assert str(error.value) == (
        'answer_rule = "math_verify" needs the package math-verify; '
        "pip install 'ragen2[math]', or set answer_rule to \"value\""
    )
    make("MetaMathQA").start(0, 0)
