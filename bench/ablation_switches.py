"""The pieces of the judging code, each with a switch: signatures, rows of tables, functions and patterns.

Import this before any module of `supervisor`: patterns become switchable when the modules compile them. A piece that is off does
nothing: a signature or a pattern matches nothing, a row is missing from its table, and a function returns what it returns when it finds nothing:

- predicate: returns False. A second piece of the same function (``… = True``) returns True, which switches a filter off.
- finder (``X | None``): returns None.
- stage (``X`` in, ``X`` out): returns its argument.
- collector (a list, tuple, mapping, set or iterator): returns an empty one.
- action (returns nothing): does nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A verdict does not show whether the code that hides secrets works, so that code is left out.
PACKAGES = ("supervisor.diagnosis", "supervisor.sources.metrics", "supervisor.text")
LEFT_OUT = ("supervisor.text.redact", "supervisor.text.secret_values", "supervisor.diagnosis.scan.windows")

if any(name.startswith(PACKAGES) for name in sys.modules):
    raise ImportError("bench.ablation_switches is imported too late: supervisor has compiled its patterns")

_real_compile = re.compile
_made: dict[tuple[str, str, Any, int], Pattern] = {}
_traced: set[str] | None = None


class Pattern:
    """A stand-in for a compiled pattern. `made` is the real pattern, one that never matches, or one that records."""

    def __init__(self, real: re.Pattern[Any]) -> None:
        self.real = real
        self.made: Any = real
        self.name = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def search(self, *given: Any) -> Any:
        return self.made.search(*given)

    def match(self, *given: Any) -> Any:
        return self.made.match(*given)

    def fullmatch(self, *given: Any) -> Any:
        return self.made.fullmatch(*given)

    def findall(self, *given: Any) -> Any:
        return self.made.findall(*given)

    def finditer(self, *given: Any) -> Any:
        return self.made.finditer(*given)

    def split(self, *given: Any, **more: Any) -> Any:
        return self.made.split(*given, **more)

    def sub(self, *given: Any, **more: Any) -> Any:
        return self.made.sub(*given, **more)

    def subn(self, *given: Any, **more: Any) -> Any:
        return self.made.subn(*given, **more)


class _Recording:
    """A pattern that records when it is used and when it matches."""

    def __init__(self, real: re.Pattern[Any], name: str, seen: Trace) -> None:
        self._real, self._name, self._seen = real, name, seen

    def _noted(self, found: Any, matched: object) -> Any:
        self._seen.reached.add(self._name)
        if matched:
            self._seen.active.add(self._name)
        return found

    def search(self, *given: Any) -> Any:
        found = self._real.search(*given)
        return self._noted(found, found is not None)

    def match(self, *given: Any) -> Any:
        found = self._real.match(*given)
        return self._noted(found, found is not None)

    def fullmatch(self, *given: Any) -> Any:
        found = self._real.fullmatch(*given)
        return self._noted(found, found is not None)

    def findall(self, *given: Any) -> Any:
        found = self._real.findall(*given)
        return self._noted(found, found)

    def finditer(self, *given: Any) -> Any:
        found = list(self._real.finditer(*given))
        return self._noted(iter(found), found)

    def split(self, text: Any, *given: Any, **more: Any) -> Any:
        found = self._real.split(text, *given, **more)
        return self._noted(found, len(found) > 1)

    def sub(self, to: Any, text: Any, *given: Any, **more: Any) -> Any:
        found = self._real.sub(to, text, *given, **more)
        return self._noted(found, found != text)

    def subn(self, to: Any, text: Any, *given: Any, **more: Any) -> Any:
        found = self._real.subn(to, text, *given, **more)
        return self._noted(found, found[1])


def _compile(pattern: Any, flags: int = 0) -> Any:
    """`re.compile`: switchable patterns for the switched modules, the usual ones for all others."""
    frame = sys._getframe(1)  # noqa: SLF001 - who compiles
    module = str(frame.f_globals.get("__name__", ""))
    lazily = module == "supervisor.text.patterns" and frame.f_code.co_name == "_pattern"
    if lazily or not module.startswith(PACKAGES) or module.startswith(LEFT_OUT):
        return _real_compile(pattern, flags)
    text = pattern.pattern if isinstance(pattern, (Pattern, re.Pattern)) else pattern
    key = (module, frame.f_code.co_qualname, text, int(flags))
    if key not in _made:
        _made[key] = Pattern(_real_compile(text, flags))
        _made[key].name = f"{module}.{frame.f_code.co_qualname}()"
    return _made[key]


re.compile = _compile


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


# -- patterns and rows of tables --------------------------------------------------------------------


def named(value: object) -> str:
    """The name of a table's row: its name, id, key or example."""
    for field in ("name", "id", "key", "example", "failure", "word"):
        if isinstance(found := getattr(value, field, None), str) and found:
            return found
    return ""


