"""The command `depcap`: arguments, input, output, exit status; a few times as people start it, a process."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from depcap_jax.cli import COMMANDS, main

INSTALLED = shutil.which("depcap", path=str(Path(sys.executable).parent))
DEPCAP = [INSTALLED] if INSTALLED else [sys.executable, "-m", "depcap_jax.cli"]
ROOT = Path(__file__).parents[2]
QUESTION = "Ann has 12 apples. Ann buys 3. How many apples does Ann have?"
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
FAST = ("--recipe", "vanilla", "--gen-length", "32")


@dataclasses.dataclass
class Done:
    """What a command left: what it wrote, and its exit status."""

    stdout: str
    stderr: str


@pytest.fixture
def depcap(monkeypatch, capfd):
    """Runs the command in this process, as its entry point does, from the repository's folder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, stdin: str = "", status: int = 0) -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capfd.readouterr()
        try:
            ended = main(arguments)
        except SystemExit as exit_:  # argparse's way out
            ended = exit_.code or 0
        written = capfd.readouterr()
        assert ended == status, written.err
        return Done(written.out, written.err)

    return run


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """A user of their own, so that what is compiled is kept among the tests and nowhere else."""
    home = tmp_path_factory.mktemp("home")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XDG_"))}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "COLUMNS": "100"}


def start(*arguments: str, environment: dict[str, str], **settings: Any) -> subprocess.Popen[str]:
    """The command as people start it: a process."""
    return subprocess.Popen([*DEPCAP, *arguments], env=environment, cwd=ROOT, text=True, **settings)


def test_help_names_every_command(depcap):
    text = depcap("--help").stdout
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(depcap, command):
    text = depcap(command, "--help").stdout
    assert "examples:" in text
    assert f"depcap {command}" in text.split("examples:")[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["decode"], "'decode'"),
        (["generate"], "no prompt"),
        (["generate", "Hello!", "--file", "nowhere.txt"], "nowhere.txt: No such file"),
        (["generate", "Hello!", "--model", "nowhere"], "nowhere"),
        (["generate", "Hello!", "--model", "README.md"], "README.md is a file"),
        (["generate", "Hello!", "--model", "tests/golden/llada"], "tokenizer"),
        (["generate", "Hello!", "--recipe", "vanilla", "--tau-low", "0.5"], "'tau_low'"),
        (["generate", "Hello!", "--tau-low", "1.5"], "tau_low must be a number in [0, 1], got 1.5"),
        (["generate", "Hello!", "--gen-length", "0"], "gen_length"),
        (["generate", "Hello!", "--gen-length", "many"], "many"),
        (["generate", "Hello! " * 300], "prompt 0 has"),
        (["generate", "Hello!", "--watch", "--json"], "--watch"),
        (["generate", "Hello!", "--watch", "--stats"], "--watch"),
        (["generate", "--whole"], "no prompt"),
        (["generate", "caf\udce9"], "prompt 0 is not a text in UTF-8"),
        (
            ["generate", "Hello!", "--seed", "99999999999999999999"],
            "--seed must be an integer in [0, 4294967295]",
        ),
        (["generate", "Hello!", "--top-p", "0.5"], "--temperature"),
        (["eval", "--top-k", "5", "--limit", "1"], "--temperature"),
        (["generate", "Hello!", "--model", "[/x]"], "[/x]"),
        (["trace", "Hello!", "-o", "tests"], "tests is a folder"),
        (["table", "--recipes", "factor", "depcap"], "factor"),
        (["table", "--out", "README.md"], "README.md"),
        (["sweep", "--vary", "tau_low=[1]"], "'[1]'"),
        (["generate", "Hello!", "--batch-size", "0"], "batch_size"),
        (["chat", "--turns", "-1"], "--turns"),
        (["demo", "--problems", "501"], "--problems must be an integer in [1, 500], got 501"),
        (["demo", "--recipes", "best"], "best"),
        (["convert", "nowhere", "target"], "nowhere"),
        (["bench", "--batches", "0"], "--batches"),
        (
            ["bench", "--model", "tiny-llada", "--gen-length", "200"],
            "--gen-length must be an integer in [1, 128]",
        ),
        (["info", "--model", "tiny-llada", "--gen-length", "999"], "999"),
        (["completion", "fish"], "fish"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_status_two(depcap, arguments, complaint):
    done = depcap(*arguments, status=2)
    assert done.stdout == ""
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_generate_gives_what_the_library_gives(depcap, tmp_path):
    from depcap_jax import TextGenerator, load, recipe

    prompts = [QUESTION, "Shuffle these: cat, dog, owl, pig.", "Write code: add 3, times 2."]
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(prompts[1:]) + "\n\n", encoding="utf-8")
    options = ("--recipe", "confidence", "--threshold", "0.5", "--cache", "dual", "--gen-length", "64")
    done = depcap("generate", prompts[0], "--file", str(file), "--json", "--stats", *options)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    config = recipe("confidence", threshold=0.5, cache="dual", gen_length=64)
    expected = TextGenerator(*load("tiny-llada"), config).run(prompts)
    assert [line["prompt"] for line in found] == prompts
    assert [line["answer"] for line in found] == [reply.text for reply in expected]
    assert [line["nfe"] for line in found] == [reply.nfe for reply in expected]
    assert [tuple(line["commit_steps"]) for line in found] == [reply.commit_steps for reply in expected]
    tokens, passes = sum(len(r.tokens) for r in expected), sum(r.nfe for r in expected)
    assert f"{tokens} tokens in {passes} forward passes" in done.stderr


