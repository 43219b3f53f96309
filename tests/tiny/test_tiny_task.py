"""The task of the embedded models: its checkers, its split."""

import dataclasses
import hashlib
import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from depcap_jax import tiny
from depcap_jax.checkpoints.loading import EMBEDDED
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.text.codec import require_tokenizer
from depcap_jax.tiny import words
from training import task

KINDS = list(task.KINDS)
seeds = st.integers(0, 2**32 - 1)


def sample(seed: int, kind: str) -> task.Problem:
    return next(task.problems(seed, held_out=bool(seed % 2), kind=kind))


def replaced(text: str, place: re.Match[str], other: str) -> str:
    return text[: place.start()] + other + text[place.end() :]


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_answers_are_right(kind: str):
    for easiest in (0.0, 1.0):
        for problem in itertools.islice(task.problems(1, held_out=False, kind=kind, easiest=easiest), 300):
            assert problem.check(problem.answer), problem
            assert problem.check(f" {problem.answer}\n")


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_another_number_is_wrong(kind: str, seed: int, data: st.DataObject):
    """A number in place of another, or of a word in the two kinds whose replies have no number."""
    problem = sample(seed, kind)
    places = r"\b[a-z]+\b" if kind in ("choose", "shuffle") else r"\d+"
    place = data.draw(st.sampled_from(list(re.finditer(places, problem.answer))))
    other = data.draw(st.integers(0, 99).filter(lambda number: str(number) != place[0]))
    assert not problem.check(replaced(problem.answer, place, str(other)))


@pytest.mark.parametrize("kind", ["steps", "choose", "story"])
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_reply_to_another_count_is_wrong(kind: str, seed: int, data: st.DataObject):
    problem = sample(seed, kind)
    (place,) = re.finditer(r"\d+(?= steps| of these| visits?)", problem.prompt)
    count = data.draw(st.integers(1, 9).filter(lambda number: str(number) != place[0]))
    asked = dataclasses.replace(problem, prompt=replaced(problem.prompt, place, str(count)))
    assert not asked.check(problem.answer)


@pytest.mark.parametrize("kind", ["choose", "shuffle", "story", "code"])
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_another_name_in_one_place_is_wrong(kind: str, seed: int, data: st.DataObject):
    problem = sample(seed, kind)
    names = {"story": words.NAMES + words.FRIENDS, "code": list("abcxyz")}.get(kind, ["zebra"])
    # The one place where another name is right is a function's own name, which nothing else mentions.
    places = {"story": rf"\b({'|'.join(words.NAMES + words.FRIENDS)})\b", "code": r"(?<!def )\b[a-z]\b"}.get(
        kind, r"\b[a-z]+\b"
    )
    place = data.draw(st.sampled_from(list(re.finditer(places, problem.answer))))
    other = data.draw(st.sampled_from([name for name in names if name != place[0]]))
    assert not problem.check(replaced(problem.answer, place, other))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_missing_or_repeated_piece_is_wrong(kind: str, seed: int, data: st.DataObject):
    problem = sample(seed, kind)
    gap = {"choose": ", ", "shuffle": ", ", "story": ". "}.get(kind, "\n")
    pieces = problem.answer.split(gap)
    at = data.draw(st.integers(0, len(pieces) - 1))
    assert not problem.check(gap.join(pieces[:at] + pieces[at + 1 :]))
    assert not problem.check(gap.join([*pieces[: at + 1], *pieces[at:]]))


@pytest.mark.parametrize("kind", KINDS)
def test_extras_nothing_and_other_replies_are_wrong(kind: str):
    first, second = itertools.islice(task.problems(3, held_out=True, kind=kind), 2)
    assert not first.check("")
    assert not first.check(first.answer + " .")
    assert not first.check(first.answer[:-1])
    assert not first.check(second.answer)


def several(seed: int) -> task.Problem:
    return next(task.several(seed, held_out=bool(seed % 2)))


def parts(text: str) -> list[str]:
    """The texts behind "1. ", "2. ", ...: no part of the task has such a number at a line's beginning."""
    return re.split(r"(?:^|\n)\d\. ", text)[1:]


