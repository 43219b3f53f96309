from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from small_checkpoints import published_data

from depcap_jax.evaluation.scoring.answers import find_expression, find_number, same_expression
from depcap_jax.evaluation.scoring.benchmark_scores import SCORERS, allow_code_execution
from depcap_jax.evaluation.scoring.programs import complete_function, find_code
from depcap_jax.evaluation.scoring.sandbox import CodeExecutionError

REFERENCES = {
    "gsm8k": ("gsm8k_test.jsonl", "answer", 1319),
    "math500": ("math500.jsonl", "solution", 500),
    "mbpp": ("mbpp_test.jsonl", "code", 500),
    "humaneval": ("humaneval.jsonl", "canonical_solution", 164),
}

SMALL: dict[str, dict[str, Any]] = {
    "gsm8k": {"answer": "Five and two make <<5+2=7>>7.\n#### 7"},
    "math500": {"solution": r"Half of one is $\boxed{\frac{1}{2}}$.", "answer": r"\frac{1}{2}"},
    "mbpp": {"code": "def add(a, b):\r\n\treturn a + b", "test_list": ["assert add(1, 2) == 3"]},
    "humaneval": {
        "prompt": 'import math\n\n\ndef area(r):\n    """The area of a disc."""\n',
        "canonical_solution": "    return math.pi * r * r\n",
        "test": "def check(candidate):\n    assert round(candidate(1), 2) == 3.14\n",
        "entry_point": "area",
    },
}


@pytest.fixture
def permitted() -> Iterator[None]:
    allow_code_execution(unsafe=True)  # behind a guard, where one works
    yield
    allow_code_execution(False)


@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("task", REFERENCES)
def test_small_references(task):
    document, score = SMALL[task], SCORERS[task]
    assert score(document, document[REFERENCES[task][1]]) == 1.0
    assert score(document, "") == score(document, " \n") == 0.0


@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("task", REFERENCES)
def test_real_references(task):
    name, field, count = REFERENCES[task]
    documents = [json.loads(line) for line in published_data(name).open(encoding="utf-8")]
    score = SCORERS[task]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(lambda document: score(document, document[field]), documents))
    wrong = [index for index, value in enumerate(right) if value != 1.0]
    assert not wrong
    assert len(right) == count
    assert not any(score(document, "") for document in documents)


@pytest.mark.parametrize("task", ["mbpp", "humaneval"])
def test_code_needs_permission(task):
    with pytest.raises(CodeExecutionError, match=f"{task}.*--allow-code-execution"):
        SCORERS[task](SMALL[task], "print(1)")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 12 and then 13", 12),
        ("#### 1\n#### $1,234.50", Fraction("1234.5")),
        ("It costs $3,000 or -7.", -7),
        ("about .5", Fraction(1, 2)),
        ("none", None),
    ],
)
def test_find_number(text, number):
    assert find_number(text) == number


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (r"\boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"$\boxed 5$", "5"),
        (r"\fbox{x}", "x"),
        (r"\boxed{\frac{1}{2", r"\frac{1}{2"),
        ("The final answer is $x^2$. I hope so.", "x^2"),
        ("So the answer is 3.5. Done.", "3.5"),
        ("So x is 4.", None),
    ],
)
def test_find_expression(text, expression):
    assert find_expression(text) == expression


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"\dfrac12", r"\frac{1}{2}", True),
        ("0.5", r"\frac{1}{2}", True),
        ("1/2", ".5", True),
        (r"-\frac{1}{2}", "-0.5", True),
        (r"-\frac{1}{2}", "0.5", False),
        (r"10,\!080", "10080", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True),
        (r"5.4 \text{ cents}", "5.4", True),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"\text{Evelyn}", r"\text{Navin}", False),
        ("x=5", "5", True),
        (r"90^\circ", "90", True),
        ("(1,2)", "(2,1)", False),
        ("1,234", "1234", True),
        ("1,23", "123", False),
        (r"\sqrt2", r"\sqrt{2}", True),
        (r"\frac{1}{0}", r"\frac{2}{0}", False),
        ("", "", False),
    ],
)
def test_same_expression(one, other, same):
    assert same_expression(one, other) is same


def test_find_code():
    assert find_code("Sure:\n```python\nx = 1\n```\nThat is it.") == "x = 1\n"
    assert find_code("```\nx = 1\n") == "x = 1\n"
    assert find_code("x = 1\n") == "x = 1\n"


@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("    return math.pi * r * r\n\n\nprint(area('not a number'))\n", 1.0),
        ("```python\ndef area(r):\n    return math.pi * r * r\n```", 1.0),
        ("def area(r):\n    return math.pi * r * r", 1.0),
        ("```python\n    return math.pi * r * r\n```", 1.0),
        ("    return math.pi * r * r\n\ndef area(side):\n    return side * side\n", 1.0),
        ("    return 3 * r * r\n", 0.0),
        ("area = 1\n", 0.0),
    ],
)
def test_function_written_in_many_ways(answer, right):
    assert SCORERS["humaneval"](SMALL["humaneval"], answer) == right


def test_helpers_of_the_prompt_are_kept():
    prompt = "def helper():\n    return 1\n\ndef f():\n"
    assert complete_function(prompt, "def f():\n    return helper()", "f").startswith("def helper()")
