"""The task of the embedded models: its checkers, its split, its tokenizer."""

import dataclasses
import hashlib
import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from depcap_jax import tiny
from depcap_jax.tiny import task, tokenizer
from depcap_jax.tiny.batches import ANSWER_LENGTH, encode

KINDS = list(task.KINDS)
seeds = st.integers(0, 2**32 - 1)


def sample(seed: int, kind: str) -> task.Problem:
    return next(task.problems(seed, held_out=bool(seed % 2), kind=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_answers_are_right(kind: str):
    for level in (0.0, 0.5, 1.0):
        for problem in itertools.islice(task.problems(1, held_out=False, kind=kind, level=level), 300):
            assert problem.check(problem.answer), problem
            assert problem.check(f" {problem.answer}\n")


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_another_number_is_wrong(kind: str, seed: int, data: st.DataObject):
    problem = sample(seed, kind)
    numbers = list(re.finditer(r"\d+", problem.answer))
    if not numbers:
        return
    found = data.draw(st.sampled_from(numbers))
    other = data.draw(st.integers(0, 99).filter(lambda n: n != int(found[0])))
    assert not problem.check(problem.answer[: found.start()] + str(other) + problem.answer[found.end() :])


@pytest.mark.parametrize("kind", ["choose", "shuffle", "story", "code"])
@given(seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_another_name_in_one_place_is_wrong(kind: str, seed: int, data: st.DataObject):
    problem = sample(seed, kind)
    names = {"story": task.NAMES, "code": list("abcxyz")}.get(kind, ["zebra"])
    # The one place where another name is right is a function's own name, which nothing else mentions.
    places = {"story": rf"\b({'|'.join(task.NAMES)})\b", "code": r"(?<!def )\b[a-z]\b"}.get(
        kind, r"\b[a-z]+\b"
    )
    found = data.draw(st.sampled_from(list(re.finditer(places, problem.answer))))
    other = data.draw(st.sampled_from([name for name in names if name != found[0]]))
    assert not problem.check(problem.answer[: found.start()] + other + problem.answer[found.end() :])


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


def test_right_answers_that_were_not_drawn_are_accepted():
    steps = task.Problem("steps", "Go from 10 to 20 in 2 steps.", "")
    assert [steps.check(f"10 + {a} = {10 + a}\n{10 + a} + {10 - a} = 20") for a in range(4, 7)] == [True] * 3
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
    math = task.Problem(
        "math", "Ann has 12 pens. Ann gets 3 bags of 4. Ann drops 7. How many pens does Ann have?", ""
    )
    assert math.check("3 * 4 = 12\n12 + 12 = 24\n24 - 7 = 17\n#### 17")


def test_a_foreign_prompt_or_kind_is_refused():
    with pytest.raises(ValueError, match="riddle"):
        task.Problem("riddle", "", "").check("")
    with pytest.raises(ValueError, match="Hello"):
        task.Problem("code", "Hello", "").check("")


def test_training_and_held_out_prompts_are_disjoint():
    training = {problem.prompt for problem in itertools.islice(task.problems(0, held_out=False), 3000)}
    assert not any(map(task.is_held_out, training))
    shipped = [problem.prompt for problem in tiny.held_out()]
    assert all(map(task.is_held_out, shipped))
    assert len(set(shipped)) == 500


def test_held_out_problems_are_the_ones_of_the_seed():
    lines = "".join(json.dumps(dataclasses.asdict(problem)) + "\n" for problem in tiny.held_out())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert digest == "a3a734852d91bc915c20479bd6737a4c112db4971c0007429e33598e87be3469"
    assert tiny.held_out() == task.draw_held_out()
    assert all(problem.check(problem.answer) for problem in tiny.held_out())
    assert {problem.kind for problem in tiny.held_out()[:40]} == set(KINDS)


def test_lengths_fit_the_canvas():
    rows = encode(tokenizer.build(), tiny.held_out())
    assert max(len(row.prompt) for row in rows) <= 60
    answers = [len(row.answer) for row in rows]
    assert (min(answers), max(answers) < ANSWER_LENGTH) == (8, True)
    assert max(answers) > 70


def test_tokenizer_round_trip():
    encoder = tokenizer.build()
    assert len(tokenizer.vocabulary()) == encoder.get_vocab_size() < 300
    for problem in tiny.held_out():
        for text in (problem.prompt, problem.answer):
            ids = encoder.encode(text).ids
            assert encoder.decode(ids) == text
            assert tokenizer.SPECIAL.index(tokenizer.UNKNOWN) not in ids


def test_saved_tokenizer_renders_the_training_prompt(tmp_path):
    tokenizer.save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    specials = (loaded.eos_token, loaded.pad_token, loaded.mask_token, loaded.bos_token)
    assert specials == (tokenizer.EOS, tokenizer.EOS, tokenizer.MASK, tokenizer.BOS)
    for problem in tiny.held_out()[:20]:
        message = [{"role": "user", "content": problem.prompt}]
        ids = loaded.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        assert ids == encode(tokenizer.build(), [problem])[0].prompt
        assert loaded.decode(loaded(problem.answer).input_ids) == problem.answer
        assert (
            loaded.decode([*loaded(problem.answer).input_ids, 0, 0], skip_special_tokens=True)
            == problem.answer
        )
