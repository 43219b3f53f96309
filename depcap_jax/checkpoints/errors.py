"""What can be wrong with a checkpoint on disk."""

from depcap_jax.models.config import ConfigError


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written; one line says what, where and what is allowed."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # names in a file may have line breaks


class CheckpointConfigError(CheckpointError, ConfigError):
    """A checkpoint whose config is incomplete, contradicts itself or asks for what is not implemented."""


def first_line(error: Exception) -> str:
    """What another library's error says, without the lines that only its authors can use."""
    return str(error).strip().split("\n", 1)[0]
