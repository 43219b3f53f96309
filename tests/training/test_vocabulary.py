"""The tokenizer of the embedded models, on the problems that come with the package."""

import pytest
from transformers import AutoTokenizer

from depcap_jax import tiny
from depcap_jax.checkpoints.loading import EMBEDDED
from training import vocabulary
from training.batches import encode
from training.masking import ANSWER_LENGTH


def test_lengths_fit_the_canvas():
    rows = encode(vocabulary.build(), tiny.held_out())
    assert max(len(row.prompt) for row in rows) <= 60
    answers = [len(row.answer) for row in rows]
    assert (min(answers), max(answers) < ANSWER_LENGTH) == (6, True)
    assert max(answers) > 70


def test_tokenizer_round_trip():
    encoder = vocabulary.build()
    assert len(vocabulary.tokens()) == encoder.get_vocab_size() < 300
    for problem in tiny.held_out():
        for text in (problem.prompt, problem.answer):
            ids = encoder.encode(text).ids
            assert encoder.decode(ids) == text
            assert vocabulary.SPECIAL.index(vocabulary.UNKNOWN) not in ids


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_embedded_models_have_this_tokenizer(name, tmp_path):
    vocabulary.save(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (EMBEDDED[name] / file).read_bytes() == (tmp_path / file).read_bytes()


def test_saved_tokenizer_renders_the_training_prompt(tmp_path):
    vocabulary.save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    specials = (loaded.eos_token, loaded.pad_token, loaded.mask_token, loaded.bos_token)
    assert specials == (vocabulary.EOS, vocabulary.EOS, vocabulary.MASK, vocabulary.BOS)
    for problem in tiny.held_out()[:20]:
        message = [{"role": "user", "content": problem.prompt}]
        ids = loaded.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        assert ids == encode(vocabulary.build(), [problem])[0].prompt
        assert loaded.decode(loaded(problem.answer).input_ids) == problem.answer
        assert (
            loaded.decode([*loaded(problem.answer).input_ids, 0, 0], skip_special_tokens=True)
            == problem.answer
        )
