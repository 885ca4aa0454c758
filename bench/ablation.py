"""Measures what each piece of the judging code contributes: switches it off alone and judges all labeled texts of the repository again.

    python bench/ablation.py [--only PREFIX] [--sample N] [--keep bench/results/ablation.json]

The pieces are the signatures, and the functions and methods of `diagnosis`, `sources/metrics` and `text`. A signature that is off matches nothing. A function
that is off returns what it returns when it finds nothing, by its annotations:

- predicate: returns False. A second piece of the same function (``… = True``) returns True, which switches a filter off.
- finder (``X | None``): returns None.
- stage (``X`` in, ``X`` out): returns its argument.
- collector (a list, tuple, mapping, set or iterator): returns an empty one.
- action (returns nothing): does nothing.

Texts and labels: bench/labelled.py. Each text is first judged with everything on, to record which pieces did something. Only the texts in which a piece did
something are judged again without it, in a fixed order, until `ENOUGH` of them change class, cause or value; `judged` is their number. A piece then contributes:

    unreached   no text reaches it, so the texts say nothing about it
    idle        texts reach it, but it never does anything
    sampled     nothing changed, but only some of its texts were judged (--sample)
    nothing     it does something, but no verdict and no value changes without it
    words       confidence, title, advice or consequences change; class, rank, cause and values do not
    matters     class, reason, rank, cause or a value changes

The table is JSON, one piece a line. The same code gives the same table, so `git diff` compares two of them.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import dis
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import pkgutil
import resource
import signal
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line
from bench.labelled import Engine, Outcome, Text, scratch_folder, texts
from supervisor.diagnosis.scan.signature_tables import Signatures, parse_tables
from supervisor.diagnosis.scan.windows import Ahead, compile_matcher, in_turn
from supervisor.sources.signature_files import read_tables

# A verdict does not show whether the code that hides secrets works, so that code is left out.
PACKAGES = ("supervisor.diagnosis", "supervisor.sources.metrics", "supervisor.text")
LEFT_OUT = ("supervisor.text.redact", "supervisor.text.secret_values", "supervisor.diagnosis.scan.windows")

# CPU seconds for one text: the longest takes 0.2.
LONGEST_S = 5
MOST_BYTES = 4 << 30
EXAMPLES = 3
# A piece that changes this many texts matters, whatever the rest show: most such pieces change every text.
ENOUGH = 50
WORDS = frozenset(
    ("confidence", "node", "title", "consequences", "advice", "action", "fingerprint", "cause text")
)
ORDER = ("unreached", "sampled", "idle", "nothing", "words", "matters")
NEVER = r"[^\s\S]"


@dataclasses.dataclass(frozen=True)
class Piece:
    """One thing that can be switched off: a function with its code and what it returns when off, or a signature by its place.

    `lines`: its lines of source. `same`: the parameter that a stage returns.
    """

    kind: str
    name: str
    lines: int = 0
    made: FunctionType | None = None
    on: CodeType | None = None
    gives: str = ""
    same: str = ""
    place: int = -1

    @property
    def id(self) -> str:
        return f"{self.kind} {self.name}"

    def off(self) -> CodeType:
        """Return the code of the function while it is off, which accepts any arguments."""
        assert self.on is not None
        made: CodeType = eval(f"lambda *args, **named: {self.gives}").__code__
        return made.replace(co_name=self.on.co_name, co_qualname=self.on.co_qualname)


# A piece that changes nothing when switched off. Each table judges it over all texts; a table where it shows a change is invalid.
CONTROL = Piece("control", "nothing is off")


def modules() -> list[ModuleType]:
    """Import and return all modules of the packages."""
    found = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        found.append(root)
        for info in pkgutil.walk_packages(root.__path__, package + "."):
            found += [importlib.import_module(info.name)] if not info.name.startswith(LEFT_OUT) else []
    return found


# -- functions --------------------------------------------------------------------------------------

_EMPTY = {
    "list": "[]", "tuple": "()", "dict": "{}", "Mapping": "{}", "set": "set()", "frozenset": "frozenset()", "Counter": "{}", "Sequence": "()",
    "Collection": "()", "Iterable": "()", "Iterator": "iter(())", "Generator": "iter(())", "deque": "[]",
}  # fmt: skip
_RETURNS = tuple(dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap)


def functions(module: ModuleType) -> Iterator[Piece]:
    """Yield each function and method of a module that can be switched off."""
    path = module.__file__
    assert path is not None
    for prefix, node in _definitions(ast.parse(Path(path).read_text(encoding="utf-8")), ""):
        made = _function_of(module, prefix + node.name)
        if made is None or made.__code__.co_freevars or node.name == "__init__":
            continue
        name = f"{module.__name__}.{prefix}{node.name}".removeprefix("supervisor.")
        start = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        lines = (node.end_lineno or start) - start + 1
        for kind, gives, same in _neutral(node):
            shown = f"{name} = True" if gives == "True" else name
            yield Piece(kind, shown, lines, made, made.__code__, gives, same)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.FunctionDef):
            yield prefix, item
        elif isinstance(item, ast.ClassDef):
            yield from _definitions(item, f"{prefix}{item.name}.")


def _function_of(module: ModuleType, path: str) -> FunctionType | None:
    owner: Any = module
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    found = vars(owner).get(name) if owner is not None else None
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    found = getattr(found, "__wrapped__", found)
    return found if isinstance(found, FunctionType) and found.__name__ == name else None


def _neutral(node: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, what the function returns when off, the parameter that a stage returns), from the annotations."""
    if node.returns is None:
        return
    returned = ast.unparse(node.returns).strip("'\"")
    head, _, inner = returned.partition("[")
    if returned == "bool" or head in {"TypeGuard", "TypeIs"}:
        yield "predicate", "False", ""
        yield "predicate", "True", ""
    elif returned == "None":
        yield "action", "None", ""
    elif "None" in [part.strip() for part in returned.split("|")]:
        yield "finder", "None", ""
    elif (stage := _stage(node, returned)) is not None:
        yield "stage", *stage
    elif head in _EMPTY and not (head == "tuple" and "..." not in inner):
        yield "collector", _EMPTY[head], ""


