"""This library's models for lm-eval, under the name `depcap`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]  # an extra
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]  # an extra
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]  # an extra
from lm_eval.utils import simple_parse_args_string  # pyright: ignore[reportMissingImports]  # an extra
from tqdm import tqdm

from depcap_jax.checkpoints.loading import load
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.state import Status
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.harness.likelihood import Estimate, Pair, are_greedy, log_likelihoods
from depcap_jax.evaluation.scoring.answers import cut_at
from depcap_jax.text.batching import Batcher, Decoded, answer_length
from depcap_jax.text.codec import Codec, require_tokenizer
from depcap_jax.text.templates import render_chat

_log = logging.getLogger("lm_eval.depcap")  # below the logger that its command line configures


@register_model("depcap")
class DepCapLM(LM):
    """A model and a decoder.

    Args:
      pretrained: the checkpoint: a folder, or the name of an embedded model.
      recipe: one of `depcap_jax.RECIPES`.
      dtype: of the weights; as stored by default.
      mask_token_id: this and the next, where the checkpoint does not tell it; as for `load`.
      predicts_next: whether the output at a position predicts the one after it.
      batch_size: requests, or Monte Carlo samples, computed together.
      max_batch_size: must be None: lm-eval's automatic batch sizes are not implemented.
      device: lm-eval always names one. JAX chooses its devices itself: set JAX_PLATFORMS to change that.
      chat: whether a prompt is a user's turn: None if the tokenizer has a chat template, whatever the folder
        is called. What `--apply_chat_template` has made is taken as it is, and so is the text of a
        log-likelihood.
      seed: for sampling and for the Monte Carlo estimate.
      mc_samples: how many masks a log-likelihood is estimated with.
      record: a file to append one JSON line per request to: text, nfe, block sizes and seconds, or a
        log-likelihood with its standard error.
      **settings: of the recipe, such as cache, gen_length or tau_low.

    Raises:
      ValueError: naming the setting that is unknown or out of range.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        recipe: str = "depcap",
        dtype: str | None = None,
        mask_token_id: int | None = None,
        predicts_next: bool | None = None,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        chat: bool | None = None,
        seed: int = 0,
        mc_samples: int = 128,
        record: str | None = None,
        **settings: Any,
    ):
        super().__init__()
        del device
        if pretrained is None:
            raise ValueError(
                "no model is named: --model_args pretrained=FOLDER, or the name of an embedded one"
            )
        if max_batch_size is not None or not str(batch_size).isdecimal():
            raise ValueError(
                f"batch_size must be an integer, got {batch_size!r}: none is chosen automatically"
            )
        check_integer("batch_size", int(batch_size), 1)
        check_integer("mc_samples", mc_samples, 1)
        check_integer("seed", seed, 0, 2**32 - 1)
        if chat not in (None, True, False):
            raise ValueError(f"chat must be True, False or None, got {chat!r}")
        if record is not None:
            Path(record).open("a").close()  # what cannot be written is said now
        # A wrong setting is an error before the model is loaded, and not ten minutes later.
        decoder = Decoder(recipe, {name: _plain(name, value) for name, value in settings.items()})
        if recipe != "adablock" or "delimiter_ids" in settings:
            decoder.build()
        self._model, tokenizer = load(
            pretrained, dtype=dtype, mask_token_id=mask_token_id, predicts_next=predicts_next
        )
        self._tokenizer: Any = require_tokenizer(tokenizer)
        # lm-eval hands over whole texts, with what a template wrote in them.
        self._codec = Codec(tokenizer, self._model.config.vocab_size, chat, special_tokens=True)
        default_length = answer_length(self._model.config.max_length)
        decoder = decoder if "gen_length" in settings else decoder.change(gen_length=default_length)
        self._config = decoder.build(tokenizer, predicts_next=self._model.config.predicts_next)
        self._pretrained, self._batch_size = str(pretrained), int(batch_size)
        self._seed, self._samples, self._record = seed, mc_samples, record
        self._templated: set[str] = set()
        self.estimates: list[Estimate] = []
        """Of the last call of `loglikelihood` or `loglikelihood_rolling`, in the order of its requests."""

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> DepCapLM:
        """What `--model_args` says goes before lm-eval's own options for batch size and device."""
        extra = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**extra, **arg_dict})

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> DepCapLM:
        """The same, from the text of `--model_args`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval tells caches of prompts apart by."""
        return self._pretrained.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, for lm-eval's records."""
        return self._tokenizer.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text; `generate_until` knows it again and does not wrap it once more."""
        text = render_chat(self._tokenizer, chat_history, add_generation_prompt=add_generation_prompt)
        self._templated.add(text)
        return text

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, each up to its first stop string."""
        if not requests:
            return []
        settings = [_GenerationSettings(request.args[1]) for request in requests]
        longest = max((chosen.max_tokens or 0 for chosen in settings), default=0)
        if longest > self._config.gen_length:
            _log.warning(
                "the task allows answers of %d tokens, the decoder gives %d: --model_args gen_length=%d",
                longest,
                self._config.gen_length,
                longest,
            )
        prompts = [self._encode(request.args[0], index) for index, request in enumerate(requests)]
        batcher = Batcher(self._model, self._config, batch_size=self._batch_size)
        batcher.check(prompts, "request")
        compile_seconds = batcher.compile(prompts)
        texts: dict[int, str] = {}
        done: list[Decoded] = []
        with tqdm(total=len(prompts), unit="request", disable=disable_tqdm) as bar:
            for batch in batcher.run(prompts, key=jax.random.key(self._seed)):
                done += batch
                for decoded in batch:
                    text = self._read(decoded, settings[decoded.index])
                    texts[decoded.index] = text
                    self.cache_hook.add_partial("generate_until", requests[decoded.index].args, text)
                bar.update(len(batch))
                bar.set_postfix_str(f"{_tokens_per_second(done):.1f} tokens/s")
        _log.info(
            "tokens per second %.1f, nfe %.1f, compilation %.1f s",
            _tokens_per_second(done),
            np.mean([decoded.nfe for decoded in done]),
            compile_seconds,
        )
        return [texts[index] for index in range(len(prompts))]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """LLaDA's Monte Carlo estimate for each continuation, and whether greedy decoding writes it."""
        pairs = [self._pair(*request.args) for request in requests]
        self.estimates = self._estimate(pairs, disable_tqdm)
        greedy = are_greedy(self._model, pairs, batch_size=self._batch_size)
        self._report()
        return [(estimate.value, same) for estimate, same in zip(self.estimates, greedy, strict=True)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The same for whole texts, in windows that have half a context before them."""
        windows = [self._windows(request.args[0]) for request in requests]
        estimates = iter(self._estimate([pair for pairs in windows for pair in pairs], disable_tqdm))
        self.estimates = [_total([next(estimates) for _ in pairs]) for pairs in windows]
        self._report()
        return [estimate.value for estimate in self.estimates]

    def _read(self, decoded: Decoded, settings: _GenerationSettings) -> str:
        """A request's answer, and its line in the record."""
        if decoded.status is not Status.OK:
            _log.warning("request %d: %s", decoded.index, decoded.status.message)
        text = cut_at(self._codec.decode(decoded.tokens[: settings.max_tokens]), settings.until)
        self._write(
            index=decoded.index,
            text=text,
            tokens=len(decoded.tokens),
            nfe=decoded.nfe,
            block_sizes=list(decoded.block_sizes),
            seconds=decoded.seconds,
            status=decoded.status.name,
        )
        return text

    def _encode(self, context: str, index: int) -> list[int]:
        if context in self._templated:
            return self._codec.encode_part(context)  # the template has written the special tokens
        return self._codec.encode_prompt(context, f"request {index}")

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=text not in self._templated)["input_ids"])

    def _pair(self, context: str, continuation: str) -> Pair:
        """Tokenised as one text, so that the seam is as the model has seen it in training."""
        if context in self._templated:
            return Pair(tuple(self._ids(context)), tuple(self._codec.encode_part(continuation)))
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        prefix, whole = self._ids(kept), self._ids(kept + continuation)
        if whole[: len(prefix)] == prefix and len(whole) > len(prefix):
            return Pair(tuple(prefix), tuple(whole[len(prefix) :]))
        return Pair(tuple(prefix), tuple(self._codec.encode_part(continuation)))

    def _windows(self, text: str) -> list[Pair]:
        lead, ids = self._ids(""), self._codec.encode_part(text)
        half = self._model.config.max_length // 2
        every = [*lead, *ids]
        starts = range(len(lead), len(every), half)
        return [Pair(tuple(every[max(0, s - half) : s]), tuple(every[s : s + half])) for s in starts]

    def _estimate(self, pairs: Sequence[Pair], disable_tqdm: bool) -> list[Estimate]:
        with tqdm(unit="sample", disable=disable_tqdm or None) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            return log_likelihoods(
                self._model,
                pairs,
                samples=self._samples,
                batch_size=self._batch_size,
                seed=self._seed,
                progress=show,
            )

    def _report(self) -> None:
        errors = [estimate.standard_error for estimate in self.estimates]
        if errors:
            _log.info(
                "Monte Carlo standard error: mean %.3g, largest %.3g nats", np.mean(errors), max(errors)
            )
        for index, estimate in enumerate(self.estimates):
            self._write(index=index, loglikelihood=estimate.value, standard_error=estimate.standard_error)

    def _write(self, **line: Any) -> None:
        if self._record is not None:
            with Path(self._record).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


