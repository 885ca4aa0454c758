"""Collects an attempt's measurements: settings, loaders, shapes, steps and paths. Bounded in size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import join, normpath
from typing import Final

from supervisor.job.knobs.setting_names import last_part, plain

STEPS_THAT_AGREE: Final = 3
"""The number of consecutive steps that must agree, because a warm-up may ramp up accumulation (1, 2, 4, 8)."""
MOST_SETTINGS: Final = 1000
MOST_SHAPES: Final = 64
MOST_LOADERS: Final = 40
MOST_PATHS: Final = 64
MOST_CANDIDATES: Final = 6
_EMBEDDED: Final = (["int64"], ["int32"])
CLOSE_STEPS: Final = 4
"""The number of initial steps recorded individually, with every batch and forward pass (supervisor/instrument/training.py)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option, variable or file key that the script read.

    Attributes:
        by: what read it (argv, argparse, click, tyro, absl, fire, hydra, env, yaml, json, toml, deepspeed, main).
        name: the full name, dotted if nested.
        words: the command-line words that set it.
        value: a number, a boolean, an existing path or a word from a closed list. None for anything else.
        type: the name of its Python type.
        empty: whether the value is an empty string or None.
        given: False if it has its default value, or None if unknown.
        file: the absolute path of the file it was read from.
        shown: the same path as written in the command, or else relative to the working folder.
    """

    by: str
    name: str
    words: tuple[str, ...] = ()
    value: int | float | str | None = None
    type: str = ""
    empty: bool = False
    given: bool | None = None
    file: str | None = None
    shown: str | None = None

    @property
    def is_input(self) -> bool:
        """Whether the user can set it. Numbers computed by DeepSpeed and variables without a command-line word are not inputs."""
        return self.by != "deepspeed" and (self.by != "main" or bool(self.words))

    @property
    def number(self) -> int | None:
        """The value as a count, or None if it is not a positive integer."""
        return self.value if type(self.value) is int and self.value > 0 else None


@dataclass(slots=True)
class Loader:
    """One of a rank's DataLoaders."""

    batch_size: int | None = None
    at: str | None = None
    text: str | None = None
    fed: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """The leading shapes of the loader's batches, and how often each occurred."""
    forwards: int = 0
    drawn: Counter[int] = field(default_factory=Counter)
    """The number of batches drawn in each of the steps that are recorded individually."""

    @property
    def lead(self) -> int:
        """The largest leading dimension of the loader's batches, or 0 if no batch was drawn."""
        return max((shape[0] for shape in self.fed), default=0)


@dataclass(slots=True)
class _Count:
    """A per-step count. `agreed` is the latest value shared by enough consecutive steps."""

    value: int = 0
    run: int = 0
    agreed: int | None = None

    def add(self, total: int, steps: int) -> None:
        each, rest = divmod(total, steps)
        if rest or not each:
            self.value = self.run = 0
            return
        self.run = self.run + steps if each == self.value else steps
        self.value = each
        if self.run >= STEPS_THAT_AGREE:
            self.agreed = each


