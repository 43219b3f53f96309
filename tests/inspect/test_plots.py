"""What a figure draws is what the trace says."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_models import small_model
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import depcap_jax as dc
from depcap_jax.inspect import plots
from depcap_jax.inspect.replay import replay

matplotlib = pytest.importorskip("matplotlib", reason="needs the extra plot")
matplotlib.use("agg")

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = np.array([5, 12])
PROMPTS = np.random.default_rng(7).integers(0, 500, (2, 16))


@pytest.fixture(scope="module")
def result() -> dc.DecodeResult:
    settings = {"l_min": 3, "l_max": 8, "tau_low": 0.1, "tau_high": 0.5, "gamma": -9.0}
    config = dc.recipe("depcap", gen_length=24, stop_at_eos=False, **settings)
    return dc.generate(small_model("llada"), PROMPTS, LENGTHS, config=config, trace=True)


@pytest.fixture(scope="module")
def fixed() -> dc.DecodeResult:
    config = dc.recipe("confidence", gen_length=24, block_length=10, threshold=0.3)
    return dc.generate(small_model("llada"), PROMPTS, LENGTHS, config=config, trace=True)


def panels(figure: Figure) -> list[Any]:
    return list(figure.axes)


def with_gid(axes: Any, gid: str) -> list[Any]:
    return axes.findobj(lambda artist: artist.get_gid() == gid)


def test_decode_map(result):
    seen = replay(result, 1)
    axes = panels(plots.decode_map(result, 1))[0]
    (image,) = axes.images
    drawn = image.get_array()
    np.testing.assert_array_equal(drawn.mask, np.isnan(seen.confidence[:, : seen.reach]))
    np.testing.assert_array_equal(drawn.filled(-1), np.nan_to_num(seen.confidence[:, : seen.reach], nan=-1))
    (commits,) = with_gid(axes, "commits")
    assert {tuple(point) for point in commits.get_offsets().data.astype(int).tolist()} == {
        (position, step) for position, step in enumerate(seen.commit_step.tolist()) if step
    }
    outlines = [(p.get_x() + 0.5, p.get_width(), p.get_y() + 0.5) for p in with_gid(axes, "block")]
    assert outlines == [(block.start, block.size, block.first_pass) for block in seen.blocks]
    # One block ends where the next begins, and the last one with the last pass.
    bottoms = [p.get_y() + p.get_height() + 0.5 for p in with_gid(axes, "block")]
    assert bottoms == [*(block.first_pass for block in seen.blocks[1:]), seen.nfe + 1]


def test_signals(result):
    number = 2
    seen = replay(result, 1)
    block = seen.blocks[number]
    told = seen.partition_signals(block)
    above, below = panels(plots.signals(result, number, 1))
    drawn = {line.get_label(): line for line in [*above.lines, *below.lines]}
    for label, values in (
        ("influence $I_k$", told["influence"]),
        ("uncertainty $H_k$", told["uncertainty"]),
        ("score $S_k$", told["score"]),
    ):
        np.testing.assert_array_equal(drawn[label].get_ydata(), values)
        assert drawn[label].get_xdata()[0] == block.start
    for axes in (above, below):
        (boundary,) = with_gid(axes, "boundary")
        assert boundary.get_xdata() == [block.end - 0.5] * 2


def test_conflict_graph(result):
    seen = replay(result, 1)
    step = max(range(1, seen.nfe + 1), key=lambda step: len(seen.pairs(step)["conflicts"]))
    edges = seen.pairs(step)["conflicts"]
    assert len(edges) > 0
    above, below = panels(plots.conflicts(result, step, 1))
    arcs = {patch.get_gid(): patch for patch in above.patches}
    assert set(arcs) == {f"{i}-{j}" for i, j in edges}
    for i, j in edges:
        assert arcs[f"{i}-{j}"].get_center()[0] == (i + j) / 2
        assert arcs[f"{i}-{j}"].get_width() == j - i
    marks = {collection.get_label(): collection.get_offsets().data for collection in below.collections}
    taken = np.flatnonzero(seen.commit_step == step)
    np.testing.assert_array_equal(marks["committed"][:, 0], taken)
    np.testing.assert_allclose(marks["committed"][:, 1], seen.confidence[step - 1, taken])
    left = np.flatnonzero(np.isfinite(seen.confidence[step - 1]) & (seen.commit_step != step))
    np.testing.assert_array_equal(marks["left open"][:, 0], left)


def test_progress(result):
    seen = replay(result, 0)
    left, right = panels(plots.progress(result))
    assert [bar.get_height() for bar in left.patches] == [block.size for block in seen.blocks]
    assert [bar.get_height() for bar in right.patches] == seen.commits.tolist()
    (mean,) = with_gid(right, "mean")
    assert mean.get_ydata()[0] == pytest.approx((seen.commit_step > 0).sum() / seen.nfe)


def test_tokens_are_written_below_their_positions(result):
    seen = replay(result, 1)
    ended = int(seen.tokens[3])  # stands in for the end of the text: the model never writes it
    words = {("<eos>" if token == ended else f"w{token}"): token for token in range(512)}
    encoder = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    encoder.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, eos_token="<eos>")
    axes = panels(plots.decode_map(result, 1, tokenizer=tokenizer))[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["∎" if token == ended else f"w{token}" for token in seen.tokens[: seen.reach]]


def test_figures_are_not_left_open(result):
    from matplotlib import pyplot

    plots.progress(result)
    assert pyplot.get_fignums() == []


def test_what_cannot_be_drawn(result, fixed):
    with pytest.raises(ValueError, match="no signals to draw"):
        plots.signals(fixed)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.conflicts(fixed, 1)
    with pytest.raises(ValueError, match=r"block must be an integer in \[0, "):
        plots.signals(result, 99)
    with pytest.raises(ValueError, match=r"step must be an integer in \[1, "):
        plots.conflicts(result, 0)
    for draw in (plots.decode_map, plots.progress):
        with pytest.raises(ValueError, match="trace=True"):
            draw(dataclasses.replace(result, trace=None))


def test_without_matplotlib_the_extra_is_named(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "depcap_jax\[plot\]"'):
        plots.progress(result)
