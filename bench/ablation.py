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
    idle        it is reached, but never does anything
    sampled     nothing changed, but only some of its texts were judged (--sample): not shown
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
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line
from bench.labelled import Engine, Outcome, Text, scratch_folder, texts
from supervisor.diagnosis.scan.signature_tables import Signatures, parse_tables
from supervisor.diagnosis.scan.windows import Ahead, compile_matcher, in_turn
from supervisor.sources.signature_files import read_tables

# A verdict does not show whether the code that hides secrets works, so that code is left out.
PACKAGES = ("supervisor.diagnosis", "supervisor.sources.metrics", "supervisor.text")
LEFT_OUT = ("supervisor.text.redact", "supervisor.diagnosis.scan.windows")

# CPU seconds for one text: the longest takes 0.2.
LONGEST_S = 5
MOST_TIMEOUTS = 3
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
    """One thing that can be switched off. `lines`: its lines of source. `off` switches it off, `on` on again."""

    kind: str
    name: str
    lines: int
    off: Callable[[], None]
    on: Callable[[], None]

    @property
    def id(self) -> str:
        return f"{self.kind} {self.name}"


class Trace:
    """The names of the pieces that a text reached, and of those that did something."""

    def __init__(self) -> None:
        self.reached: set[str] = set()
        self.active: set[str] = set()


def modules() -> list[ModuleType]:
    """Import and return all modules of the packages."""
    found = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        found.append(root)
        for info in pkgutil.walk_packages(root.__path__, package + "."):
            found += [importlib.import_module(info.name)] if not info.name.startswith(LEFT_OUT) else []
    return found


def short(name: str) -> str:
    return name.removeprefix("supervisor.")


# -- functions --------------------------------------------------------------------------------------