def _is_row(value: object) -> bool:
    kind = type(value)
    ours = kind.__module__.startswith(PACKAGES)
    return ours and (
        (isinstance(value, tuple) and hasattr(kind, "_fields")) or dataclasses.is_dataclass(kind)
    )


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """The parts of a table or a row, each with the path to it."""
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        fields: tuple[str, ...] = vars(type(value))["_fields"]
        yield from ((f".{name}", part) for name, part in zip(fields, value, strict=True))
    elif isinstance(value, (tuple, list)):
        for place, part in enumerate(value):
            yield f"[{named(part) or place}]", part
    elif isinstance(value, Mapping):
        yield from ((f"[{getattr(key, 'name', key)}]", part) for key, part in value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_row(value):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)


def _walk(name: str, value: object, depth: int = 4) -> Iterator[tuple[str, object]]:
    yield name, value
    if depth:
        for how, part in _parts(value):
            yield from _walk(name + how, part, depth - 1)


def patterns(found: Iterable[ModuleType]) -> dict[str, Any]:
    """Patterns (`Pattern` and `Lazy`) by the first name that is bound to them."""
    from supervisor.text.patterns import Lazy

    by_name: dict[str, Any] = {}
    known: set[int] = set()
    for module in found:
        for key, value in vars(module).items():
            if key.startswith("__") or isinstance(value, ModuleType):
                continue
            for name, part in _walk(short(f"{module.__name__}.{key}"), value):
                if isinstance(part, (Pattern, Lazy)) and id(part) not in known:
                    known.add(id(part))
                    by_name[name] = part
        for function in {each.made: None for each in functions(module)}:
            for name, part in _cached(module, function):
                if id(part) not in known:
                    known.add(id(part))
                    by_name[name] = part
    return by_name


