"""The command `depcap`: one module per command, and here what they share when they begin and end.

A command's module has `EXAMPLES`, `add_arguments(parser)` and `run(arguments)`, and is imported when it is
called. What `run` raises about its input becomes one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from depcap_jax import __version__
from depcap_jax.cli.interrupts import INTERRUPTED, comes_again, ends_at_once

COMMANDS = {
    "demo": "decode held-out problems with vanilla and DepCap, side by side",
    "generate": "answer prompts",
    "chat": "talk with a model; its answer fills in as it is decoded",
    "trace": "write a web page that plays a decode, pass by pass",
    "eval": "how right and how fast a decoder is on a task",
    "table": "the paper's Table 1: every decoder on one task",
    "sweep": "a decoder with one setting varied at a time: the paper's appendix",
    "lm-eval": "lm-eval's own command line, with the model `depcap` and the tasks `depcap_*` in it",
    "bench": "divide whole decodes by their own bare forward passes, and by an ideal program's, in one run",
    "convert": "convert a PyTorch checkpoint of LLaDA, Dream or a model like them, or back with --export",
    "info": "tell what a model is, the memory it needs, and whether a device has it",
    "completion": "print a shell's completion script",
}
"""What each command does."""
FAILED = 2


class Parser(argparse.ArgumentParser):
    """Complains in one line instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2."""
        self.exit(FAILED, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(names: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """The tree of commands, and the options of those with these names."""
    parser = Parser(
        prog="depcap",
        description="Fast decoding of diffusion language models (LLaDA, Dream) in JAX.",
        epilog="`depcap COMMAND --help` shows a command's options, with examples. "
        "Exit status: 0 done, 2 something is wrong with the input, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"depcap {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name, summary in COMMANDS.items():
        style = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=summary, description=summary, formatter_class=style)
        if name in names:
            module = importlib.import_module(f"depcap_jax.cli.commands.depcap_{name.replace('-', '_')}")
            command.epilog = f"examples:\n{module.EXAMPLES.strip(chr(10))}"
            module.add_arguments(command)
            command.set_defaults(run=module.run, prog=command.prog)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    # XLA and transformers greet people with lines they cannot use.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with ends_at_once():
            arguments = _parse(list(sys.argv[1:] if argv is None else argv))
            keep_compilations()
        with comes_again():
            return run_command(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


def _parse(words: list[str]) -> argparse.Namespace:
    """The command and its options; what follows `lm-eval` is another program's, but for a lone --help."""
    parser = build_parser(words[:1])
    if words[:1] != ["lm-eval"] or words[1:] in (["-h"], ["--help"]):
        return parser.parse_args(words)
    arguments = parser.parse_args(words[:1])
    arguments.words = words[1:]
    return arguments


def run_command(arguments: argparse.Namespace) -> int:
    """Calls the arguments' `run`; what it raises about its input is one line, after their `prog`."""
    from jax.errors import JaxRuntimeError

    from depcap_jax.decoding.state import DecodeError

    try:
        arguments.run(arguments)
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain when it closes it.
        assert sys.stdout is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, DecodeError, ModuleNotFoundError) as error:
        return _complain(arguments.prog, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(arguments.prog, f"{where}{error.strerror or error}")
    except (MemoryError, JaxRuntimeError) as error:
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _complain(arguments.prog, "out of memory; `depcap info` tells how much a batch needs")
    return 0


def keep_compilations() -> None:
    """Lets the next start reuse what this one compiles, in the user's cache folder.

    Only the command does so: a library must not write to places that its user did not name.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "depcap_jax" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # no home, or one that cannot be written to, only costs time
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_compilation_cache_max_size", 2**30)


def _complain(prog: str, message: str) -> int:
    from depcap_jax.cli.terminal import harmless

    print(f"{prog}: error: {harmless(' '.join(message.split()))}", file=sys.stderr)
    return FAILED