_EMPTY = {
    "list": "[]", "tuple": "()", "dict": "{}", "Mapping": "{}", "set": "set()", "frozenset": "frozenset()", "Counter": "{}", "Sequence": "()",
    "Collection": "()", "Iterable": "()", "Iterator": "iter(())", "Generator": "iter(())", "deque": "[]",
}  # fmt: skip
_RETURNS = tuple(dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function, and what it returns when it is off. `same`: the parameter that a stage returns."""

    kind: str
    name: str
    lines: int
    made: FunctionType
    gives: str
    same: str = ""

    def code_off(self) -> CodeType:
        """Its code while it is off, with the same signature, so that its defaults keep working."""
        code = self.made.__code__
        names = code.co_varnames
        at = code.co_argcount
        only = names[at : at + code.co_kwonlyargcount]
        rest = list(names[at + code.co_kwonlyargcount :])
        head = [*names[: code.co_posonlyargcount], *(["/"] if code.co_posonlyargcount else [])]
        head += names[code.co_posonlyargcount : at]
        if code.co_flags & inspect.CO_VARARGS:
            head.append("*" + rest.pop(0))
        elif only:
            head.append("*")
        head += only
        if code.co_flags & inspect.CO_VARKEYWORDS:
            head.append("**" + rest.pop(0))
        place: dict[str, Any] = {}
        exec(f"def f({', '.join(head)}):\n return {self.gives}", place)
        made: CodeType = place["f"].__code__
        return made.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def functions(module: ModuleType) -> Iterator[Function]:
    """Each function and method of a module that can be switched off."""
    path = module.__file__
    assert path is not None
    for prefix, node in _definitions(ast.parse(Path(path).read_text(encoding="utf-8")), ""):
        made = _function_of(module, prefix + node.name)
        if made is None or made.__code__.co_freevars or node.name == "__init__":
            continue
        name = short(f"{module.__name__}.{prefix}{node.name}")
        start = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        lines = (node.end_lineno or start) - start + 1
        for kind, gives, same in _neutral(node):
            yield Function(kind, f"{name} = True" if gives == "True" else name, lines, made, gives, same)


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
    """(kind, what it returns when off, the parameter to return), from its annotations."""
    if node.returns is None:
        return
    returned = ast.unparse(node.returns).strip("'\"")
    parameters = [
        (arg.arg, ast.unparse(arg.annotation).strip("'\""))
        for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if arg.annotation is not None
    ]
    head, _, inner = returned.partition("[")
    if returned == "bool" or head in {"TypeGuard", "TypeIs"}:
        yield "predicate", "False", ""
        yield "predicate", "True", ""
    elif returned == "None":
        yield "action", "None", ""
    elif "None" in [part.strip() for part in returned.split("|")]:
        yield "finder", "None", ""
    elif same := next((name for name, kind in parameters if kind == returned), ""):
        yield "stage", same, same
    elif head in _EMPTY and not (head == "tuple" and "..." not in inner):
        element = inner.removesuffix("]").removesuffix(", ...")
        same = next((name for name, kind in parameters if _element(kind) == element), "") if element else ""
        if not same or head in {"dict", "Mapping", "Counter", "deque"}:
            yield "collector", _EMPTY[head], ""
        else:
            form = {"list": "list({})", "tuple": "tuple({})", "set": "set({})", "frozenset": "frozenset({})"}
            yield "stage", form.get(head, "iter({})" if "Iter" in head else "{}").format(same), same


def _element(annotation: str) -> str:
    head, _, inner = annotation.partition("[")
    known = head in _EMPTY and head not in {"dict", "Mapping", "Counter"}
    return inner.removesuffix("]").removesuffix(", ...") if known else ""


class Watch:
    """Within this context, record in `seen` which of the functions were called and which did something."""

    def __init__(self, found: Iterable[Function], seen: Trace) -> None:
        self._seen = seen
        self._by_code: dict[CodeType, list[Function]] = {}
        for each in found:
            self._by_code.setdefault(each.made.__code__, []).append(each)
        self._bytes = {code: code.co_code for code in self._by_code}
        self._given: dict[int, Any] = {}

    def __enter__(self) -> None:
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if (found := self._by_code.get(code)) is None:
            return
        if event == "call":
            if found[0].same:
                self._given[id(frame)] = frame.f_locals.get(found[0].same)
            for each in found:
                self._seen.reached.add(each.name)
        elif event == "return":
            is_yield = bool(code.co_flags & inspect.CO_GENERATOR)
            raised = not is_yield and self._bytes[code][frame.f_lasti] not in _RETURNS
            given = self._given.pop(id(frame), None) if found[0].same else None
            for each in found:
                if raised or self._does(each, value, given, is_yield=is_yield):
                    self._seen.active.add(each.name)

    @staticmethod
    def _does(each: Function, value: Any, given: Any, *, is_yield: bool) -> bool:
        match each.kind:
            case "predicate":
                return bool(value) is (each.gives == "False")
            case "finder":
                return value is not None
            case "stage":
                return is_yield or (value is not given and (type(value) is not type(given) or value != given))
            case "collector":
                return value is not None if is_yield else not hasattr(value, "__len__") or bool(len(value))
            case _:
                return True


def _function_piece(each: Function) -> Piece:
    def set_code(code: CodeType) -> None:
        each.made.__code__ = code

    on, off = each.made.__code__, each.code_off()
    return Piece(
        each.kind, each.name, each.lines, functools.partial(set_code, off), functools.partial(set_code, on)
    )


# -- judging ----------------------------------------------------------------------------------------


def _nothing() -> None:
    pass


# A piece that changes nothing when switched off. Each table judges it over all texts; a table where it shows a change is invalid.
CONTROL = Piece("control", "nothing is off", 0, _nothing, _nothing)


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


@dataclasses.dataclass
class Found:
    """What is judged, and with which engine."""

    functions: list[Function]
    caches: list[Any]
    pieces: dict[str, Piece]
    texts: list[Text]
    engine: Engine
    matcher: Matcher
    sample: int = 1
    base: list[Outcome] = dataclasses.field(default_factory=list)
    reached: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    active: dict[str, list[int]] = dataclasses.field(default_factory=dict)

    def clear(self) -> None:
        """Clear all caches of earlier lines."""
        for each in self.caches:
            each.cache_clear()


_found: Found


def judged(text: Text, engine: Engine) -> Outcome:
    """The outcome of judging a text; an exception is an outcome too."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        return text.judge(engine)
    except TooLongError:
        return Outcome({"class": "timeout"})
    except Exception as error:  # noqa: BLE001 - without a piece anything may be raised
        return Outcome({"class": f"raises {type(error).__name__}"})
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _too_long(*_: object) -> None:
    raise TooLongError


def prepared(scratch: Path, sample: int) -> Found:
    """Engine, texts and pieces, before any text is judged."""
    signatures = parse_tables(read_tables())
    matcher = Matcher(signatures)
    every = modules()
    found = [each for module in every for each in functions(module)]
    caches = [value for module in every for value in vars(module).values() if hasattr(value, "cache_clear")]
    pieces = [CONTROL, *map(_function_piece, found), *_signature_pieces(signatures, matcher)]
    chosen = texts(scratch)[::sample]
    by_id = {piece.id: piece for piece in pieces}
    return Found(found, caches, by_id, chosen, Engine(signatures, matcher), matcher, sample=sample)


def _signature_pieces(signatures: Signatures, matcher: Matcher) -> Iterator[Piece]:
    lines = _signature_lines()
    for entry in signatures.entries:
        yield Piece(
            "signature",
            f"{entry.family}.{entry.id}",
            lines.get(entry.id, 0),
            functools.partial(setattr, matcher, "off", entry.place),
            functools.partial(setattr, matcher, "off", -1),
        )


def _signature_lines() -> dict[str, int]:
    found = {}
    for raw in read_tables().values():
        for block in raw.decode("utf-8").split("[[signature]]")[1:]:
            if name := re.search(r'^id = "(.+)"', block, re.MULTILINE):
                found[name[1]] = len(block.strip().splitlines()) + 1
    return found


def trace(places: Sequence[int]) -> list[tuple[int, Outcome, set[str], set[str]]]:
    """Judge some texts with everything on: (place, outcome, pieces reached, pieces that did something)."""
    found = _found
    rows = []
    for place in places:
        text = found.texts[place]
        plain = judged(text, found.engine)
        found.matcher.matched = set()
        found.clear()
        seen = Trace()
        with Watch(found.functions, seen):
            watched = judged(text, found.engine)
        if watched != plain:
            raise AssertionError(f"{text.name} is read otherwise while it is watched")
        entries = found.engine.signatures.entries
        hits = {f"{entry.family}.{entry.id}" for entry in entries if entry.place in found.matcher.matched}
        rows.append((place, plain, seen.reached | hits, seen.active | hits))
    return rows


def without(name: str) -> dict[str, Any]:
    """Judge the texts in which a piece did something again without it, and count the changes."""
    found = _found
    piece = found.pieces[name]
    engine = found.engine
    if piece.kind == "signature":
        engine = dataclasses.replace(engine, signatures=_without_signature(engine.signatures, piece.name))
    places = found.active.get(name, [])
    classes = timeouts = judged_texts = matter = 0
    worse, better = collections.Counter[str](), collections.Counter[str]()
    fields: collections.Counter[str] = collections.Counter()
    examples: list[str] = []
    found.clear()
    piece.off()
    try:
        order = sorted(places, key=lambda place: zlib.crc32(found.texts[place].name.encode()))
        for place in order:
            if matter >= ENOUGH:
                break
            before, after = found.base[place], judged(found.texts[place], engine)
            judged_texts += 1
            if before == after:
                continue
            changed = [
                key
                for key in sorted(before.fields.keys() | after.fields.keys())
                if before.fields.get(key) != after.fields.get(key)
            ]
            raised = not after.marks
            fields.update(["class"] if raised else changed)
            classes += raised or "class" in changed
            matter += raised or bool(set(changed) - WORDS)
            for label in before.marks:
                lost = after.marks.get(label, before.marks[label] + 1) - before.marks[label]
                worse[label] += lost > 0
                better[label] += lost < 0
            if len(examples) < EXAMPLES and (raised or set(changed) - WORDS):
                examples.append(found.texts[place].name)
            timeouts += after.fields.get("class") == "timeout"
            if timeouts >= MOST_TIMEOUTS:
                break
    finally:
        piece.on()
        found.clear()
    return {
        "kind": piece.kind,
        "name": piece.name,
        "lines": piece.lines,
        "contributes": _contribution(name, fields),
        "texts": len(places),
        "judged": judged_texts,
        "class": classes,
        "wrong": +worse,
        "right": +better,
        "fields": dict(sorted(fields.items())),
        "examples": examples,
        **({"every nth text": found.sample} if found.sample > 1 else {}),
        **({"never ends": True} if timeouts >= MOST_TIMEOUTS else {}),
    }


def _without_signature(signatures: Signatures, name: str) -> Signatures:
    entries = (
        entry._replace(regex=NEVER) if f"{entry.family}.{entry.id}" == name else entry
        for entry in signatures.entries
    )
    return signatures._replace(entries=tuple(entries))


def _contribution(name: str, fields: Mapping[str, int]) -> str:
    if fields:
        return "matters" if fields.keys() - WORDS else "words"
    if name in _found.active and name != CONTROL.id and _found.sample > 1:
        return "sampled"
    if name in _found.active:
        return "nothing"
    return "idle" if name in _found.reached else "unreached"


def _limit() -> None:
    """Set up a worker process: it ends a text that runs forever or fills the memory."""
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def measured(found: Found, only: str, processes: int) -> list[dict[str, Any]]:
    """The table: one row a piece, by kind and name."""
    global _found  # noqa: PLW0603 - what forked processes inherit
    _found = found
    context = multiprocessing.get_context("fork")
    found.base = [Outcome({})] * len(found.texts)
    by_name = collections.defaultdict(list)
    for piece in found.pieces.values():
        by_name[piece.name].append(piece.id)
    parts = [range(start, len(found.texts), 40) for start in range(min(40, len(found.texts)))]
    with context.Pool(processes, _limit) as pool:
        for rows in pool.imap_unordered(trace, parts):
            for place, outcome, reached, active in rows:
                found.base[place] = outcome
                for names, kept in ((reached, found.reached), (active, found.active)):
                    for identity in (identity for name in names for identity in by_name.get(name, ())):
                        kept.setdefault(identity, []).append(place)
    found.reached[CONTROL.id] = found.active[CONTROL.id] = list(range(len(found.texts)))
    wanted = sorted(name for name, piece in found.pieces.items() if _is_wanted(piece, only))
    wanted.sort(key=lambda name: len(found.active.get(name, ())))
    table: list[dict[str, Any]] = []
    start = time.monotonic()
    with context.Pool(processes, _limit) as pool:
        for row in pool.imap_unordered(without, wanted):
            table.append(row)
            if len(table) % 100 == 0:
                print(
                    f"{len(table)} of {len(wanted)} pieces, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return sorted(table, key=lambda row: (row["kind"], row["name"]))


def _is_wanted(piece: Piece, only: str) -> bool:
    return piece is CONTROL or piece.id.startswith(only) or piece.name.startswith(only)


def summary(found: Found) -> dict[str, Any]:
    """What was judged, and the result with everything on: labels that are not met, by family."""
    families: dict[str, dict[str, int]] = {}
    for text, outcome in zip(found.texts, found.base, strict=True):
        row = families.setdefault(text.family, {"texts": 0})
        row["texts"] += 1
        for label, count in outcome.marks.items():
            row[f"{label} not met"] = row.get(f"{label} not met", 0) + count
    return {"texts": len(found.texts), "families": families}


def written(head: Mapping[str, Any], table: Sequence[Mapping[str, Any]]) -> str:
    """JSON with one piece a line, so that two tables can be compared line by line."""
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in table)
    return f'{json.dumps(head, indent=1)[:-2]},\n "pieces": [\n{rows}\n ]\n}}\n'


def _commit() -> str:
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"


def main(argv: Iterable[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", metavar="PREFIX", help="only pieces whose name begins so")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth text")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv if argv is None else list(argv))
    with scratch_folder() as scratch:
        found = prepared(Path(scratch), args.sample)
        table = measured(found, args.only, args.processes)
    head = {"commit": _commit(), **summary(found)}
    if args.keep is not None:
        args.keep.write_text(written(head, table), encoding="utf-8")
    else:
        print("\n".join(json.dumps(row, ensure_ascii=False) for row in table))
    counts = collections.Counter((row["kind"], row["contributes"]) for row in table)
    print(json.dumps(head, indent=1))
    for kind in sorted({row["kind"] for row in table}):
        print(f"{kind:10}", "  ".join(f"{word} {counts[kind, word]}" for word in ORDER))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
