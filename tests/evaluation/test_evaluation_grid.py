"""All policies crossed: which decoders, which of them nothing beats, accuracy under parallelism, the page."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import depcap_jax as dc
from depcap_jax.cli import main, reports
from depcap_jax.evaluation import accuracy_under_parallelism, cross_decoders, frontier, plot_frontier
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run
from depcap_jax.evaluation.frontier import score_families
from depcap_jax.evaluation.grid import USUAL
from depcap_jax.evaluation.grid_page import grid_page
from depcap_jax.evaluation.summary import speed_up, summarise

points = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=9)


def finished(recipe: str, passes: int, right: int, **chosen: Any) -> Run:
    """A run of four problems, 12 tokens each, so many of them right."""
    records: list[dict[str, Any]] = [
        {
            "right": float(i < right),
            "tokens": 12,
            "seconds": 2.0,
            "nfe": passes,
            "block_sizes": [8],
            "status": "OK",
        }
        for i in range(4)
    ]
    return Run(Decoder(recipe, chosen), {"summary": summarise(records, 1.0)}, Path(f"{recipe}{chosen}.json"))


def test_each_goes_with_the_usual_ones():
    decoders = cross_decoders(gen_length=64)
    pairs = {tuple(decoder.recipe.split("+")) for decoder in decoders}
    assert pairs == {
        (partition, select)
        for partition, select in itertools.product(dc.PARTITIONS, dc.SELECTS)
        if partition in USUAL or select in USUAL
    }
    assert set(USUAL) <= {*dc.PARTITIONS, *dc.SELECTS}
    assert len(decoders) == sum(len(dc.SELECTS[select].values) or 1 for _, select in pairs)
    assert len(decoders) < 200
    assert decoders[0].recipe == "fixed-32+top-one"  # what speed-ups are against
    assert speed_up(finished("a+b", 4, 4), [finished(decoders[0].recipe, 8, 4)]) == 1.0
    assert {decoder.settings["gen_length"] for decoder in decoders} == {64}
    assert len({str(decoder) for decoder in decoders}) == len(decoders)
    for decoder in decoders:
        needed: dict[str, Any] = {"delimiter_ids": (5,)} if "adablock" in decoder.recipe else {}
        decoder.change(**needed).build()


def test_what_is_named_is_crossed():
    every = [
        (len(dc.SELECTS[select].values) or 1) for _, select in itertools.product(dc.PARTITIONS, dc.SELECTS)
    ]
    assert len(cross_decoders(gen_length=64, full=True)) == sum(every)
    chosen = cross_decoders(["entropy"], ["frechet"], ["dual", "none"], gen_length=64)
    assert [(d.label, d.cache) for d in chosen] == [
        (f"entropy+frechet, delta {delta:g}", cache)
        for cache in ("none", "dual")
        for delta in (0.5, 0.25, 0.1)
    ]
    only = cross_decoders(selects=["frechet"], gen_length=64)
    assert {decoder.recipe for decoder in only} == {"fixed-32+frechet", "depga+frechet"}
    wrong: dict[str, Any]
    for wrong, complaint in (
        ({"partitions": ["depgaa"]}, "partition must be one of 'fixed-16', .*, got 'depgaa'"),
        ({"selects": ["depga"]}, "selection must be one of 'top-one', .*, got 'depga'"),
        ({"caches": ["all"]}, "cache must be one of 'none', .*, got 'all'"),
    ):
        with pytest.raises(ValueError, match=complaint):
            cross_decoders(**wrong, gen_length=64)


@given(points)
@settings(deadline=None)
def test_nothing_beats_what_is_on_the_frontier(places):
    runs = [finished(f"a+{index}", *place) for index, place in enumerate(places)]

    def beaten(place: tuple[int, int]) -> bool:
        return any(other != place and other[0] <= place[0] and other[1] >= place[1] for other in places)

    best = frontier(runs)
    assert {run.decoder.recipe for run in best} == {
        run.decoder.recipe for run, place in zip(runs, places, strict=True) if not beaten(place)
    }
    assert [run.summary["nfe"] for run in best] == sorted(run.summary["nfe"] for run in best)


def test_accuracy_under_parallelism():
    """By hand, and by NumPy's trapezoid."""
    assert accuracy_under_parallelism([(2.0, 80.0)], 80.0) == 160.0
    assert accuracy_under_parallelism([(2.0, 80.0)], 100.0) == 160.0  # the first point's share has no weight
    assert accuracy_under_parallelism([(4.0, 80.0), (1.0, 80.0)], 80.0) == 1 * 80 + 3 * 80
    both = accuracy_under_parallelism([(1.0, 80.0), (3.0, 76.0), (9.0, 74.9)], 80.0)  # the last lost over 5
    assert both == pytest.approx(80 + 2 * (80 + 76 * np.exp(-3 * 4 / 80)) / 2)
    rates, right = np.array([1.0, 2.5, 4.0, 7.0]), np.array([70.0, 69.0, 72.0, 65.0])
    weight = np.minimum(np.exp(-3 * (1 - right / 71.0)), 1.0)  # never above 1, also above the best
    expected = 70.0 + np.trapezoid(right * weight, rates)
    assert accuracy_under_parallelism(zip(rates, right, strict=True), 71.0) == pytest.approx(expected)
    assert accuracy_under_parallelism([(1.0, 0.0), (2.0, 0.0)], 0.0) == 0.0
    with pytest.raises(ValueError, match="at least one point"):
        accuracy_under_parallelism([], 80.0)