def _stage(node: ast.FunctionDef, returned: str) -> tuple[str, str] | None:
    """Return the expression and the name of the first parameter of the type that is returned."""
    for place, arg in enumerate([*node.args.posonlyargs, *node.args.args]):
        if arg.annotation is not None and ast.unparse(arg.annotation).strip("'\"") == returned:
            return f"named[{arg.arg!r}] if {arg.arg!r} in named else args[{place}]", arg.arg
    return None


class Watch:
    """Within this context, collect the functions that are called (`reached`) and those that do something (`active`)."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.reached: set[str] = set()
        self.active: set[str] = set()
        self._by_code: dict[CodeType, list[Piece]] = collections.defaultdict(list)
        for piece in pieces:
            if piece.on is not None:
                self._by_code[piece.on].append(piece)
        self._bytes = {code: code.co_code for code in self._by_code}
        self._given: dict[int, Any] = {}

    def __enter__(self) -> None:
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if (pieces := self._by_code.get(code)) is None:
            return
        if event == "call":
            if pieces[0].same:
                self._given[id(frame)] = frame.f_locals.get(pieces[0].same)
            self.reached.update(piece.id for piece in pieces)
        elif event == "return":
            is_yield = bool(code.co_flags & inspect.CO_GENERATOR)
            has_raised = not is_yield and self._bytes[code][frame.f_lasti] not in _RETURNS
            given = self._given.pop(id(frame), None)
            for piece in pieces:
                if has_raised or _does_something(piece, value, given, is_yield=is_yield):
                    self.active.add(piece.id)


def _does_something(piece: Piece, value: Any, given: Any, *, is_yield: bool) -> bool:
    match piece.kind:
        case "predicate":
            return bool(value) is (piece.gives == "False")
        case "finder":
            return value is not None
        case "stage":
            return is_yield or (value is not given and (type(value) is not type(given) or value != given))
        case "collector":
            return value is not None if is_yield else not hasattr(value, "__len__") or bool(len(value))
        case _:
            return True


# -- judging ----------------------------------------------------------------------------------------


class Matcher:
    """All signatures but one; records which matched."""

    def __init__(self, signatures: Signatures) -> None:
        self._inner = compile_matcher(signatures)
        self.ahead: Ahead = in_turn
        self.off = -1
        self.matched: set[int] = set()

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        found = self._inner.scan(block)
        self.matched.update(index for _, index in found)
        return [(end, index) for end, index in found if index != self.off]


class TooLongError(BaseException):
    """A text took too long. Not an Exception, so that no error handler catches it."""


class Bench:
    """The pieces, the texts and the engine that judges them, and what is known of each piece once all texts are traced."""

    def __init__(self, scratch: Path, sample: int) -> None:
        signatures = parse_tables(read_tables())
        self.matcher = Matcher(signatures)
        self.engine = Engine(signatures, self.matcher)
        every = modules()
        self.caches = [
            value for module in every for value in vars(module).values() if hasattr(value, "cache_clear")
        ]
        self.signatures = [
            Piece("signature", f"{entry.family}.{entry.id}", place=entry.place)
            for entry in signatures.entries
        ]
        made = [piece for module in every for piece in functions(module)]
        self.pieces = {piece.id: piece for piece in [CONTROL, *made, *self.signatures]}
        self.texts = texts(scratch)[::sample]
        self.sample = sample
        self.base: list[Outcome] = [Outcome({})] * len(self.texts)
        self.reached: dict[str, list[int]] = collections.defaultdict(list)
        self.active: dict[str, list[int]] = collections.defaultdict(list)
        self.active[CONTROL.id] = list(range(len(self.texts)))

    def switch(self, piece: Piece, *, is_off: bool) -> Engine:
        """Switch a piece off or on, and return the engine to judge with."""
        for cache in self.caches:
            cache.cache_clear()
        if piece.on is not None:
            made: Any = piece.made
            made.__code__ = piece.off() if is_off else piece.on
        self.matcher.off = piece.place if is_off else -1
        if piece.place < 0:
            return self.engine
        entries = self.engine.signatures.entries
        kept = tuple(
            entry._replace(regex=NEVER) if entry.place == piece.place else entry for entry in entries
        )
        return dataclasses.replace(self.engine, signatures=self.engine.signatures._replace(entries=kept))


_bench: Bench


def judged(text: Text, engine: Engine) -> Outcome:
    """Return the outcome of judging a text. An exception is an outcome too."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        return text.judge(engine)
    except TooLongError:
        return Outcome({"class": "timeout"})
    except Exception as error:  # noqa: BLE001 - without a piece anything may be raised
        return Outcome({"class": f"raises {type(error).__name__}"})
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def trace(places: Sequence[int]) -> list[tuple[int, Outcome, set[str], set[str]]]:
    """Judge some texts with everything on: (place, outcome, pieces reached, pieces that did something)."""
    bench = _bench
    rows = []
    for place in places:
        text = bench.texts[place]
        plain = judged(text, bench.engine)
        bench.matcher.matched = set()
        bench.switch(CONTROL, is_off=False)
        watch = Watch(bench.pieces.values())
        with watch:
            watched = judged(text, bench.engine)
        if watched != plain:
            raise AssertionError(f"{text.name} is judged differently while it is watched")
        hits = {piece.id for piece in bench.signatures if piece.place in bench.matcher.matched}
        rows.append((place, plain, watch.reached | hits, watch.active | hits))
    return rows


