"""The commands that talk: in this process, on a small checkpoint."""

from __future__ import annotations

import io
import json

import pytest

from depcap_jax.cli import build_parser

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
    assert page.stat().st_size > 0
