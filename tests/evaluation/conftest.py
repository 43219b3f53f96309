"""The guards of the sandbox, for the tests of this room."""

from __future__ import annotations

import pytest

from depcap_jax.evaluation.scoring.sandbox import (
    GUARDS,
    UNGUARDED,
    CodeExecutionError,
    find_guard,
    run_program,
)


@pytest.fixture(scope="session", params=GUARDS)
def guard(request: pytest.FixtureRequest) -> str:
    """Each guard that works here."""
    try:
        run_program("", "", guard=request.param)
    except CodeExecutionError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture(scope="session")
def anyhow() -> str:
    """A guard, if one works: for what does not depend on it."""
    try:
        return find_guard()
    except CodeExecutionError:
        return UNGUARDED
