"""Questions behind solved ones: what the prompts hold, and what is masked."""

from __future__ import annotations

import itertools

import numpy as np

from training import few_shot, vocabulary

ID = {token: index for index, token in enumerate(vocabulary.tokens())}


def test_conversations_are_turns_of_at_least_200_tokens():
    for row, shown in itertools.islice(few_shot.conversations(vocabulary.build(), seed=3), 40):
        assert few_shot.PROMPT <= len(row.prompt) <= few_shot.CANVAS - few_shot.ANSWER
        assert row.prompt[0] == ID[vocabulary.BOS]
        assert row.prompt[-1] == ID[vocabulary.ASSISTANT]
        assert row.prompt.count(ID[vocabulary.ASSISTANT]) == len(shown) + 1
        for begin, end in shown:
            assert row.prompt[begin - 1] == ID[vocabulary.ASSISTANT]
            assert row.prompt[end - 1] == ID[vocabulary.EOS]
            assert row.prompt[end] == ID[vocabulary.USER]


def test_answers_alone_are_masked_the_solved_ones_in_every_other_batch():
    for number, batch in enumerate(itertools.islice(few_shot.batches(seed=3), 4)):
        hidden = batch.noisy != batch.clean
        assert (batch.noisy[hidden] == ID[vocabulary.MASK]).all()
        assert (hidden == (batch.noisy == ID[vocabulary.MASK])).all()
        assert (batch.weight[~hidden] == 0).all()
        ahead = np.argmax(np.cumsum(batch.clean[:, ::-1] == ID[vocabulary.ASSISTANT], axis=1) > 0, axis=1)
        last = few_shot.CANVAS - ahead  # where the last answer begins
        before = hidden & (np.arange(few_shot.CANVAS) < last[:, None])
        assert before.any() == (number % 2 == 0)
        questions = (batch.clean == ID[vocabulary.USER]) | (batch.clean == ID[vocabulary.ASSISTANT])
        assert not hidden[questions].any()