def numbered(texts: list[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def test_drawn_answers_to_several_are_right():
    for level in (0.0, 1.0):
        for problem in itertools.islice(task.several(1, held_out=False, level=level), 200):
            assert problem.kind == "several"
            assert problem.check(problem.answer), problem
            assert problem.check(f" {problem.answer}\n")
            assert len(parts(problem.prompt)) == len(parts(problem.answer)) >= 2
            assert numbered(parts(problem.answer)) == problem.answer


@given(seed=seeds, data=st.data())
@settings(max_examples=100, deadline=None)
def test_another_number_in_any_part_is_wrong(seed: int, data: st.DataObject):
    """Also of a part: its own number."""
    problem = several(seed)
    place = data.draw(st.sampled_from(list(re.finditer(r"\d+", problem.answer))))
    other = data.draw(st.integers(0, 99).filter(lambda number: str(number) != place[0]))
    assert not problem.check(replaced(problem.answer, place, str(other)))


@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_parts_that_are_swapped_missing_or_extra_are_wrong(seed: int, data: st.DataObject):
    problem = several(seed)
    said = parts(problem.answer)
    one, two = sorted(data.draw(st.permutations(range(len(said))))[:2])
    swapped = [*said[:one], said[two], *said[one + 1 : two], said[one], *said[two + 1 :]]
    lines = problem.answer.split(f"\n{two + 1}. ")
    assert problem.check(numbered(said))
    if said[one] != said[two]:
        assert not problem.check(numbered(swapped))
    for wrong in (
        numbered(said[:one] + said[one + 1 :]),
        numbered([*said[: one + 1], *said[one:]]),
        numbered([*said, said[one]]),
        numbered([*said[:one], "", *said[one + 1 :]]),
        f"\n{two + 2}. ".join(lines),  # right parts under other numbers
        "\n".join(said),  # without numbers
        said[one],
        "",
    ):
        assert not problem.check(wrong), wrong


def test_a_prompt_of_several_with_a_foreign_part_is_refused():
    shuffle, steps = "Shuffle these: ant, bat, cat.", "Go from 10 pens in 2 steps."
    good = task.Problem("several", f"1. {shuffle}\n2. {steps}", "")
    assert good.check("1. cat, ant, bat.\n2. 10 + 5 = 15\n15 + 5 = 20")
    for prompt, complaint in {
        f"1. {shuffle}\n2. Sing a song.": "Sing a song",
        f"1. Hello\n2. {steps}": "Hello",
        f"1. {shuffle}": "1. Shuffle",  # one is not several
        f"1. {shuffle}\n3. {steps}": "3. Go",
        f"{shuffle}\n2. {steps}": "2. Go",
        "": "''",
    }.items():
        for reply in ("", "1. cat, ant, bat.\n2. 10 + 5 = 15\n15 + 5 = 20"):
            with pytest.raises(ValueError, match=f"not a prompt of this kind: .*{complaint}"):
                task.Problem("several", prompt, "").check(reply)


def test_long_held_out_problems_are_the_ones_of_the_seed():
    stored = tiny.held_out(long=True)
    lines = "".join(json.dumps(dataclasses.asdict(problem)) + "\n" for problem in stored)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert digest == "c093077c6c66f897f49248c2cbb689e3f812727d7741fef27025d3320079f4a7"
    assert stored == task.draw_long_held_out()
    assert len({problem.prompt for problem in stored}) == len(stored) == 400
    tokenizer = require_tokenizer(load_tokenizer(EMBEDDED["tiny-llada"]))
    for problem in stored:
        assert problem.check(problem.answer)
        assert 2 <= len(parts(problem.prompt)) <= 7
        assert all(map(task.is_held_out, parts(problem.prompt)))
        assert 60 <= len(tokenizer(problem.answer)["input_ids"]) <= 120


def test_right_answers_that_were_not_drawn_are_accepted():
    steps = task.Problem("steps", "Go from 10 pens in 2 steps.", "")
    for a, b in itertools.product(range(1, 10), repeat=2):
        assert steps.check(f"10 + {a} = {10 + a}\n{10 + a} - {b} = {10 + a - b}")
    choose = task.Problem("choose", "Choose 3 of these in order: ant, bat, cat, dog, elk.", "")
    orders = itertools.permutations(["ant", "bat", "cat", "dog", "elk"], 3)
    assert sum(choose.check(f"I choose {', '.join(order)}.") for order in orders) == 10
    shuffle = task.Problem("shuffle", "Shuffle these: ant, bat, cat, dog. Put cat last.", "")
    orders = itertools.permutations(["ant", "bat", "cat", "dog"])
    assert sum(shuffle.check(f"{', '.join(order)}.") for order in orders) == 6
    code = task.Problem("code", "Write code: add 3.", "")
    assert code.check("def h(q):\n    w = q + 3\n    return w")
    assert code.check("def h(q):\n    q = q + 3\n    return q")
    assert not code.check("def h(q):\n    w = q + 3\n    return q")
    story = task.Problem("story", "Tell a story about Leo, 20 pens and 2 visits.", "")
    visits = [
        "Leo met Ben. Leo gave Ben 2 pens. Ben thanked Leo. Now Leo has 18 pens.",
        "Ben met Leo. Ben gave Leo 5 pens. Leo thanked Ben. So Leo has 23 pens.",
        "Then Leo came. Leo gave Leo 5 pens. Leo thanked Leo. So Leo has 23 pens.",
    ]
    assert story.check(f"Leo had 20 pens. {visits[0]} {visits[1]}")
    assert not story.check(f"Leo had 20 pens. {visits[1]} {visits[0]}")
    assert not story.check(f"Leo had 20 pens. {visits[0]} {visits[2]}")


def test_the_right_answer_is_computed_from_the_prompt_alone():
    math = task.Problem("math", "Ann has 12 pens. Ann gets 9. Ann drops 7. How many pens does Ann have?", "")
    assert math.check("12 + 9 = 21\n21 - 7 = 14\n#### 14")
    assert not math.check("12 + 9 = 21\n21 + 7 = 28\n#### 28")


def test_what_only_looks_right_is_wrong():
    steps = task.Problem("steps", "Go from 10 pens in 2 steps.", "")
    assert steps.check("10 + 5 = 15\n15 + 5 = 20")
    for total in ("015", "\u0661\u0665", "0" * 5000 + "15"):
        assert not steps.check(f"10 + 5 = {total}\n15 + 5 = 20")
    story = task.Problem("story", "Tell a story about Leo, 20 pens and 1 visit.", "")
    told = "Leo had 20 pens. Then {0} came. {0} gave Leo 5 pens. Leo thanked {0}. So Leo has 25 pens."
    assert story.check(told.format("Sue"))
    assert not story.check(told.format("Now"))
    code = task.Problem("code", "Write code: add 3.", "")
    assert code.check("def total(cat):\n    dog = cat + 3\n    return dog")
    assert not code.check("def total(in):\n    in = in + 3\n    return in")


def test_a_foreign_prompt_or_kind_is_refused():
    with pytest.raises(ValueError, match="riddle"):
        task.Problem("riddle", "", "").check("")
    for kind, prompt in {
        "code": "Write code: frob 3.",
        "math": "Ann has 12 pens. Ann eats 9. How many pens does Ann have?",
        "story": "Hello",
    }.items():
        with pytest.raises(ValueError, match=prompt.split(".")[0]):
            task.Problem(kind, prompt, "").check("")


def test_training_and_held_out_prompts_are_disjoint():
    training = {problem.prompt for problem in itertools.islice(task.problems(0, held_out=False), 3000)}
    assert not any(map(task.is_held_out, training))
    shipped = [problem.prompt for problem in tiny.held_out()]
    assert all(map(task.is_held_out, shipped))
    assert len(set(shipped)) == 500


def test_held_out_problems_are_the_ones_of_the_seed():
    lines = "".join(json.dumps(dataclasses.asdict(problem)) + "\n" for problem in tiny.held_out())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert digest == "c79f87eeacb5fc75bdd5330f73bc563663bea94a9c97a1e71cef26d3656bc62d"
    assert tiny.held_out() == task.draw_held_out()
    assert all(problem.check(problem.answer) for problem in tiny.held_out())
    assert {problem.kind for problem in tiny.held_out()[:40]} == set(KINDS)


def test_what_docs_ask_is_part_of_the_task():
    """Prompts in the README, in the docs, in help texts and in the notebooks are of a kind, to the letter."""
    root = Path(__file__).parents[2]
    places = ("README.md", "docs/*.md", "depcap_jax/cli/**/*.py", "notebooks/*.ipynb")
    openings = {"math": "[A-Z][a-z]+ has", "steps": "Go from", "choose": "Choose", "shuffle": "Shuffle"}
    openings |= {"story": "Tell a story", "code": "Write code"}
    tokenizer = require_tokenizer(load_tokenizer(EMBEDDED["tiny-llada"]))
    for place in places:
        prompts = [
            (kind, prompt)
            for path in root.glob(place)
            for kind, opening in openings.items()
            for prompt in re.findall(rf'"({opening} [^"\\]*)', path.read_text(encoding="utf-8"))
        ]
        assert prompts, place
        for kind, prompt in prompts:
            task.Problem(kind, prompt, "").check("")  # raises if it is not one of its kind
            assert tokenizer.unk_token_id not in tokenizer(prompt)["input_ids"]