@dataclass(slots=True)
class Rank:
    """The measurements from one rank's process."""

    pid: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    """The number of ranks on this node, if the launcher reports it."""
    loaders: dict[int, Loader] = field(default_factory=dict)
    forwards: Counter[tuple[int, ...]] = field(default_factory=Counter)
    before_backward: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Shapes in the last forward pass before a backward pass, if no loader fed it and other forward passes came first."""
    token_ids: set[tuple[int, ...]] = field(default_factory=set)
    """Two-dimensional integer input shapes that are passed to an embedding."""
    steps: int = 0
    batches: _Count = field(default_factory=_Count)
    draws: bool = False
    """Whether batches are counted per step. They are not if a thread draws them ahead of time."""
    backwards: _Count = field(default_factory=_Count)
    close_steps: int = 0
    """The number of steps recorded individually. `close_backwards` counts their backward passes."""
    close_backwards: int = 0

    def add(self, kind: str, record: Mapping[str, object]) -> None:
        """Add one of this rank's records."""
        match kind:
            case "phase":
                self.world_size = _whole(record.get("world_size")) or self.world_size
                self.local_world_size = _whole(record.get("local_world_size"))
            case "loader":
                number = _whole(record.get("id"))
                if number in self.loaders or (number is not None and len(self.loaders) < MOST_LOADERS):
                    loader = self.loaders.setdefault(number, Loader())
                    size = _whole(record.get("batch_size")) or _whole(record.get("sampler_batch_size"))
                    loader.batch_size, loader.at = size, _text(record.get("at"))
                    loader.text = _text(record.get("expression"))
            case "shape":
                self._shape(record)
            case "step":
                steps = max((_whole(record.get("steps")) or 1) + (_whole(record.get("skipped")) or 0), 1)
                self.steps += steps
                self.draws = self.draws or bool(record.get("batches"))
                batches, backwards = _whole(record.get("batches")), _whole(record.get("micro_steps"))
                for count, total in ((self.batches, batches), (self.backwards, backwards)):
                    if total is not None:
                        count.add(total, steps)
                if (_whole(record.get("step")) or 0) <= CLOSE_STEPS:
                    self.close_steps += 1
                    self.close_backwards += backwards or 0
            case _:
                pass

    def _shape(self, record: Mapping[str, object]) -> None:
        shapes = record.get("shapes")
        first = shapes[0] if isinstance(shapes, Sequence) and shapes else None
        shape = tuple(size for size in first if type(size) is int) if isinstance(first, Sequence) else ()
        if not shape:
            return
        loader = self.loaders.get(_whole(record.get("loader")) or 0)
        of, dtypes = record.get("of"), record.get("dtypes")
        of_loader = {"batch": loader.fed} if loader is not None else {}
        counts = {"forward": self.forwards, "backward": self.before_backward, **of_loader}.get(str(of))
        if counts is not None and (shape in counts or len(counts) < MOST_SHAPES):
            counts[shape] += 1
            if of == "forward" and _may_be_token_ids(shape, dtypes):
                self.token_ids.add(shape)
        if loader is not None and of == "forward":
            loader.forwards += 1
        elif loader is not None and (step := _whole(record.get("step")) or 0) < CLOSE_STEPS:
            loader.drawn[step] += 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The most common input shape in training forward passes."""
        return self.forwards.most_common(1)[0][0] if self.forwards else ()

    @property
    def loader(self) -> Loader | None:
        """The loader whose batches precede the training forward passes, or None if it ran out of batches long ago."""
        feeding = max(self.loaders.values(), key=lambda loader: loader.forwards, default=None)
        if feeding is None or 2 * feeding.forwards < self.forwards.total():
            return None
        seldom = self.close_steps >= STEPS_THAT_AGREE and 2 * len(feeding.drawn) < self.close_steps
        return None if seldom and not self.pieces(feeding) else feeding

    @property
    def counts_batches(self) -> bool:
        """Whether a loader with a known number of batches per step feeds the rank. If not, only backward passes count."""
        return self.draws and self.loader is not None

    @property
    def is_by_batches(self) -> bool:
        """Whether each batch from the rank's loader is one pass."""
        loader = self.loader
        return loader is not None and self.draws and not self.pieces(loader)

    def pieces(self, loader: Loader) -> int:
        """Return how many pieces, each with its own backward pass, the loop splits a batch from `loader` into, or 0 if unsplit."""
        lead = self.shape[0] if self.shape else 0
        if not lead or 2 * lead > loader.lead:
            return 0
        pieces = -(-loader.lead // lead)
        return pieces if abs(loader.drawn.total() * pieces - self.close_backwards) <= pieces else 0


class Facts:
    """The measurements of one attempt, collected record by record. Bounded in size, however long the attempt runs.

    Args:
        command: the words of the job's command line.
        cwd: the folder the job was started in.
    """

    def __init__(self, command: Sequence[str] = (), cwd: str = "") -> None:
        values = (word.partition("=")[2] or word for word in command)
        self._typed = {normpath(join(cwd, value)): value for value in values}
        self._cwd = join(cwd, "")
        self.by_rank: dict[int, Rank] = {}
        self._settings: dict[tuple[str, str, str | None], Setting] = {}
        self.loaded: dict[str, None] = {}
        self.sought = False
        """Whether the script searched for a checkpoint at a path where it later saved one."""
        self.restored = False
        """Whether optimizer state was loaded before the first step."""
        self.saved: dict[str, None] = {}
        self.argv: tuple[str, ...] = ()
        """The full command line of the first rank that reported, with secrets masked."""

    def add(self, record: Mapping[str, object]) -> None:
        """Add one decoded record. Unknown kinds and malformed values are ignored."""
        number, kind = _whole(record.get("rank")) or 0, _text(record.get("kind")) or ""
        rank = self.by_rank.setdefault(number, Rank())
        match kind:
            case "setting":
                self._setting(record)
            case "saved" | "loaded" | "sought":
                self._path(kind, record)
            case "phase":
                pid = _whole(record.get("pid"))
                if rank.pid not in {pid, None}:
                    # The previous process of this rank is gone, so drop its measurements.
                    rank = self.by_rank[number] = Rank()
                rank.pid = pid
                argv = record.get("argv")
                if not self.argv and isinstance(argv, Sequence) and not isinstance(argv, str):
                    self.argv = tuple(map(str, argv))
                rank.add(kind, record)
            case _:
                rank.add(kind, record)

    def _setting(self, record: Mapping[str, object]) -> None:
        by, name, file = _text(record.get("by")), _text(record.get("name")), _text(record.get("file"))
        if by is None or name is None:
            return
        if len(self._settings) >= MOST_SETTINGS and (by, name, file) not in self._settings:
            return
        words, value, given = record.get("words"), record.get("value"), record.get("given")
        # If a parser runs twice, its second result is right, as defaults may come from a file in the arguments.
        self._settings[by, name, file] = Setting(
            by,
            name,
            tuple(str(word) for word in words) if isinstance(words, Sequence) else (),
            value if isinstance(value, int | float | str) else None,
            _text(record.get("type")) or "",
            record.get("empty") is True or record.get("type") == "NoneType",
            given if isinstance(given, bool) else None,
            file,
            None if file is None else self._typed.get(file, file.removeprefix(self._cwd)),
        )

    def _path(self, kind: str, record: Mapping[str, object]) -> None:
        path = _text(record.get("path"))
        if kind == "sought":
            # Scripts also check for a folder before creating it. Only listing a folder is a search for a checkpoint.
            listed = record.get("by") in {"listdir", "scandir", "iterdir", "glob", "rglob"}
            self.sought = self.sought or listed or record.get("saved", path) == path
        elif path is not None:
            held = self.saved if kind == "saved" else self.loaded
            if (kind == "saved" or not record.get("step")) and len(held) < MOST_PATHS:
                held[path] = None
        if kind == "loaded" and record.get("optimizer_state") is True and not record.get("step"):
            self.restored = True

    @property
    def seen(self) -> tuple[Setting, ...]:
        """Every setting, once for each parser or file that reported it."""
        return tuple(self._settings.values())

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting, with duplicate reports merged."""
        return one_each(self._settings.values())

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks that have reported, in rank order."""
        by_number = (rank for _, rank in sorted(self.by_rank.items()))
        return tuple(rank for rank in by_number if rank.pid is not None or rank.steps or rank.forwards)

    @property
    def world_size(self) -> int | None:
        """The total number of ranks known so far, including those on other nodes. None before any report."""
        ranks = self.ranks
        return max([len(ranks), *(rank.world_size or 0 for rank in ranks)]) or None


FILES: Final = frozenset(("yaml", "json", "toml"))


def one_each(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Merge several readers' reports of a setting. Precedence: parser, word in argv, environment, file, variables.

    A command-line value replaces the value from a file. A library's own `default.yaml` is not a setting of this run.
    """
    kept: list[Setting] = []
    by_key: dict[str, list[int]] = {}
    order = {"argv": 1, "env": 2, **dict.fromkeys(FILES, 3), "deepspeed": 4, "main": 5}
    for setting in sorted(settings, key=lambda each: order.get(each.by, 0)):
        keys = {last_part(setting.name), *_names(setting)}
        near = sorted({at for key in keys for at in by_key.get(key, ())})
        at = next((at for at in near if _is_same(kept[at], setting)), None)
        if at is None:
            for key in keys:
                by_key.setdefault(key, []).append(len(kept))
            kept.append(setting)
        elif setting.by == "argv":
            held = kept[at]
            kept[at] = replace(held, words=tuple(dict.fromkeys(held.words + setting.words)), given=True)
    return tuple(kept)


def _names(setting: Setting) -> set[str]:
    return {plain(name) for name in (setting.name, *setting.words)}


def _is_same(held: Setting, setting: Setting) -> bool:
    """Check whether `setting` adds nothing to `held`, whose source takes precedence."""
    named = not _names(held).isdisjoint(_names(setting))
    if setting.by in FILES and held.by in FILES:
        return named and held.number == setting.number
    if setting.by in FILES:  # a parser's default does not hide a file's value
        given = held.given is not False or held.number == setting.number
        return given and (named or last_part(held.name) == last_part(setting.name))
    return named or (setting.by == "main" and last_part(held.name) == last_part(setting.name))


def _may_be_token_ids(shape: tuple[int, ...], dtypes: object) -> bool:
    return len(shape) == 2 and isinstance(dtypes, Sequence) and dtypes[:1] in _EMBEDDED


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
