"""Measures what each piece of the judging code contributes: switches it off alone and judges all labeled texts of the repository again.

    python bench/ablation.py [--only PREFIX] [--sample N] [--texts BLOBS] [--keep bench/results/ablation.json]
    python bench/ablation.py --compare OLD.json [NEW.json]

The pieces (bench/ablation_switches.py) are found in the code: each signature, each row of a table, each predicate, finder, stage, collector and action, and each
pattern of `diagnosis`, `sources/metrics` and `text`. Texts and labels: bench/labelled.py. Each text is first judged with everything on, to record which pieces did
something. Only the texts in which a piece did something are judged again without it, in a fixed order, until `ENOUGH` of them change class, cause or value;
`judged` is their number. A piece then contributes one of:

    unreached   no text reaches it, so the texts say nothing about it
    idle        it is reached, but never does anything
    sampled     nothing changed, but only some of its texts were judged (--sample, --most): not shown
    nothing     it does something, but no verdict and no value changes without it
    words       confidence, title, advice or consequences change; class, rank, cause and values do not
    matters     class, reason, rank, cause or a value changes

The table is written as JSON, one piece a line, and as a page beside it that lists pieces without a contribution first. The same code gives the same table, so two tables
can be compared.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Keep this import first: it makes patterns switchable while the modules of supervisor are imported.
from bench.ablation_switches import ROOT, Piece, Switches
from bench.common import command_line
from bench.labelled import Engine, Outcome, Text, scratch_folder, texts
from supervisor.diagnosis.scan.signature_tables import Signatures, parse_tables
from supervisor.diagnosis.scan.windows import compile_matcher, match_in_turn
from supervisor.sources.signature_files import read_tables

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


def _nothing() -> None:
    pass


# A piece that changes nothing when switched off. Each table judges it over all texts; a table where it shows a change is invalid.
CONTROL = Piece("control", "nothing is off", 0, _nothing, _nothing)


class Matcher:
    """All signatures but one; records which matched."""

    def __init__(self, signatures: Signatures) -> None:
        self._inner = compile_matcher(signatures)
        self.off = -1
        self.matched: set[int] = set()

    def scan(self, block: bytes, found: Any) -> None:
        def wanted(index: int, end: int) -> None:
            self.matched.add(index)
            if index != self.off:
                found(index, end)

        self._inner.scan(block, wanted)

    def each(self, windows: Any) -> Any:
        return match_in_turn(self.scan, windows)


class TooLongError(BaseException):
    """A text took too long. Not an Exception, so that no error handler catches it."""


@dataclasses.dataclass
class Found:
    """What is judged, and with which engine."""

    switches: Switches
    pieces: dict[str, Piece]
    texts: list[Text]
    engine: Engine
    matcher: Matcher
    most: int = 0
    sample: int = 1
    base: list[Outcome] = dataclasses.field(default_factory=list)
    reached: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    active: dict[str, list[int]] = dataclasses.field(default_factory=dict)


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


def prepared(scratch: Path, blobs: Path | None, sample: int) -> Found:
    """Engine, texts and pieces, before any text is judged."""
    signatures = parse_tables(read_tables())
    matcher = Matcher(signatures)
    switches = Switches()
    every = [CONTROL, *switches.pieces(), *_signature_pieces(signatures, matcher)]
    pieces = {piece.id: piece for piece in every}
    chosen = texts(scratch, blobs)[::sample]
    return Found(switches, pieces, chosen, Engine(signatures, matcher), matcher, sample=sample)


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
        with found.switches.traced() as seen:
            watched = judged(text, found.engine)
        if watched != plain:
            raise AssertionError(f"{text.name} is read otherwise while it is watched")
        entries = found.engine.signatures.entries
        hits = {f"{entry.family}.{entry.id}" for entry in entries if entry.place in found.matcher.matched}
        hits |= {
            f"{entry.family}.{entry.id}"
            for entry in (entries if text.error_files else ())
            if re.search(entry.regex, text.error_files)
        }
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
    found.switches.clear()
    piece.off()
    try:
        order = sorted(places, key=lambda place: zlib.crc32(found.texts[place].name.encode()))
        for place in order[: found.most or None]:
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
        found.switches.clear()
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
    if name in _found.active and name != CONTROL.id and (_found.sample > 1 or _found.most):
        return "sampled"
    if name in _found.active:
        return "nothing"
    return "idle" if name in _found.reached else "unreached"


def _limit() -> None:
    """Set up a worker process: it ends a text that runs forever or fills the memory."""
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def measured(
    found: Found, only: str, processes: int, *, known: Sequence[dict[str, Any]] = (), tell_rows: bool = False
) -> list[dict[str, Any]]:
    """The table: one row a piece, by kind and name. `known`: rows of an earlier start, which are reused."""
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
    done = {f"{row['kind']} {row['name']}" for row in known}
    wanted = sorted(
        name for name, piece in found.pieces.items() if _is_wanted(piece, only) and name not in done
    )
    wanted.sort(key=lambda name: len(found.active.get(name, ())))
    table = list(known)
    start = time.monotonic()
    with context.Pool(processes, _limit) as pool:
        for row in pool.imap_unordered(without, wanted):
            table.append(row)
            if tell_rows:
                print(json.dumps(row, ensure_ascii=False), flush=True)
            if len(table) % 100 == 0:
                print(
                    f"{len(table)} of {len(known) + len(wanted)} pieces, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return sorted(table, key=lambda row: (row["kind"], row["name"]))


def _is_wanted(piece: Piece, only: str) -> bool:
    return piece is CONTROL or piece.id.startswith(only) or piece.name.startswith(only)


# -- what is kept -----------------------------------------------------------------------------------


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


def page(head: Mapping[str, Any], table: Sequence[Mapping[str, Any]]) -> str:
    """The same as a page: pieces without a contribution first."""
    lines = [
        "# What each piece of judging contributes",
        "",
        f"Made by `make ablation` on commit {head['commit']}: {head['texts']} labelled texts, {len(table)} pieces, each switched off alone. How to read it: `python bench/ablation.py --help`. Not on this page: pieces that matter and change no class."
        + _sampled(table),
        "",
        "| kind | " + " | ".join(ORDER) + " | lines that contribute nothing |",
        "|---|" + "---:|" * (len(ORDER) + 1),
    ]
    for kind in sorted({row["kind"] for row in table}):
        ours = [row for row in table if row["kind"] == kind]
        counts = collections.Counter(row["contributes"] for row in ours)
        spare = sum(row["lines"] for row in ours if row["contributes"] in {"idle", "nothing"})
        lines.append(
            f"| {kind} | " + " | ".join(str(counts[word]) for word in ORDER) + f" | {spare or '–'} |"
        )
    for word in ("nothing", "idle", "sampled", "words", "unreached", "matters"):
        rows = [row for row in table if row["contributes"] == word]
        if word == "matters":
            rows = sorted((row for row in rows if row["class"]), key=lambda row: row["class"])
        lines += ["", f"## {word} ({len(rows)})", ""]
        if word in {"matters", "words"}:
            lines += [
                "| piece | lines | texts | judged | class changes | wrong | right | fields |",
                "|---|---:|---:|---:|---:|---|---|---|",
            ]
            lines += [
                f"| {row['kind']} `{row['name']}` | {row['lines'] or '–'} | {row['texts']} | {row['judged']} | {row['class']} | {_counts(row['wrong'])} | {_counts(row['right'])} | {_counts(row['fields'])} |"
                for row in rows
            ]
        else:
            for kind in sorted({row["kind"] for row in rows}):
                names = [
                    f"`{row['name']}`" + (f" ({row['lines']})" if row["lines"] else "")
                    for row in rows
                    if row["kind"] == kind
                ]
                lines += [f"**{kind}** ({len(names)}): " + ", ".join(names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _sampled(table: Sequence[Mapping[str, Any]]) -> str:
    counts = collections.Counter(row["every nth text"] for row in table if "every nth text" in row)
    return "".join(
        f" {count} pieces that many texts come to were judged on each {nth}th text alone, as the JSON says of each."
        for nth, count in counts.items()
    )


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items()) or "–"


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The differences between two tables, one line each."""
    before, after = ({f"{row['kind']} {row['name']}": row for row in one["pieces"]} for one in (old, new))
    for family in sorted(old["families"].keys() | new["families"].keys()):
        was, now = old["families"].get(family), new["families"].get(family)
        if was != now:
            yield f"texts {family}: {was} -> {now}"
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            one = was or now
            assert one is not None
            yield f"{'new' if was is None else 'gone'}: {name} ({one['contributes']}, {one['lines']} lines)"
        elif was["contributes"] != now["contributes"] or was["class"] != now["class"]:
            yield f"{name}: {was['contributes']}, class {was['class']} -> {now['contributes']}, class {now['class']}"


