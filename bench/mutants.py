"""Checks whether tests notice small mistakes, with one mutation in each of some random modules.

    python bench/mutants.py [--count 20] [--seed N] [--under supervisor/views/tui] [--keep bench/results/mutants.json]

Each mutation is made in a copy of the checkout. First the tests that name the module are run, of the folder that mirrors its package; if
none of them fails, all of that folder; at last all that `make test` runs side by side. A mutation that none of these notices survives; one
that changes nothing a user could see counts as survived all the same.
"""

from __future__ import annotations

import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell

AIM = 0.9
TESTS_S = 900
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache")
SHORT = "not e2e and not thorough and not gpu and not frameworks and not serial"
COMPARED = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
COUNTED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
# What these calls are given is for a log, not for a person or a program.
SILENT = re.compile(r"^(log|logger)\.")


@dataclass(frozen=True)
class Mutation:
    """One change of a file from `old` to `new`."""

    path: str
    line: int
    kind: str
    start: int
    old: str
    new: str


def main() -> int | str:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--under", default="supervisor", metavar="FOLDER", help="modules of this folder alone"
    )
    args = parser.parse_args()
    dice = random.Random(args.seed)
    modules = sorted(path for path in (ROOT / args.under).rglob("*.py") if path.name != "__init__.py")
    dice.shuffle(modules)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "stoker")
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        if failed := failing(["--collect-only", "tests"], copy):
            return f"without a mutation the tests cannot be collected: {failed}"
        for mutation in itertools.islice(drawn(modules, dice), args.count):
            begun = time.monotonic()
            killer = killed_by(mutation, copy)
            found.append(
                {**asdict(mutation), "killed_by": killer, "seconds": round(time.monotonic() - begun)}
            )
            verdict = f"killed by {killer}" if killer else "SURVIVED"
            place = f"{mutation.path}:{mutation.line}: {mutation.old!r} → {mutation.new!r}"
            print(f"{place}: {verdict}", file=sys.stderr, flush=True)
    killed = sum(bool(each["killed_by"]) for each in found)
    head = {"seed": args.seed, "under": args.under, "killed": killed, "of": len(found), **surroundings()}
    tell({**head, "mutations": found}, args.keep)
    return int(killed < AIM * len(found))


def drawn(modules: list[Path], dice: random.Random) -> Iterator[Mutation]:
    """Yield one mutation per module, with a random kind and place."""
    for path in modules:
        places = list(mutations(path))
        if places:
            kind = dice.choice(sorted({place.kind for place in places}))
            yield dice.choice([place for place in places if place.kind == kind])


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield every mutation of a module."""
    source = path.read_text(encoding="utf-8")
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    data = source.encode()
    tree = ast.parse(source)
    silent = set(_silent(tree))

    def at(line: int, column: int) -> int:
        return lines[line - 1] + column

    def text(node: ast.expr | ast.stmt) -> tuple[int, str]:
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        return start, data[start:end].decode()

    def between(left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Mutation]:
        start = at(left.end_lineno or 0, left.end_col_offset or 0)
        gap = data[start : at(right.lineno, right.col_offset)].decode()
        place = re.search(
            rf"(?<!\w){re.escape(old).replace(' ', r's+')}(?!\w)" if old[0].isalpha() else re.escape(old), gap
        )
        if place is not None:
            begin = start + len(gap[: place.start()].encode())
            yield Mutation(str(path.relative_to(ROOT)), left.lineno, kind, begin, place[0], new)

    def whole(node: ast.expr | ast.stmt, new: str, kind: str) -> Mutation:
        start, old = text(node)
        return Mutation(str(path.relative_to(ROOT)), node.lineno, kind, start, old, new)

    for node in ast.walk(tree):
        if id(node) in silent:
            continue
        match node:
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for one, op, two in zip([left, *rights], ops, rights, strict=False):
                    yield from between(one, two, *COMPARED[type(op)], "comparison")
            case ast.BoolOp(op=op, values=values):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from between(values[0], values[1], old, new, "and, or")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield whole(node, text(operand)[1], "not")
            case ast.BinOp(op=op, left=left, right=right) if type(op) in COUNTED and not isinstance(
                left, ast.JoinedStr
            ):
                yield from between(left, right, *COUNTED[type(op)], "arithmetic")
            case ast.Constant(value=bool() as value):
                yield whole(node, str(not value), "bool")
            case ast.Constant(value=int() | float() as number):
                yield whole(node, str(number + 1), "number")
            case ast.Constant(value=str() as words) if (
                words.strip() and text(node)[1][:1] in "\"'" and text(node)[1][:3] not in ('"""', "'''")
            ):
                yield whole(node, repr(f"x{words}"), "text")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield whole(test, f"not ({text(test)[1]})", "condition")
            case ast.Return(value=ast.expr() as value) if not (
                isinstance(value, ast.Constant) and (value.value is None or value.value is False)
            ):
                yield whole(node, "return None", "return")
            case ast.Expr(value=ast.Call()):
                yield whole(node, "pass", "call left out")


