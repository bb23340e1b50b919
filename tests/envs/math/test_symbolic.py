"""Answers compared by math-verify: what is the same mathematics, and what must not stop a run."""

import os
import resource
import subprocess
import sys
import threading

import pytest

from ragen2.envs import check_env, make
from ragen2.envs.math import answers as symbolic
from ragen2.envs.math.answers import same_answer, same_mathematics
from ragen2.errors import DependencyError, GradingError

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
@pytest.mark.parametrize("question", [b"", None], ids=["while it starts", "while it compares"])
def test_an_interrupted_question_leaves_no_answer_to_the_next_one(monkeypatch, question):
    exchange = symbolic._exchange

    def interrupted(process, sent, seconds):
        if question is None and not sent:
            return exchange(process, sent, seconds)
        process.stdin.write(sent)
        process.stdin.flush()
        raise KeyboardInterrupt

    process = symbolic._VerifyProcess()
    monkeypatch.setattr(symbolic, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.ask("2\\sqrt{2}", "\\sqrt{8}")
    monkeypatch.undo()
    assert not process.ask("\\sqrt{3}", "\\sqrt{8}")
    assert process.ask("2\\sqrt{2}", "\\sqrt{8}")
    process._end()


@needs_math_verify
def test_an_interrupt_from_the_terminal_does_not_reach_the_process():
    process = symbolic._VerifyProcess()
    assert process.ask("2\\sqrt{2}", "\\sqrt{8}")
    assert os.getpgid(process._process.pid) != os.getpgid(0)
    process._end()


@needs_math_verify
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_asks_a_process_of_its_own_and_waits_for_no_thread_of_its_parent():
    code = (
        "import os\n"
        "from ragen2.envs.math import answers\n"
        "assert answers.same_mathematics('2^{2/2}', '2^{1}')\n"
        "answers._PROCESS._lock.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if answers.same_mathematics('3^{2/2}', '3^{1}') else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "answers._PROCESS._lock.release()\n"
        "assert answers.same_mathematics('5^{2/2}', '5^{1}')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@needs_math_verify
def test_a_tighter_limit_on_memory_is_kept():
    code = (
        "from ragen2.envs.math.answers import same_mathematics\n"
        "assert same_mathematics('3^{2/2}', '3^{1}')\n"
    )
    limit = symbolic.MEMORY_BYTES * 3 // 4
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


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


def test_a_checker_that_cannot_start_makes_no_answer_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*rest: object, **settings: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(symbolic.subprocess, "Popen", refuse)
    with pytest.raises(GradingError, match=r"does not start \(no more processes\); try python -c"):
        symbolic._VerifyProcess().ask("2x", "x + x")