def test_standard_input_watching_and_a_line_a_prompt(depcap):
    text = depcap("generate", *FAST, stdin=QUESTION + "\n").stdout
    assert text.strip()
    assert depcap("generate", QUESTION, "--watch", *FAST).stdout == text
    assert depcap("generate", "--file", "-", "--whole", *FAST, stdin=QUESTION + "\n").stdout == text


def test_adablock_knows_the_line_break(depcap):
    assert depcap("generate", QUESTION, "--recipe", "adablock", "--gen-length", "32").stdout.strip()


def test_chat_answers_each_line(depcap):
    text = depcap("generate", QUESTION, *FAST).stdout
    talk = depcap("chat", *FAST, stdin=f"{QUESTION}\n\n/clear\n{QUESTION}\n/quit\nnever read\n").stdout
    assert talk == 2 * text


def test_demo_prints_answers_and_a_table(depcap):
    lines = depcap("demo", "--problems", "4", "--show", "1", "--gen-length", "32").stdout.splitlines()
    table = [line.split() for line in lines if line.startswith(("vanilla", "depcap"))]
    assert [row[0] for row in table] == ["vanilla", "depcap"]
    passes = [float(row[3]) for row in table]
    assert passes[1] < passes[0]
    assert sum("passes: " in line for line in lines) == 2


@pytest.mark.compiler
def test_bench_prints_a_ratio(depcap, monkeypatch):
    times = itertools.chain([0.0, 0.0], [3.0, 2.0], itertools.repeat(0.25))  # twice, compiled and timed
    monkeypatch.setattr("depcap_jax.inspect.overhead._seconds", lambda *_: next(times))
    options = ("--model", "tiny-llada", "--prompt-length", "16", "--gen-length", "16", "--repeats", "1")
    header, line = depcap("bench", *options, "--recipes", "vanilla", "--caches", "none").stdout.splitlines()
    assert header.split()[0] == "recipe"
    assert line.split()[:4] == ["vanilla", "none", "1", "16"]
    assert line.split()[4:6] == [f"{16 / 3:.1f}", "1.500"], "the whole decode over its own passes"


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_info_tells_sizes(depcap, name):
    text = depcap("info", "--model", name).stdout
    facts = json.loads(depcap("info", "--model", name, "--json", "--batch", "2", "--cache", "dual").stdout)
    config, memory = facts["config"], facts["memory"]
    assert f"{facts['parameters']:,}" in text
    positions = 2 * (facts["prompt_length"] + facts["gen_length"])
    per_position = 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"]
    assert memory["cache"] == positions * per_position * 4
    assert memory["weights"] == facts["parameters"] * 4
    assert memory["total"] == memory["weights"] + memory["cache"] + memory["work"]


def test_convert_and_back(depcap, tmp_path):
    source = ROOT / "depcap_jax" / "tiny" / "tiny-llada"
    assert "verified" in depcap("convert", str(source), str(tmp_path / "here"), "--verify").stdout
    depcap("convert", "--export", str(tmp_path / "here"), str(tmp_path / "back"))
    stored = [(folder / "model.safetensors").read_bytes() for folder in (source, tmp_path / "back")]
    assert stored[0] == stored[1]


@needs_bash
def test_completion_is_a_script_that_completes(depcap):
    script = depcap("completion", "bash").stdout
    ask = 'COMP_WORDS=(depcap generate --tau); COMP_CWORD=2; _shtab_depcap; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"--tau-low", "--tau-high"}


@needs_bash
def test_a_reader_that_leaves_early_is_no_error(environment):
    command = " ".join([*DEPCAP, "completion", "bash"])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "words"),
    [("depcap_jax.cli", ["info"]), ("depcap_jax.cli.commands.depcap_convert", ["source", "target"])],
)
def test_ctrl_c_while_modules_load_is_no_traceback(environment, heeds_ctrl_c, module, words):
    """Inside the first module that jaxlib's native code imports: an exception there aborts the process."""
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy._core.multiarray":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from {module} import main
sys.exit(main({words}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_ctrl_c_inside_a_callback_is_not_lost(depcap, monkeypatch, heeds_ctrl_c):
    class Dying:
        def __del__(self) -> None:
            raise KeyboardInterrupt  # Python cannot raise it from here

    def run(arguments) -> None:
        Dying()
        for _ in range(1000):
            time.sleep(0.001)

    monkeypatch.setattr("depcap_jax.cli.commands.depcap_info.run", run)
    done = depcap("info", status=130)
    assert (done.stdout, done.stderr.strip()) == ("", "interrupted")


def test_ctrl_c_ends_with_130_and_a_sane_terminal(environment, heeds_ctrl_c):
    import pty

    ours, theirs = pty.openpty()
    process = start(
        *("generate", *[QUESTION] * 200, "--watch", "--recipe", "vanilla", "--no-stop-at-eos"),
        environment={**environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    seen = b""
    while b"pass 3" not in seen:  # it decodes
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other end was closed
            break
    assert process.wait(timeout=60) == 130
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is left hidden"
    assert b"Traceback" not in seen


@pytest.mark.compiler
def test_what_is_compiled_is_kept_for_the_next_start(environment):
    """Two real starts: the second compiles nothing that the first one kept, and says the same."""
    folder = Path(environment["XDG_CACHE_HOME"]) / "depcap_jax" / "compiled"
    answers = []
    for _ in range(2):
        options = ("--recipe", "vanilla", "--gen-length", "8")
        process = start("generate", QUESTION, *options, environment=environment, stdout=subprocess.PIPE)
        answers.append(
            (process.communicate(timeout=300)[0], {p for p in folder.iterdir() if p.suffix != ".lock"})
        )
        assert process.returncode == 0
    assert answers[0][0] == answers[1][0] != ""
    kept, after = ({p.name for p in files if p.name.endswith("-cache")} for _, files in answers)
    assert kept
    assert after == kept
