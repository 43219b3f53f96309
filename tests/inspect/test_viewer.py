"""The page that plays a decode: what it holds, and how it behaves in a real browser."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_runs
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import depcap_jax as dc
from depcap_jax.cli.commands import depcap_trace as command
from depcap_jax.inspect import viewer
from depcap_jax.inspect.replay import replay
from depcap_jax.text.spelling import spell

EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
PROMPT = f"what {EVIL} & 'why'?"
NAMES = ["depcap", EVIL]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word an id for the golden model, every other one of them markup."""
    words = [f"w{index}" if index % 2 else f"{index}{EVIL}" for index in range(512)]
    words[509], words[7] = "<eos>", "\n"
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


def traced(name: str, gen_length: int, prompt_length: int, **settings: Any) -> dc.DecodeResult:
    config = dc.recipe(name, gen_length=gen_length, stop_at_eos=False, **settings)
    ids = np.random.default_rng(7).integers(0, 500, (1, max(prompt_length, 1)))
    model = golden_runs.model("llada")
    return dc.generate(model, ids, np.array([prompt_length]), config=config, trace=True)


@pytest.fixture(scope="module")
def results() -> list[dc.DecodeResult]:
    """Two decoders on one prompt."""
    settings = {"l_min": 3, "l_max": 8, "tau_low": 0.1, "tau_high": 0.5, "gamma": -9.0}
    return [traced("depcap", 24, 12, **settings), traced("vanilla", 24, 12, block_length=12)]


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
        assert [(b["start"], b["size"], b["begun"]) for b in run["blocks"]] == [
            (b.start, b.size, b.begun) for b in seen.blocks
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
        told = seen.cut_by(was)
        assert set(block["curves"]) == set(told) == {"influence", "uncertainty", "score"}
        for name, numbers in told.items():
            np.testing.assert_allclose(block["curves"][name], numbers, rtol=1e-3)
    assert vanilla["blocks"][0]["curves"] == {}
    assert vanilla["passes"][0]["pairs"] == {}
    for step, told in enumerate(depcap["passes"], start=1):
        assert told["pairs"] == {"conflicts": seen.pairs(step)["conflicts"].ravel().tolist()}
        assert told["facts"] == {"refresh": 1.0, "width": 12 + 24}
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
    with pytest.raises(ValueError, match=r"one name a result \(2 of them\)"):
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


# In a browser.


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-sync",
        "disable-background-networking",
        "disable-component-update",
        "window-size=1280,1000",
    ):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture
def opened(browser, results, tokenizer, tmp_path) -> Iterator[Any]:
    """The page of both decoders, from a file; it must leave the console empty."""
    path = tmp_path / "trace.html"
    viewer.save(path, *results, tokenizer=tokenizer, names=NAMES, prompt=PROMPT)
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []
    assert browser.title != "broken"


def texts(browser: Any, css: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)"
    return browser.execute_script(script, css)


def keys(browser: Any, *pressed: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*pressed).perform()


def hover(browser: Any, pane: int, position: int) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    chips = browser.find_elements("css selector", ".pane")[pane].find_elements("css selector", ".t")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chips[position])
    ActionChains(browser).move_to_element(chips[position]).perform()


def test_it_opens_finished_and_compares(opened, results, tokenizer):
    assert texts(opened, "#prompt") == [PROMPT]
    panes = opened.find_elements("css selector", ".pane")
    assert len(panes) == 2
    assert panes[0].rect["y"] == panes[1].rect["y"]
    passes = [int(result.nfe[0]) for result in results]
    assert texts(opened, ".nfe") == [f"{count} forward passes" for count in passes]
    assert texts(opened, ".badge") == [f"{round(100 * min(passes) / max(passes))} % of the passes"]
    assert opened.find_elements("css selector", ".t.open") == []
    shown = texts(opened, ".pane:first-child .t")
    readable = [piece.replace("\n", "↵") for piece in spell(replay(results[0]).tokens, tokenizer)]
    eos = replay(results[0]).tokens == 509
    assert shown == ["∎" if ended else piece for piece, ended in zip(readable, eos, strict=True)]
    assert any(EVIL in text for text in shown), "the run is to show markup as text"


