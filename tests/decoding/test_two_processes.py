"""A batch that spans two processes: no process sees all of the prompts, and none asks for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_two_processes_give_the_answers_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    program = Path(__file__).with_name("two_processes.py")
    pair = [
        subprocess.Popen(
            [sys.executable, str(program), port, str(index)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for process in pair:
            out, err = process.communicate(timeout=300)
            said = [line for line in out.splitlines() if not line.startswith("[Gloo]")]
            assert said == ["split: same", "status: own rows", "whole: same"], err[-2000:]
    finally:
        for process in pair:
            process.kill()
