"""A decode on the host: what the policies told, by name."""

from __future__ import annotations

import numpy as np

from depcap_jax.inspect.replay import Replay


def test_facts_of_one_name_are_told_apart():
    """Policies that tell a bare array have no name for it; one pass of two positions, by hand."""
    one, two = np.zeros((1, 2)), np.zeros(2, int)
    decode = Replay(
        nfe=1,
        tokens=two,
        commit_step=two,
        visible=2,
        confidence=one,
        guess=one,
        alternatives=one.T,
        alternative_confidence=one.T,
        blocks=(),
        partition={"value": np.array([3]), "reach": np.array([7]), "of_positions": one},
        select={"value": np.array([0.5])},
        cache={"width": np.array([16]), "value": np.array([True])},
    )
    assert decode.facts(1) == {
        "partition.value": 3,
        "reach": 7,
        "select.value": 0.5,
        "width": 16,
        "cache.value": True,
    }
