"""The page that plays a decode: what it holds."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import golden_runs
import numpy as np
import pytest
from pages import EVIL, NAMES, PROMPT

from depcap_jax.cli.commands import depcap_trace as command
from depcap_jax.inspect import viewer
from depcap_jax.inspect.replay import replay
from depcap_jax.text.spelling import spell


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_holds_what_the_trace_says(results, tokenizer):
    page = viewer.page(*results, tokenizer=tokenizer, names=NAMES, prompt=PROMPT)
    data = data_of(page)
    assert data["prompt"] == PROMPT
    assert [run["name"] for run in data["runs"]] == NAMES
    for run, result in zip(data["runs"], results, strict=True):
        seen = replay(result)
        assert run["nfe"] == int(result.nfe[0])
        assert run["steps"] == result.commit_step[0].tolist()
        assert run["pieces"] == spell(seen.tokens, tokenizer)
        np.testing.assert_allclose(run["conf"], seen.commit_confidence, rtol=1e-3)
        assert [(b["start"], b["size"], b["first_pass"]) for b in run["blocks"]] == [
            (b.start, b.size, b.first_pass) for b in seen.blocks
        ]
        assert [entry[0] for position in run["alternatives"] for entry in position[:1]] == run["tokens"]
        # The packed guesses, read as the page reads them.
        raw, size = base64.b64decode(run["guesses"]), run["guess_bytes"] + 1
        records = [raw[at : at + size] for at in range(0, len(raw), size)]
        there = seen.guess >= 0
        expected = list(zip(seen.guess[there].tolist(), seen.confidence[there].tolist(), strict=True))
        assert len(records) == len(expected)
        for record, (guess, confidence) in zip(records, expected, strict=True):
            assert run["table"][int.from_bytes(record[:-1], "little")] == tokenizer.decode([guess])
            assert record[-1] == pytest.approx(255 * confidence, abs=0.51)
    depcap, vanilla = data["runs"]
    seen = replay(results[0])
    for block, was in zip(depcap["blocks"], seen.blocks, strict=True):
        told = seen.partition_signals(was)
        assert set(block["curves"]) == set(told) == {"influence", "uncertainty", "score"}
        for name, numbers in told.items():
            np.testing.assert_allclose(block["curves"][name], numbers, rtol=1e-3)
    assert vanilla["blocks"][0]["curves"] == {}
    assert vanilla["passes"][0]["pairs"] == {}
    for step, told in enumerate(depcap["passes"], start=1):
        assert told["pairs"] == {"conflicts": seen.pairs(step)["conflicts"].ravel().tolist()}
        assert told["facts"] == {"refresh": 1.0, "needed": 12 + 24, "width": 12 + 24}
    assert any(told["pairs"]["conflicts"] for told in depcap["passes"])


def test_no_token_is_markup(results, tokenizer):
    plain = viewer.page(*results, names=["a", "b"])
    evil = viewer.page(*results, tokenizer=tokenizer, names=NAMES, prompt=PROMPT, title=EVIL)
    for tag in ("<script", "</script", "<img", "<title"):
        assert evil.count(tag) == plain.count(tag), tag


def test_it_names_no_other_place(results):
    """But for the namespace of SVG, which is a name and not an address."""
    page = viewer.page(results[0]).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//\w+\.\w+|@import|url\(", page)


def test_bad_input(results, tokenizer):
    with pytest.raises(ValueError, match="at least one result"):
        viewer.page()
    with pytest.raises(ValueError, match=r"one name per result \(2 of them\)"):
        viewer.page(*results, names=["one"])
    with pytest.raises(ValueError, match="trace=True"):
        viewer.page(dataclasses.replace(results[0], trace=None))
    with pytest.raises(ValueError, match="row must be"):
        viewer.page(results[0], row=1)


def test_show_frames_the_same_page(results, tokenizer):
    pytest.importorskip("IPython", reason="needs the extra notebook")
    import html

    shown = viewer.show(results[0], tokenizer=tokenizer, prompt=PROMPT).data
    framed = re.search(r'srcdoc="([^"]*)"', shown)
    assert framed
    assert html.unescape(framed[1]) == viewer.page(results[0], tokenizer=tokenizer, prompt=PROMPT)


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory) -> Path:
    """The golden model with the tokenizer above."""
    folder = tmp_path_factory.mktemp("golden") / "llada"
    shutil.copytree(golden_runs.GOLDEN / "llada", folder)
    tokenizer.save_pretrained(folder)
    return folder


def depcap_trace(*given: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(given))


def test_the_command_writes_a_page(checkpoint, tmp_path, capsys):
    path, sizes = tmp_path / "trace.html", ("--gen-length", "16", "--l-max", "8")
    depcap_trace("w1 w3", "-o", str(path), "--model", str(checkpoint), "--compare", "vanilla", *sizes)
    data = data_of(path.read_text(encoding="utf-8"))
    assert data["prompt"] == "w1 w3"
    assert [run["name"] for run in data["runs"]] == ["depcap", "vanilla"]
    told = capsys.readouterr().out.splitlines()
    for line, run in zip(told[:2], data["runs"], strict=True):
        assert line.startswith(f"{run['name']}: {run['nfe']} forward passes")
    assert told[2] == f"wrote {path}"


def test_the_command_complains_before_it_decodes(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        depcap_trace("w1", "-o", str(tmp_path / "none" / "trace.html"), "--model", str(checkpoint))
    with pytest.raises(ValueError, match="has no setting 'threshold'"):
        depcap_trace("w1", "-o", str(tmp_path / "t.html"), "--model", str(checkpoint), "--threshold", "0.5")
