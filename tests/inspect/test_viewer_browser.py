"""The page that plays a decode, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import EVIL, NAMES, PROMPT, traced

from depcap_jax.inspect import viewer
from depcap_jax.inspect.replay import replay
from depcap_jax.text.spelling import spell

pytestmark = pytest.mark.browser


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
    counts = [f"{int(result.lengths[0])} tokens" for result in results]
    assert texts(opened, ".facts li:nth-child(2)") == counts, "as many as a reader sees"
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
    told = seen.partition_signals(seen.blocks[2])
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


@pytest.mark.compiler
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