def test_families_share_a_recipe_and_a_cache():
    runs = [
        finished("a+b", 12, 4, x=1.0, cache="none"),
        finished("a+b", 6, 4, x=2.0, cache="none"),
        finished("a+b", 4, 4, x=1.0, cache="dual"),
        finished("a+c", 3, 2, cache="none"),
    ]
    assert score_families(runs) == pytest.approx(
        {("a+b", "none"): 100 + 100, ("a+b", "dual"): 300, ("a+c", "none"): 4 * 50}
    )


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_holds_every_run_and_names_no_other_place():
    evil = "</script><img src=x>"
    runs = [finished("a+b", 12, 3, x=1.0, cache="dual"), finished(evil, 3, 4)]
    page = grid_page(runs, f"a grid {evil}")
    data = data_of(page)
    assert data["title"] == f"a grid {evil}"
    first, second = data["runs"]
    assert first == {
        "partition": "a",
        "select": "b",
        "cache": "dual",
        "setting": "x 1",
        "accuracy": 75.0,
        "error": pytest.approx(100 * (0.75 * 0.25 / 4) ** 0.5),
        "passes": 12.0,
        "speed": 6.0,
        "aup": pytest.approx(75.0),
    }
    assert (second["partition"], second["setting"], second["aup"]) == (evil, "", 400.0)
    plain = grid_page(runs[:1], "a grid")
    for tag in ("<script", "</script", "<img"):
        assert page.count(tag) == plain.count(tag)
    addresses = plain.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//\w+\.\w+|@import|url\(", addresses)
    assert "default-src 'none'" in plain
    with pytest.raises(ValueError, match="at least one run"):
        grid_page([], "nothing")


def test_the_plot_names_what_is_not_beaten():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    runs = [finished("a+b", 12, 4, cache="none"), finished("c+d", 6, 3), finished("e+f", 9, 3, cache="dual")]
    figure = plot_frontier(runs, "a frontier")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["1. c+d (none)", "2. a+b (none)"]
    assert [[6.0, 75.0], [12.0, 100.0]] in [np.asarray(line.get_xydata()).tolist() for line in axes.lines]


def test_the_command_reports_what_was_done(tmp_path, monkeypatch, capsys):
    """Four runs; the third is interrupted, then all are asked for again."""
    words = ["table", "--all", "--partitions", "fixed-16", "--selects", "top-one", "cap", "--limit", "2"]
    words += ["--gen-length", "16", "--out", str(tmp_path), "--no-plots"]
    asked = []

    def evaluate(subject, task, decoder, folder, **_):
        asked.append(decoder.label)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return finished(decoder.recipe, 4, 4, **decoder.settings)

    monkeypatch.setattr(reports, "evaluate", evaluate)
    assert main(words) == 130
    assert "4 runs of 2 problems: 2 combinations" in capsys.readouterr().out
    (report,) = tmp_path.glob("grid-*.csv")
    assert len(list(csv.DictReader(report.open()))) == 2
    assert main(words) == 0
    assert asked[3:5] == asked[:2]
    (report,) = tmp_path.glob("grid-*.csv")  # the same report, whole
    rows = list(csv.DictReader(report.open()))
    assert [row["recipe"] for row in rows] == ["fixed-16+top-one", *["fixed-16+cap"] * 3]
    assert [row["tau_low"] for row in rows] == ["", "0.9", "0.8", "0.65"]
    assert {row["aup"] for row in rows} == {"300.0"}
    assert float(rows[0]["accuracy_standard_error"]) == 0.0
    table = report.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    assert table[0].endswith("| compile s | AUP |")
    assert table[2].endswith("| 1.0 | 300 |")
    assert len(data_of(report.with_suffix(".html").read_text(encoding="utf-8"))["runs"]) == 4


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--selects", "cap"], "--selects is for --all"),
        (["--full"], "--full is for --all"),
        (["--all", "--recipes", "depcap"], "leave out --recipes"),
    ],
)
def test_options_that_do_not_go_together(words, complaint, capsys):
    assert main(["table", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_the_time_that_remains():
    runs = [finished("a+b", 4, 4), finished("a+b", 4, 4)]  # 8 seconds and one of compilation each
    assert reports._remaining([], 10) == "1 of 10"
    assert reports._remaining(runs, 10) == "3 of 10, about 01:12 left"
