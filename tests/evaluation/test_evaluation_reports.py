from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from depcap_jax.cli import reports
from depcap_jax.cli.commands import depcap_eval as eval_command, depcap_sweep as sweep, depcap_table as table
from depcap_jax.cli.reports import parse_vary
from depcap_jax.decoding.recipes import CACHES
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run
from depcap_jax.evaluation.figures import plot_sweep, plot_table, require_matplotlib, save_figure
from depcap_jax.evaluation.grid import APPENDIX, appendix, sweep_decoders, table_decoders
from depcap_jax.evaluation.summary import COLUMNS, cells, failures, speed_up, summarise, to_csv, to_markdown


def finished(decoder: Decoder, seconds: float, right: tuple[float, ...] = (1.0, 0.0, 1.0, 1.0)) -> Run:
    records: list[dict[str, Any]] = [
        {"right": r, "tokens": 10, "seconds": seconds, "nfe": 5 + i, "block_sizes": [8, 16], "status": "OK"}
        for i, r in enumerate(right)
    ]
    return Run(decoder, {"summary": summarise(records, 2.5)}, Path("run.json"))


def test_summary():
    records: list[dict[str, Any]] = [
        {"right": 1.0, "tokens": 30, "seconds": 1.0, "nfe": 4, "block_sizes": [8, 24], "status": "OK"},
        {"right": 0.0, "tokens": 10, "seconds": 3.0, "nfe": 8, "block_sizes": [16], "status": "NON_FINITE"},
    ]
    assert summarise(records, 2.5) == {
        "problems": 2,
        "accuracy": 0.5,
        "accuracy_standard_error": pytest.approx(0.5 / 2**0.5),
        "nfe": 6.0,
        "tokens_per_pass": pytest.approx(40 / 12),
        "block_size": 16.0,
        "tokens": 40,
        "seconds": 4.0,
        "tokens_per_second": 10.0,
        "compile_seconds": 2.5,
        "failed": 1,
    }


def test_speed_up_is_against_vanilla_without_a_cache():
    cached = finished(Decoder("vanilla", {"cache": "dual"}), 2.0)
    vanilla, depcap = finished(Decoder("vanilla"), 4.0), finished(Decoder("depcap"), 1.0)
    assert speed_up(depcap, [cached, vanilla, depcap]) == 4.0
    assert speed_up(depcap, [cached, depcap]) is None
    assert speed_up(depcap, [depcap]) is None
    assert cells(depcap, [depcap])[COLUMNS.index("speed-up")] == ""


def test_table_decoders_are_those_of_the_paper():
    labels = [decoder.label for decoder in table_decoders(gen_length=256)]
    assert labels == [
        "vanilla",
        "confidence, block_length 16",
        "confidence, block_length 32",
        "confidence, block_length 64",
        "adablock",
        "depga",
        "cap, block_length 32",
        "depcap",
    ]
    both = table_decoders(["dual", "none", "dual"], gen_length=64)
    assert [decoder.cache for decoder in both] == ["none"] * 8 + ["dual"] * 8
    assert all(decoder.settings["gen_length"] == 64 for decoder in both)
    with pytest.raises(ValueError, match=r"cache must be one of 'none', .*'sparse', got 'all'"):
        table_decoders(["all"], gen_length=64)


def test_vary():
    assert parse_vary(["lambda=0.6,1", "L_max=16,16,32"], "depcap") == {
        "lambda_u": [0.6, 1],
        "l_max": [16, 32],
    }
    assert parse_vary(["cache=none,dual"], "vanilla") == {"cache": ["none", "dual"]}
    for text, complaint in (
        ("tau=1", "recipe 'depcap' has no setting 'tau'"),
        ("tau_low", "written NAME=VALUE,VALUE,..., got 'tau_low'"),
        ("tau_low=", "got 'tau_low='"),
    ):
        with pytest.raises(ValueError, match=complaint):
            parse_vary([text], "depcap")
    with pytest.raises(ValueError, match="tau_low is varied twice"):
        parse_vary(["tau_low=1", "tau_low=0.5"], "depcap")
    base = Decoder("depcap", {"gen_length": 64})
    lines = sweep_decoders(base, {"gamma": [-8, -16], "l_max": [32]})
    assert [(name, value) for name, value, _ in lines] == [("gamma", -8), ("gamma", -16), ("l_max", 32)]
    assert [decoder.settings for _, _, decoder in lines][1:] == [
        {"gen_length": 64, "gamma": -16},
        {"gen_length": 64, "l_max": 32},
    ]
    assert list(appendix("depcap", 4096)) == list(APPENDIX)
    assert appendix("vanilla", 512) == {"gen_length": [128, 256]}


def test_markdown_and_csv(tmp_path):
    runs = [finished(Decoder("vanilla"), 4.0), finished(Decoder("depcap", {"tau_low": 0.7}), 1.0)]
    lines = to_markdown(runs).splitlines()
    assert lines[0].startswith("| decoder | cache | accuracy | tokens/s | nfe | speed-up |")
    assert lines[3].startswith("| depcap, tau_low 0.7 | none | 75.0 ± 21.7 | 10.0 | 6.5 | 4.00 |")
    path = tmp_path / "table.csv"
    path.write_text(to_csv(runs))
    first, second = csv.DictReader(path.open())
    assert (first["tau_low"], second["tau_low"]) == ("", "0.7")
    assert float(second["speed_up"]) == 4.0
    assert failures(runs) == []


def test_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    decoders = [*table_decoders(["none", "dual"], gen_length=64), Decoder("own", {"cache": "OwnCache"})]
    figure = plot_table([finished(decoder, 1.0 + i) for i, decoder in enumerate(decoders)], "a table")
    accuracy, passes = figure.axes
    assert accuracy.get_ylabel() == "accuracy, %"
    assert accuracy.lines[1].get_xdata() == [5.0]
    assert passes.lines[1].get_ydata() == [6.5]
    lines = sweep_decoders(Decoder("depcap"), {"gamma": [-8, -16], "l_max": [32]})
    swept = plot_sweep([(name, value, finished(decoder, 1.0)) for name, value, decoder in lines], "a sweep")
    assert [axis.get_xlabel() for axis in swept.axes[:2]] == ["gamma", "l_max"]
    paths = save_figure(figure, tmp_path / "folder" / "table-0.5")
    assert [path.name for path in paths] == ["table-0.5.png", "table-0.5.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .depcap_jax\[plot\].*--no-plots"):
        require_matplotlib()


def test_commands_have_what_the_command_line_needs():
    for module in (eval_command, table, sweep):
        assert "depcap " in module.EXAMPLES


def test_the_lines_of_all_caches_stand_in_columns(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(reports, "evaluate", lambda subject, task, decoder, *_, **__: finished(decoder, 1.0))
    decoders = [Decoder("depcap", {"cache": cache}) for cache in CACHES]
    reports.run_all(cast(Any, SimpleNamespace(build=id)), cast(Any, None), decoders, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(CACHES)
    assert lines[0].index("accuracy") + len("accuracy") == lines[1].index(" ", lines[1].index("±") + 2)
    assert len({line.index("75.0") for line in lines[1:]}) == 1


def test_each_cache_has_a_marker_of_its_own():
    pytest.importorskip("matplotlib")
    runs = [finished(Decoder("depcap", {"cache": cache}), 1.0) for cache in CACHES]
    entries = plot_table(runs, "caches").legends[0].legend_handles[1:]  # behind that of the recipe
    assert len({cast(Any, entry).get_marker() for entry in entries}) == len(CACHES)
