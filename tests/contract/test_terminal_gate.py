"""All that stoker writes to a terminal passes `text.decode.printable`: only these modules write by themselves, for these reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITERS = {
    "cli/common.py": "`say` and `say_json`, which everything else calls; hands stdout to the console view",
    "cli/main.py": "the help and the version, which nobody else wrote, before anything is imported; how the streams encode",
    "cli/replay.py": "takes back the line that says what is read",
    "cli/metrics.py": "some MB/s of JSON, which passes `ascii_json`",
    "cli/export.py": "rows of CSV, each cell passes the gate; a chart, whose title does",
    "cli/scaling.py": "rows of CSV; the only text in them, a run's id, passes the gate",
    "cli/observe_target.py": "opens the terminal as stdin, where a pipe is watched",
    "cli/start_run.py": "hands stdout to the console view",
    "views/tui/app.py": "title, bell and notice of the desktop, which passed the gate in `terminal_signs`",
    "views/headless/console.py": "the level in a color of ours before a line that passed the gate",
    "keeper/__main__.py": "keeper.log: each line passes the gate",
    "keeper/process/launcher.py": "a pipe to the keeper",
}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
ASKED = {"isatty", "fileno", "flush"}
"""What may be asked of a stream anywhere."""


def writes(tree: ast.Module) -> Iterator[ast.AST]:
    """Each place that prints, or that hands a stream of the process to something but `say`."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute() as stream, attr=attr) if attr in ASKED:
                harmless.add(stream)
            case ast.Call(func=ast.Name(id="say"), keywords=keywords):
                harmless |= {each.value for each in keywords if each.arg == "file"}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="print") | ast.Attribute(attr="print" | "print_exc" | "print_exception")
            ):
                yield node
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os"), attr="write"),
                args=[ast.Constant(value=1 | 2), *_],
            ):
                yield node
            case ast.Attribute(value=ast.Name(id="sys"), attr=attr) if (
                attr in STREAMS and node not in harmless
            ):
                yield node
            case ast.ImportFrom(module="sys", names=names) if STREAMS & {each.name for each in names}:
                yield node
            case ast.Constant(value="/dev/tty"):
                yield node


def test_only_known_modules_write_to_a_terminal() -> None:
    package = ROOT / "supervisor"
    found: dict[str, list[int]] = {}
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        if name.startswith(("instrument/", "faults/")):
            continue  # in the user's process: tests/instrument look at what it prints
        lines = [getattr(node, "lineno", 0) for node in writes(ast.parse(path.read_text(encoding="utf-8")))]
        if lines:
            found[name] = lines
    unknown = {name: lines for name, lines in found.items() if name not in WRITERS}
    assert unknown == {}, (
        "print by `cli.common.say`, JSON by `say_json`; or name the module here, with its reason"
    )
    assert WRITERS.keys() - found.keys() == set(), "listed here, and writes nothing"


def test_what_a_module_may_not_do_is_found() -> None:
    for text in (
        "print(1)", "sys.stdout.write(x)", "sys.stdout.buffer.write(x)", "out = sys.stderr", "print(x, file=sys.stderr)",
        "Console().print(x)", "os.write(1, x)", "traceback.print_exc()", "from sys import stdout", "csv.writer(sys.stdout)",
        "say(sys.stdout)", "open('/dev/tty')", "other(x, file=sys.stdout)", "sys.__stdout__.write(x)",
    ):  # fmt: skip
        assert list(writes(ast.parse(text))), text
    for text in (
        "say(x)",
        "say(x, file=sys.stderr)",
        "sys.stdout.isatty()",
        "sys.stdin.readline()",
        "os.write(pipe, x)",
    ):
        assert not list(writes(ast.parse(text))), text


def markup(tree: ast.Module) -> Iterator[ast.AST]:
    """Each place in the app where Textual would read words of somebody else as its markup: notices, titles of frames, labels."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="notify"), keywords=keywords):
                if not any(each.arg == "markup" and ast.unparse(each.value) == "False" for each in keywords):
                    yield node
            case ast.Call(func=ast.Name(id="Label" | "Static"), args=[text, *_]) if isinstance(
                text, ast.JoinedStr | ast.Name | ast.Attribute
            ):
                yield node
            case ast.Assign(
                targets=[ast.Attribute(attr="border_title" | "border_subtitle")], value=ast.JoinedStr()
            ):
                yield node


def test_no_words_of_others_are_markup_in_the_app() -> None:
    for path in sorted((ROOT / "supervisor" / "views" / "tui").rglob("*.py")):
        assert [ast.unparse(node) for node in markup(ast.parse(path.read_text(encoding="utf-8")))] == [], path
    for text in ("app.notify(x)", "Label(name)", "Static(f'{name}')", "box.border_title = f'{run}'"):
        assert list(markup(ast.parse(text))), text
