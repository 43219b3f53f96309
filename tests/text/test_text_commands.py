"""The commands that talk: in this process, on a small checkpoint."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from pathlib import Path

import pytest
from small_models import small_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depcap_jax.checkpoints.loading import save
from depcap_jax.cli import build_parser, main

OPTIONS = ("--recipe", "confidence", "--block-length", "8", "--gen-length", "16", "--threshold", "0.3")


@pytest.fixture
def depcap(checkpoint, capsys, monkeypatch):
    """Runs a command and returns what it prints."""

    def run(command: str, *arguments: str, stdin: str = "") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        parsed = build_parser().parse_args([command, "--model", str(checkpoint), *OPTIONS, *arguments])
        parsed.run(parsed)
        return capsys.readouterr().out

    return run


def test_chat_draws_anew_at_every_turn(depcap):
    sampling = ("--temperature", "5", "--turns", "0")
    first, second = depcap("chat", *sampling, stdin="Ann\nAnn\n").splitlines()
    assert first != second
    assert depcap("chat", *sampling, stdin="Ann\nAnn\n").splitlines() == [first, second]
    assert depcap("chat", *sampling, "--seed", "1", stdin="Ann\n").splitlines() != [first]


def test_chat_remembers_what_was_said(depcap):
    alone, after = depcap("chat", "--turns", "1", stdin="Ann\nAnn\n").splitlines()
    assert depcap("chat", "--turns", "0", stdin="Ann\nAnn\n").splitlines() == [alone, alone]
    assert depcap("chat", "--turns", "1", stdin="Ann\n/clear\nAnn\n").splitlines() == [alone, alone]
    assert after != alone


def test_watching_draws_anew_for_every_prompt(depcap):
    first, second = depcap("generate", "Ann", "Ann", "--temperature", "5", "--watch").splitlines()
    assert first != second


def test_trace_tells_what_generate_tells(depcap, tmp_path):
    page = tmp_path / "page.html"
    counts, wrote = depcap("trace", "Ann", "-o", str(page)).splitlines()
    answer = json.loads(depcap("generate", "Ann", "--json"))
    assert counts == f"confidence: {answer['nfe']} forward passes, {len(answer['tokens'])} tokens"
    assert wrote == f"wrote {page}"
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    (run,) = json.loads(found[1])["runs"]
    assert (run["nfe"], run["visible"]) == (answer["nfe"], len(answer["tokens"]))


def test_special_tokens_are_text_unless_they_are_meant(depcap):
    """An end-of-text token in the prompt ends nothing; asked for, it is one token and not a dozen."""
    lengths = {
        (prompt, option): json.loads(depcap("generate", prompt, "--json", *option))["prompt_length"]
        for prompt in ("Ann", "Ann <|endoftext|>")
        for option in ((), ("--special-tokens",))
    }
    assert lengths["Ann", ()] == lengths["Ann", ("--special-tokens",)]
    assert lengths["Ann <|endoftext|>", ("--special-tokens",)] == lengths["Ann", ()] + 1
    assert lengths["Ann <|endoftext|>", ()] > lengths["Ann", ()] + 1


@pytest.fixture
def screen(monkeypatch):
    """Runs something that prints on a pseudo terminal of a size, and returns all that reached it."""

    def run(command, *arguments: str, columns: int, lines: int, **settings: str) -> str:
        seen: list[bytes] = []
        ours, theirs = os.openpty()

        def read() -> None:
            try:
                while piece := os.read(ours, 4096):
                    seen.append(piece)
            except OSError:  # the other end was closed
                return

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            patch.setattr("sys.stdout", terminal)
            for name, value in {"COLUMNS": columns, "LINES": lines, "TERM": "xterm"}.items():
                patch.setenv(name, str(value))
            command(*arguments, **settings)
        reader.join()
        os.close(ours)
        return b"".join(seen).decode().replace("\r\n", "\n")

    return run


def speaker(folder: Path, word: str) -> tuple[str, str]:
    """The option for a checkpoint whose every token is a word, `#` in it standing for its number."""
    tokens = {word.replace("#", str(index)): index for index in range(509)} | {"<eos>": 509, "<mask>": 510}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    names = {"eos_token": "<eos>", "mask_token": "<mask>", "chat_template": template}
    save(small_model("llada"), folder, tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names))
    return "--model", str(folder)


@pytest.fixture(scope="module")
def wordy(tmp_path_factory):
    return speaker(tmp_path_factory.mktemp("wordy") / "model", "word#-of-many-letters")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Every token would set a title, clear the screen and write over what stands there."""
    word = "\x1b]0;#\x07\x1b[2J\x9b2J\r\x08\x7f\x00w#\n\tx"
    return speaker(tmp_path_factory.mktemp("hostile") / "model", word)


@pytest.mark.parametrize(("columns", "lines"), [(100, 24), (30, 3), (9, 2)])
def test_an_answer_that_was_watched_stays_whole(depcap, screen, wordy, columns, lines):
    size = {"columns": columns, "lines": lines}
    answer = depcap("generate", "Ann", *wordy)
    assert len(answer) > 300
    watched = screen(depcap, "generate", "Ann", "--watch", *wordy, **size)
    assert watched.endswith(answer)
    assert "\x1b[1;32m" in watched, "nothing was seen on its way"
    talked = screen(depcap, "chat", *wordy, stdin="Ann\n", **size)
    assert talked.endswith(depcap("chat", *wordy, stdin="Ann\n"))


def test_no_escape_sequence_reaches_the_terminal(depcap, screen, hostile):
    own = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")  # what colours and moves: rich writes these and no others
    forbidden = re.compile(r"[^\n\t -~\xa0-\U0010ffff]")
    size = {"columns": 80, "lines": 24}
    line = depcap("generate", "Ann", "--json", *hostile)
    assert forbidden.findall(line) == []
    assert "\x1b[2J\x9b2J\r\x08\x7f\x00w" in json.loads(line)["answer"]
    plain = depcap("generate", "Ann", *hostile)
    assert "\n\tx" in plain
    assert "␛]0;" in plain
    for text in (
        plain,
        depcap("generate", "Ann", "--watch", *hostile),
        depcap("chat", *hostile, stdin="Ann\n"),
        screen(depcap, "generate", "Ann", *hostile, **size),
        own.sub("", screen(depcap, "generate", "Ann", "--watch", *hostile, **size).replace("\r", "")),
        own.sub("", screen(depcap, "chat", *hostile, stdin="Ann\n", **size).replace("\r", "")),
    ):
        assert re.findall(r"w\d+", text)
        assert forbidden.findall(text) == []
    assert "\x1b[2J" not in screen(depcap, "generate", "Ann", "--watch", *hostile, **size)


def test_no_escape_sequence_of_a_demo_or_a_complaint_reaches_the_terminal(hostile, capsys):
    few = ["--problems", "1", "--gen-length", "16", "--recipes", "confidence"]
    assert main(["demo", *hostile, *few, "--cache", "none"]) == 0
    assert main(["generate", "Ann", "--model", "no\x1b[2Jwhere"]) == 2
    written = capsys.readouterr()
    assert "␛]0;" in written.out
    assert "␛[2J" in written.err
    assert not set("\x1b\x9b\r\x08\x07") & set(written.out + written.err)
