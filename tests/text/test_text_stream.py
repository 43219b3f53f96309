"""An answer on its way: what each pass adds, and that the last one is what a run gives."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import halving_tokenizer
from small_models import small_model
from word_tokenizer import GREEDY, SAMPLING, word_prompts, word_tokenizer

from depcap_jax.text.generator import TextGenerator

LLADA = small_model("llada")
PROMPTS = [word_prompts()[0], *["w1"] * 3]  # on four rows, whose program other tests have compiled
KEY = jax.random.key(4)


@pytest.fixture(scope="module", params=[GREEDY, SAMPLING], ids=["greedy", "sampling"])
def streamed(request):
    """A generator, what it streams, and what a run gives."""
    generator = TextGenerator(LLADA, word_tokenizer(chat=True), request.param, batch_size=4)
    return generator, list(generator.stream(PROMPTS[0], key=KEY)), generator.run(PROMPTS, key=KEY)[0]


def test_a_stream_ends_as_a_run_does(streamed):
    _, partials, reply = streamed
    last = partials[-1]
    assert last.text == reply.text
    assert [partial.snapshot.nfe for partial in partials] == list(range(1, reply.nfe + 1))
    assert tuple(last.snapshot.commit_step[: len(reply.tokens)]) == reply.commit_steps
    for before, after in itertools.pairwise(partial.snapshot for partial in partials):
        settled = before.commit_step > 0
        assert (after.tokens[settled] == before.tokens[settled]).all()
        assert set(after.commit_step[~settled]) <= {0, after.nfe}
        assert after.nfe in after.commit_step
        assert (np.isnan(after.confidence) == (after.commit_step == 0)).all()
        assert after.block[0] <= np.argmax(after.commit_step == after.nfe) < after.block[1]


def test_what_is_committed_together_has_passed_the_threshold(streamed):
    """But for the best one, which always goes; so it is with drawn tokens and their own probabilities."""
    _, partials, _ = streamed
    parallel = [np.sort(s.confidence[s.commit_step == s.nfe])[:-1] for s in (p.snapshot for p in partials)]
    together = np.concatenate(parallel)
    assert len(together) > 0
    assert (together >= 0.3).all()


def test_confidence_is_the_models_probability_of_the_token(streamed, request):
    generator, partials, _ = streamed
    prompt, first = generator.encode(PROMPTS[0]), partials[0].snapshot
    canvas = jnp.asarray([[*prompt, *[LLADA.config.mask_token_id] * len(first.tokens)]])

    @jax.jit
    def predict(canvas: jax.Array) -> jax.Array:
        hidden, _ = LLADA.hidden(canvas)
        return jax.nn.softmax(LLADA.logits(hidden))

    probabilities = np.asarray(predict(canvas))[0, len(prompt) :]
    at = np.flatnonzero(first.commit_step)
    np.testing.assert_allclose(first.confidence[at], probabilities[at, first.tokens[at]], rtol=1e-4)
    likeliest = (first.tokens[at] == probabilities[at].argmax(-1)).all()
    assert likeliest == ("greedy" in request.node.name)  # one of the drawn tokens is not


@pytest.mark.parametrize("config", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_no_character_is_lost_whose_bytes_come_at_different_passes(config):
    generator = TextGenerator(LLADA, halving_tokenizer(), config, batch_size=4)
    (reply, *_) = generator.run(PROMPTS, key=KEY)
    *_, last = generator.stream(PROMPTS[0], key=KEY)
    assert last.text == reply.text
    # The first token's first byte and the last token's last one belong to no character; all others do.
    assert re.fullmatch("�[À-ʿ]+�", reply.text)
    assert len(reply.text) == len(reply.tokens) + 1
    assert len(set(reply.commit_steps)) > 1
