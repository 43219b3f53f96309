"""The two sides of the sandbox, each in a locked process of its own: a program, and its tests.

The tests ask across a socket, by pickles; the program's side answers in JSON. Plain values are copied; of all
others the tests get a `Lent`, to call, to hand back, to list, or to ask for an attribute. So the program
learns what its functions are called with, and never what is expected of them.
"""

import builtins
import json
import pickle
import socket
import sys
import types
from typing import IO, Any

from locks import lock_in

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict, bytes)}
_lent: list[Any] = []


def serve(tests: IO[bytes]) -> None:
    """The program's side: evaluates what the tests ask for, until they ask no more."""

    def pack(value: Any) -> Any:
        if getattr(value, "ndim", None) == 0:
            value = value.item()  # one of NumPy's numbers
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        for name, kind in _KINDS.items():
            if isinstance(value, kind):
                return {name: [pack(part) for part in (value.items() if kind is dict else value)]}
        _lent.append(value)
        return {"Lent": [len(_lent) - 1]}

    # Not `__main__`: what a program does when it is started by hand is not part of its tests.
    program = vars(sys.modules.setdefault("program", types.ModuleType("program")))
    while True:
        expression, values = pickle.load(tests)
        try:
            answer = json.dumps([True, pack(eval(expression, {"program": program, "_": values}))])
        except BaseException as error:  # also what is raised to get out: SystemExit, KeyboardInterrupt
            answer = json.dumps([False, f"{type(error).__name__}: {error}"])
        tests.write(answer.encode() + b"\n")
        tests.flush()


def examine(program: IO[bytes]) -> None:
    """The tests' side: runs the program and then its tests, and prints how that went."""

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, dict):
            return packed
        ((name, parts),) = packed.items()
        if name in _KINDS:
            return _KINDS[name]([unpack(part) for part in parts])
        return Lent(*parts) if name == "Lent" else complex(*parts)

    def ask(expression: str, *values: Any) -> Any:
        pickle.dump((expression, values), program)
        program.flush()
        fine, answer = json.loads(program.readline() or '[0, "ended early, or out of CPU time or memory"]')
        if fine:
            return unpack(answer)
        raise RuntimeError(answer)

    class Lent:
        """A value that stays with the program; equal to itself alone, whatever the program would say."""

        def __init__(self, number: int):
            vars(self)["_number"] = int(number)  # the program's word, and evaluated below

        def __reduce__(self) -> Any:
            return eval, (f"_lent[{self._number}]",)  # on the program's side

        def __call__(self, *values: Any, **named: Any) -> Any:
            return ask("_[0](*_[1], **_[2])", self, values, named)

        def __iter__(self) -> Any:
            return iter(ask("list(*_)", self))

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # what Python or NumPy asks for, to trust it
                raise AttributeError(name)
            return ask("getattr(*_)", self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            ask("setattr(*_)", self, name, value)

    class Names(dict):
        """The tests' own names, then Python's if the tests use others too, then the program's."""

        def __missing__(self, name: str) -> Any:
            return python[name] if name in python else ask("eval(*_, program)", name)

    ask("None")
    print("ready", flush=True)
    source, tests = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, None  # what tests print is not the verdict
    try:
        code, python = compile(tests, "<tests>", "exec"), vars(builtins)
        python = python if {*code.co_names} - {*python} else {}
        ask("exec(*_, program)", source)
        exec(code, Names())
        verdict = "passed"  # a reason is a line in quotes, whatever it says
    except BaseException as error:
        verdict = json.dumps(f"{type(error).__name__}: {error}".removeprefix("RuntimeError: ")[:400])
    print(verdict, file=out)


if __name__ == "__main__":
    lock_in(**json.loads(sys.argv[3]))
    channel: Any = socket.socket(fileno=int(sys.argv[2])).makefile("rwb")
    examine(channel) if sys.argv[1] == "tests" else serve(channel)
