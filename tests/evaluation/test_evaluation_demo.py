"""`depcap demo`: its numbers are those of `evaluate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from depcap_jax.checkpoints.loading import load
from depcap_jax.cli import build_parser
from depcap_jax.cli.commands import depcap_demo
from depcap_jax.text.batching import Batcher, Decoded


class SlowTokenizer:
    """A tokenizer that takes its time."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self._wait()
        return self._tokenizer(*arguments, **settings)

    def decode(self, *arguments: Any, **settings: Any) -> str:
        self._wait()
        return self._tokenizer.decode(*arguments, **settings)

    def _wait(self) -> None:
        time.sleep(0.25)
        self.seconds += 0.25


def test_seconds_are_the_batchers_however_slow_the_tokenizer_is(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    model, tokenizer = load(checkpoint)
    slow = SlowTokenizer(tokenizer)
    decoded: list[Decoded] = []
    run = Batcher.run

    def watched(*arguments: Any, **settings: Any) -> Any:
        for batch in run(*arguments, **settings):
            decoded.extend(batch)
            yield batch

    monkeypatch.setattr(Batcher, "run", watched)
    monkeypatch.setattr(depcap_demo, "load_model", lambda _: (model, slow))
    words = ["--problems", "2", "--show", "1", "--gen-length", "16", "--batch-size", "2"]
    arguments = build_parser().parse_args(["demo", *words, "--recipes", "depcap"])
    arguments.run(arguments)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("depcap ")]
    tokens, seconds = sum(len(one.tokens) for one in decoded), sum(one.seconds for one in decoded)
    assert len(decoded) == 2
    assert tokens > 0
    assert line.split()[4] == f"{tokens / seconds:.0f}"
    assert seconds < slow.seconds
    assert slow.seconds >= 1.0  # two prompts and two answers at least