def test_arrow_keys_and_the_slider_step(opened, results):
    seen, last = replay(results[0]), max(int(result.nfe[0]) for result in results)
    keys(opened, "\ue011")  # Home
    assert texts(opened, "#where") == [f"pass 0 / {last}"]
    assert len(opened.find_elements("css selector", ".pane:first-child .t.open")) == len(seen.tokens)
    for step in (1, 2, 3):
        keys(opened, "\ue014")  # right
        assert texts(opened, "#where") == [f"pass {step} / {last}"]
        left = np.count_nonzero((seen.commit_step == 0) | (seen.commit_step > step))
        assert len(opened.find_elements("css selector", ".pane:first-child .t.open")) == left
        fresh = opened.find_elements("css selector", ".pane:first-child .t.fresh")
        assert len(fresh) == seen.commits[step - 1]
        arcs = opened.find_elements("css selector", ".pane:first-child path[data-edge]")
        drawn = {arc.get_attribute("data-edge") for arc in arcs}
        assert drawn == {f"{i}-{j}" for i, j in seen.pairs(step)["conflicts"]}
    keys(opened, "\ue012")  # left
    assert texts(opened, "#where") == [f"pass 2 / {last}"]
    slide = "const s = document.getElementById('slider'); s.value = 5; s.dispatchEvent(new Event('input'))"
    opened.execute_script(slide)
    assert texts(opened, "#where") == [f"pass 5 / {last}"]


def test_play_runs_to_the_end_and_pauses(opened, results):
    from selenium.webdriver.support.ui import WebDriverWait

    last = max(int(result.nfe[0]) for result in results)
    button = opened.find_element("id", "play")
    button.click()
    assert button.text == "Pause"
    WebDriverWait(opened, 30).until(lambda _: texts(opened, "#where") not in ([f"pass 0 / {last}"],))
    button.click()
    assert button.text == "Play"
    stopped = texts(opened, "#where")
    assert opened.execute_async_script("setTimeout(arguments[0], 700)") is None
    assert texts(opened, "#where") == stopped
    button.click()
    WebDriverWait(opened, 60).until(lambda _: texts(opened, "#where") == [f"pass {last} / {last}"])
    assert button.text == "Play"


def test_a_token_tells_its_story(opened, results, tokenizer):
    """By pointer and by keyboard alike."""
    seen: Any = replay(results[0])
    position = seen.blocks[2].start + 1
    hover(opened, 0, position)
    by_pointer = texts(opened, "#token *")
    assert f"position {position}: pass {seen.commit_step[position]}, confidence" in by_pointer[1]
    found = texts(opened, "#token .alt span:first-child")
    expected = [tokenizer.decode([token]).replace("\n", "↵") for token in seen.alternatives[position]]
    assert found == expected
    boundary = opened.find_element("css selector", "#chart [data-boundary]")
    assert int(boundary.get_attribute("data-boundary")) == seen.blocks[2].size
    lines = opened.find_elements("css selector", "#chart [data-line]")
    told = seen.cut_by(seen.blocks[2])
    assert [line.get_attribute("data-line") for line in lines] == list(told)
    assert all(line.get_attribute("d").count("L") == len(told["score"]) - 1 for line in lines)
    opened.execute_script("document.querySelector('.answer').focus()")
    hover(opened, 0, 0)
    keys(opened, *["\ue015"] * position)  # down
    assert texts(opened, "#token *") == by_pointer


def test_tab_reaches_everything(opened):
    opened.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(7):
        keys(opened, "\ue004")  # Tab
        reached.append(
            opened.execute_script("return document.activeElement.id || document.activeElement.className")
        )
    assert reached == ["theme", "play", "back", "forth", "slider", "answer", "answer"]


def test_light_and_dark(opened):
    """Text on its background has a contrast of at least 7 in both."""
    contrast = """
      const rgb = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = colour => rgb(colour).map(linear)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const pane = document.querySelector('.pane'), a = light(getComputedStyle(pane).color),
        b = light(getComputedStyle(pane).backgroundColor);
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), b];
    """
    found = []
    for _ in range(2):
        found.append(opened.execute_script(contrast))
        opened.find_element("id", "theme").click()
    assert all(ratio > 7 for ratio, _ in found)
    assert abs(found[0][1] - found[1][1]) > 0.5


def test_a_long_answer_paints_at_once(browser, tokenizer, tmp_path):
    """1,024 tokens, two decoders: under 1 s to the first paint, under 5 MB."""
    long = [
        traced("depcap", 1024, 0, tau_low=0.1, tau_high=0.4, gamma=-9.0),
        traced("confidence", 1024, 0, threshold=0.3),
    ]
    path = Path(tmp_path) / "long.html"
    viewer.save(path, *long, tokenizer=tokenizer)
    assert path.stat().st_size < 5_000_000
    browser.get(path.as_uri())
    assert len(browser.find_elements("css selector", ".t")) == 2048
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    assert browser.execute_script(f"return {entry}.startTime") < 1000
    assert browser.get_log("browser") == []