def _silent(tree: ast.Module) -> Iterator[int]:
    """Nodes that no behaviour hangs on, and all below them: annotations, docstrings, f-strings, logging, assertions.

    `strict` of a zip is an assertion; how much a cache holds, and `slots`, cost memory and time alone; `frozen`, `kw_only` and
    `assert_never` are held by the type checker. No behaviour hangs on ``return False`` as None: callers ask for its truth, which the mutation of the bool itself
    turns around. Names of threads are for a debugger, and what an AssertionError says is for who broke the code.
    """
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                every = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
                parts = [node.returns, *(arg.annotation for arg in every)]
            case ast.AnnAssign(annotation=annotation):
                parts = [annotation]
            case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
                parts = [node]
            case ast.Expr(value=ast.Call(func=func)) if SILENT.match(ast.unparse(func)):
                parts = [node]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
                parts = [node]
            case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
                parts = [node]
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__") or name == "log":
                parts = [node]
            case ast.Call(func=ast.Name(id="TypeVar" | "cast" | "NewType" | "AssertionError")):
                parts = [node]
            case ast.Call(func=ast.Name(id="zip"), keywords=keywords):
                parts = [*keywords]
            case ast.Call(args=[ast.Constant(value=str() as name), *_]) if name.startswith("stoker-"):
                parts = [node.args[0]]
            case ast.Call(func=ast.Attribute(attr="Thread"), keywords=keywords):
                parts = [each.value for each in keywords if each.arg == "name"]
            case ast.Call(func=ast.Name(id="lru_cache")) | ast.keyword(arg="slots" | "frozen" | "kw_only"):
                parts = [node]
        for part in parts:
            if part is not None:
                yield from (id(each) for each in ast.walk(part))


def killed_by(mutation: Mutation, copy: Path) -> str:
    """Return the first test that fails only with the mutation, or an empty text."""
    path = copy / mutation.path
    original = path.read_bytes()
    end = mutation.start + len(mutation.old.encode())
    mutated = original[: mutation.start] + mutation.new.encode() + original[end:]
    for chosen in (near(mutation.path, copy), folder_of(mutation.path, copy), ["tests"]):
        path.write_bytes(mutated)
        try:
            killer = failing(chosen, copy) if chosen else ""
        finally:
            path.write_bytes(original)
        if killer and "::" in killer and failing([killer], copy):
            print(f"{killer} fails without a mutation too", file=sys.stderr)
        elif killer:
            return killer
    return ""


def folder_of(module: str, copy: Path) -> list[str]:
    """Return the deepest folder of tests that mirrors the module's package."""
    folder = Path("tests", *Path(module).parts[1:-1])
    while not (copy / folder).is_dir():
        folder = folder.parent
    return [str(folder)] if folder != Path("tests") else ["tests/contract", "tests/integration"]


def near(module: str, copy: Path) -> list[str]:
    """Return the test files in that folder that mention the module."""
    dotted = module.removesuffix(".py").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    named = re.compile(rf"\b{re.escape(dotted)}\b|from {re.escape(package)} import [^)\n]*\b{name}\b")
    files = sorted(each for folder in folder_of(module, copy) for each in (copy / folder).rglob("test_*.py"))
    return [
        str(each.relative_to(copy))
        for each in files
        if name in each.stem or named.search(each.read_text(encoding="utf-8"))
    ]


def failing(tests: list[str], copy: Path) -> str:
    """Return the first failing test, or an empty text."""
    python = str(ROOT / ".venv" / "bin" / "python")
    imported = "import supervisor, sys; sys.exit(not supervisor.__file__.startswith(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([python, "-c", imported, str(copy)], check=True, env=env, cwd=copy)
    options = "-q -x -n 2 --dist worksteal -p no:cacheprovider -m"
    command = [python, "-m", "pytest", *options.split(), SHORT, *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=TESTS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the limit of time"
    if done.returncode in {0, 5}:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest's exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