def _cached(module: ModuleType, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The patterns that a cached function without arguments builds once."""
    from supervisor.text.patterns import Lazy

    wrapper = getattr(module, function.__name__, None)
    if not hasattr(wrapper, "cache_clear") or function.__code__.co_argcount:
        return
    assert callable(wrapper)
    for name, part in _walk(short(f"{module.__name__}.{function.__name__}()"), wrapper()):
        if isinstance(part, (Pattern, Lazy)):
            yield name, part


def rows(found: Iterable[ModuleType]) -> Iterator[tuple[str, list[tuple[ModuleType, str]], object, object]]:
    """Rows of tables: (name, where the table is bound, the table, the row)."""
    found = list(found)
    known: set[int] = set()
    for module in found:
        for key, table in list(vars(module).items()):
            values = list(table.values()) if isinstance(table, dict) else table
            if not isinstance(table, (tuple, list, dict)) or _is_row(table) or id(table) in known:
                continue
            if len(values) < 2 or not all(_is_row(row) for row in values):
                continue
            known.add(id(table))
            bound = [(one, name) for one in found for name, item in vars(one).items() if item is table]
            for how, row in _parts(table):
                yield short(f"{module.__name__}.{key}{how}"), bound, table, row


def _without(table: Any, row: object) -> Any:
    if isinstance(table, dict):
        return {key: value for key, value in table.items() if value is not row}
    return type(table)(value for value in table if value is not row)


# -- all of it --------------------------------------------------------------------------------------


class Switches:
    """All pieces, and the recording that shows which of them a text needs."""

    def __init__(self) -> None:
        self.modules = modules()
        self.functions = [each for module in self.modules for each in functions(module)]
        self.patterns = patterns(self.modules)
        self.rows = list(rows(self.modules))
        self.caches = [
            value
            for module in self.modules
            for value in vars(module).values()
            if hasattr(value, "cache_clear") and value.__module__.startswith(PACKAGES)
        ]
        self.signature_off = ""

    def clear(self) -> None:
        """Clear all caches of earlier lines."""
        for each in self.caches:
            each.cache_clear()

    def pieces(self) -> Iterator[Piece]:
        """Every piece except the signatures."""
        for each in self.functions:
            off, real = each.code_off(), each.made.__code__

            def set_code(code: CodeType, made: FunctionType = each.made) -> None:
                made.__code__ = code

            yield Piece(
                each.kind,
                each.name,
                each.lines,
                functools.partial(set_code, off),
                functools.partial(set_code, real),
            )
        for name, pattern in self.patterns.items():
            yield _pattern_piece(name, pattern)
        for name, bound, table, row in self.rows:

            def bind(value: object, places: list[tuple[ModuleType, str]] = bound) -> None:
                for module, key in places:
                    setattr(module, key, value)

            yield Piece(
                "row",
                name,
                0,
                functools.partial(bind, _without(table, row)),
                functools.partial(bind, table),
            )

    @contextmanager
    def traced(self) -> Generator[Trace, None, None]:
        """Record what is reached, and what does something, within this context."""
        seen = Trace()
        self.clear()
        for name, pattern in self.patterns.items():
            _set(pattern, _Recording(_real(pattern), name, seen))
        try:
            with Watch(self._watched(), seen):
                yield seen
        finally:
            for pattern in self.patterns.values():
                _set(pattern, _real(pattern))
        self._rows_of(seen)

    def _watched(self) -> list[Function]:
        return [*self.functions, *(each for parts in self._row_functions.values() for each in parts)]

    @functools.cached_property
    def _row_functions(self) -> dict[str, list[Function]]:
        """The functions and patterns of each row, by the row's name."""
        found: dict[str, list[Function]] = {}
        for name, _, _, row in self.rows:
            for how, part in _parts(row):
                if isinstance(part, FunctionType):
                    found.setdefault(name, []).append(Function("finder", f"{name}{how}", 0, part, "None"))
        return found

    def _rows_of(self, seen: Trace) -> None:
        """Count a row as active if one of its functions or patterns was; a row without any may always have been."""
        ids = {id(pattern): name for name, pattern in self.patterns.items()}
        for name, _, _, row in self.rows:
            names = [each.name for each in self._row_functions.get(name, ())]
            names += [ids[id(part)] for _, part in _walk("", row) if id(part) in ids]
            if not names or any(each in seen.active for each in names):
                seen.active.add(name)
            if not names or any(each in seen.reached for each in names):
                seen.reached.add(name)


def _real(pattern: Any) -> re.Pattern[Any]:
    if isinstance(pattern, Pattern):
        return pattern.real
    return _real_compile(pattern.text, pattern._flags)  # noqa: SLF001 - `Lazy` says it nowhere else


def _set(pattern: Any, made: object) -> None:
    if isinstance(pattern, Pattern):
        pattern.made = made
    else:
        pattern._made = made  # noqa: SLF001


def _pattern_piece(name: str, pattern: Any) -> Piece:
    real = _real(pattern)
    never = _real_compile(b"(?!)" if isinstance(real.pattern, bytes) else "(?!)")
    return Piece(
        "pattern",
        name,
        0,
        functools.partial(_set, pattern, never),
        functools.partial(_set, pattern, real),
    )