def _rows_in(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"kind"')]


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
    parser.add_argument(
        "--only",
        default="",
        metavar="PREFIX",
        help="only pieces whose name, or kind and name, begin with PREFIX",
    )
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth text")
    parser.add_argument(
        "--texts", type=Path, metavar="BLOBS", help="a folder with the public logs, named by blob"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", action="store_true", help="print each row as soon as it is known")
    parser.add_argument(
        "--resume", type=Path, metavar="ROWS", help="output of an earlier --rows: do not measure these again"
    )
    parser.add_argument(
        "--most", type=int, default=0, metavar="N", help="at most N texts a piece (for a busy machine)"
    )
    parser.add_argument("--commit", default="", help="the commit to name (default: that of the checkout)")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="TABLE.json")
    args = parser.parse_args(argv if argv is None else list(argv))
    if args.compare:
        tables = [json.loads(path.read_text(encoding="utf-8")) for path in args.compare]
        if len(tables) == 1:
            tables.append(
                json.loads((ROOT / "bench" / "results" / "ablation.json").read_text(encoding="utf-8"))
            )
        print("\n".join(compared(*tables[:2])) or "no difference")
        return 0
    with scratch_folder() as scratch:
        found = prepared(Path(scratch), args.texts, args.sample)
        found.most = args.most
        known = _rows_in(args.resume) if args.resume is not None else []
        table = measured(found, args.only, args.processes, known=known, tell_rows=args.rows)
    bounds = {"at most judged of a piece": args.most} if args.most else {}
    head = {"commit": args.commit or _commit(), **bounds, **summary(found)}
    if args.keep is not None:
        args.keep.write_text(written(head, table), encoding="utf-8")
        args.keep.with_suffix(".md").write_text(page(head, table), encoding="utf-8")
    counts = collections.Counter((row["kind"], row["contributes"]) for row in table)
    print(json.dumps(head, indent=1))
    for kind in sorted({row["kind"] for row in table}):
        print(f"{kind:10}", "  ".join(f"{word} {counts[kind, word]}" for word in ORDER))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