class _GenerationSettings:
    """What a task asks of a generation; whatever cannot be honoured is an error."""

    def __init__(self, given: Mapping[str, Any]):
        settings = dict(given)
        until = settings.pop("until", [])
        self.until: list[str] = [until] if isinstance(until, str) else list(until or [])
        self.max_tokens: int | None = settings.pop("max_gen_toks", None)
        if self.max_tokens is not None:
            check_integer("max_gen_toks", self.max_tokens, 1)
        sampling = settings.pop("do_sample", False), settings.pop("temperature", None)
        if sampling[0] or sampling[1]:
            raise ValueError(
                f"the task asks for do_sample={sampling[0]}, temperature={sampling[1]}; "
                "sampling is the decoder's: --model_args temperature=..."
            )
        if settings:
            raise ValueError(
                f"generation settings {', '.join(settings)} are unknown; a decoder's are --model_args"
            )


def _plain(name: str, value: Any) -> Any:
    """A setting as `recipe` wants it: lm-eval's command line has no lists."""
    if name != "delimiter_ids":
        return value
    parts = value if isinstance(value, (list, tuple)) else str(value).split("+")
    if not all(str(part).isdecimal() for part in parts):
        raise ValueError(f"delimiter_ids must be ids joined by +, such as 198+271, got {value!r}")
    return tuple(int(part) for part in parts)


def _tokens_per_second(done: Sequence[Decoded]) -> float:
    return sum(len(decoded.tokens) for decoded in done) / sum(decoded.seconds for decoded in done)


def _total(parts: Sequence[Estimate]) -> Estimate:
    error = np.sqrt(sum(part.standard_error**2 for part in parts))
    return Estimate(sum(part.value for part in parts), float(error))