def without(name: str) -> dict[str, Any]:
    """Judge the texts in which a piece did something again without it, and count the changes."""
    bench, piece = _bench, _bench.pieces[name]
    classes = judged_texts = matter = 0
    worse, better = collections.Counter[str](), collections.Counter[str]()
    fields: collections.Counter[str] = collections.Counter()
    examples: list[str] = []
    engine = bench.switch(piece, is_off=True)
    try:
        order = sorted(bench.active[name], key=lambda place: zlib.crc32(bench.texts[place].name.encode()))
        for place in order:
            before, after = bench.base[place], judged(bench.texts[place], engine)
            judged_texts += 1
            if before == after:
                continue
            # Without marks the text raised an exception or took too long.
            changed = {key for key in before.fields if before.fields[key] != after.fields.get(key)}
            changed |= after.fields.keys() - before.fields.keys()
            changed = changed if after.marks else {"class"}
            fields.update(changed)
            classes += "class" in changed
            for label in before.marks:
                lost = after.marks.get(label, before.marks[label] + 1) - before.marks[label]
                worse[label] += lost > 0
                better[label] += lost < 0
            if changed - WORDS:
                matter += 1
                examples += [bench.texts[place].name] if matter <= EXAMPLES else []
            if matter >= ENOUGH or after.fields.get("class") == "timeout":
                break
    finally:
        bench.switch(piece, is_off=False)
    return {
        "kind": piece.kind,
        "name": piece.name,
        "lines": piece.lines,
        "contributes": _contribution(piece, fields),
        "texts": len(bench.active[name]),
        "judged": judged_texts,
        "class": classes,
        "wrong": +worse,
        "right": +better,
        "fields": dict(sorted(fields.items())),
        "examples": examples,
        **({"every nth text": bench.sample} if bench.sample > 1 else {}),
    }


