"""Questions behind solved ones: what the prompts hold, and what is masked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from training import few_shot, vocabulary
from training.few_shot import STAGES, Stage

ID = {token: index for index, token in enumerate(vocabulary.tokens())}


@pytest.fixture(params=[STAGES[0], STAGES[-1]], ids=["first", "last"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """The shortest and the longest prompts."""
    return request.param


def test_prompts_grow_and_steps_cost_alike():
    assert [stage.prompt for stage in STAGES] == sorted(stage.prompt for stage in STAGES)
    assert STAGES[0].prompt < 60 < 200 <= STAGES[-1].prompt
    sizes = [stage.canvas * stage.rows for stage in STAGES]
    assert max(sizes) < 1.1 * min(sizes)


def test_conversations_are_turns_as_long_as_the_stage_wants(stage):
    for row, shown in itertools.islice(few_shot.conversations(vocabulary.build(), 3, stage), 40):
        assert stage.prompt <= len(row.prompt) <= stage.canvas - few_shot.ANSWER
        assert row.prompt[0] == ID[vocabulary.BOS]
        assert row.prompt[-1] == ID[vocabulary.ASSISTANT]
        assert row.prompt.count(ID[vocabulary.ASSISTANT]) == len(shown) + 1
        for begin, end in shown:
            assert row.prompt[begin - 1] == ID[vocabulary.ASSISTANT]
            assert row.prompt[end - 1] == ID[vocabulary.EOS]
            assert row.prompt[end] == ID[vocabulary.USER]


def test_answers_alone_are_masked_the_solved_ones_in_every_other_batch(stage):
    for number, batch in enumerate(itertools.islice(few_shot.batches(3, stage), 4)):
        assert batch.clean.shape == (stage.rows, stage.canvas)
        hidden = batch.noisy != batch.clean
        assert (batch.noisy[hidden] == ID[vocabulary.MASK]).all()
        assert (hidden == (batch.noisy == ID[vocabulary.MASK])).all()
        assert (batch.weight[~hidden] == 0).all()
        ahead = np.argmax(np.cumsum(batch.clean[:, ::-1] == ID[vocabulary.ASSISTANT], axis=1) > 0, axis=1)
        last = stage.canvas - ahead  # where the last answer begins
        before = hidden & (np.arange(stage.canvas) < last[:, None])
        assert before.any() == (number % 2 == 0)
        questions = (batch.clean == ID[vocabulary.USER]) | (batch.clean == ID[vocabulary.ASSISTANT])
        assert not hidden[questions].any()