def _contribution(piece: Piece, fields: Mapping[str, int]) -> str:
    if fields:
        return "matters" if fields.keys() - WORDS else "words"
    if _bench.active[piece.id]:
        return "sampled" if piece is not CONTROL and _bench.sample > 1 else "nothing"
    return "idle" if _bench.reached[piece.id] else "unreached"


def _limit() -> None:
    """Set up a worker process: it ends a text that runs forever or fills the memory."""

    def too_long(*_: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGVTALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def measured(bench: Bench, only: str, processes: int) -> list[dict[str, Any]]:
    """Return the table: one row a piece, by kind and name."""
    global _bench  # noqa: PLW0603 - what forked processes inherit
    _bench = bench
    context = multiprocessing.get_context("fork")
    parts = [range(start, len(bench.texts), 40) for start in range(min(40, len(bench.texts)))]
    with context.Pool(processes, _limit) as pool:
        for rows in pool.imap_unordered(trace, parts):
            for place, outcome, reached, active in rows:
                bench.base[place] = outcome
                for names, kept in ((reached, bench.reached), (active, bench.active)):
                    for name in names:
                        kept[name].append(place)
    wanted = [
        name
        for name, piece in bench.pieces.items()
        if piece is CONTROL or name.startswith(only) or piece.name.startswith(only)
    ]
    wanted.sort(key=lambda name: len(bench.active[name]))
    table: list[dict[str, Any]] = []
    with context.Pool(processes, _limit) as pool:
        for row in pool.imap_unordered(without, wanted):
            table.append(row)
            if len(table) % 100 == 0:
                print(f"{len(table)} of {len(wanted)} pieces", file=sys.stderr, flush=True)
    return sorted(table, key=lambda row: (row["kind"], row["name"]))


def main() -> int:
    """Print the table, or keep it with one piece a line, so that two tables can be compared line by line."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", metavar="PREFIX", help="only pieces whose name begins so")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth text")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with scratch_folder() as scratch:
        bench = Bench(Path(scratch), args.sample)
        table = measured(bench, args.only, args.processes)
    not_met = sum((collections.Counter(outcome.marks) for outcome in bench.base), collections.Counter[str]())
    head = {"texts": len(bench.texts), "labels not met": dict(sorted(not_met.items()))}
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in table)
    text = f'{json.dumps(head, indent=1)[:-2]},\n "pieces": [\n{rows}\n ]\n}}\n'
    if args.keep is not None:
        args.keep.write_text(text, encoding="utf-8")
    else:
        print(text)
    counts = collections.Counter((row["kind"], row["contributes"]) for row in table)
    for kind in sorted({row["kind"] for row in table}):
        print(f"{kind:10}", "  ".join(f"{word} {counts[kind, word]}" for word in ORDER))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
