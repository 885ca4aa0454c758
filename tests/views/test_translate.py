"""Sentences that are translated by template: none of the product's is missing, none is there for nothing, nothing else is touched."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from textual.binding import Binding

from supervisor.cli import diagnose
from supervisor.cli.check import USAGE as CHECK_USAGE
from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.hang.stacks import WAITINGS
from supervisor.diagnosis.root_rules import RULES
from supervisor.diagnosis.scan.signature_tables import Role, Strength
from supervisor.run.events import Outcome, Phase, RequestKind, StopStep
from supervisor.run.records import FailureClass, Reason
from supervisor.views.appearance import Lang
from supervisor.views.model.run_list import SortKey
from supervisor.views.tui.dashboard.acting import GROUPS, KEYS
from supervisor.views.tui.panels.ranks_table import COLUMNS
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.translate import (
    BadCatalogue,
    Translator,
    catalogue,
)
from tests.views.sentences import GAP, arguments_of, sentences, strings

ROOT = Path(__file__).parents[2] / "supervisor"
SCREENS = sorted(
    p for p in (ROOT / "views/tui").rglob("*.py") if p.name not in {"textual_theme.py", "layout.py"}
)
RECORDS = [
    *(ROOT / "diagnosis" / f"{name}.py" for name in ("verdict", "advice")), ROOT / "diagnosis/hang_verdict.py",
    ROOT / "cli/verdict_text.py",
    *(ROOT / "policy" / f"{name}.py" for name in ("rules", "decide", "changes", "same_training")),
    *(ROOT / "policy/health" / f"{name}.py" for name in ("early_signs", "straggler", "ending")),
    *(
        ROOT / "preflight" / f"{name}.py"
        for name in ("collective", "gpus", "host", "meeting", "network", "target")
    ),
    ROOT / "preflight/checks.py", ROOT / "run/trash.py", ROOT / "run/ownership.py",
    ROOT / "keeper/base/control_input.py",
    *(ROOT / "keeper" / f"{name}.py" for name in ("planning/readiness", "fit_batch", "requests")),
    ROOT / "keeper/process/takeover.py", ROOT / "keeper/stalls/hang_watch.py", ROOT / "keeper/observer.py",
    ROOT / "keeper/monitoring/collector.py", *sorted((ROOT / "views/logs").glob("*.py")),
    ROOT / "views/wording/phrases.py", ROOT / "views/model/cause_context.py", ROOT / "job/launch/guided.py",
]  # fmt: skip
STORY = ROOT / "views/headless/story.py"  # of which the report of a trial is translated
# What stands in a sentence's gaps.
FILLERS = (
    "7", "cuda_oom", "finished", "failed", "restart", "3 m 07 s", "GPU memory ran out",
    "1 × accumulation 2 × 2 ranks = global batch 4",
)  # fmt: skip
KEPT = frozenset(["nan", "inf", "GiB", "rank", "ranks", "torch", "stoker", "pt", "PATH", "e", "r"])
# A verb's help, and the check of data files, whose findings are the trainer's own words.
ENGLISH_ALONE = frozenset(
    (
        CHECK_USAGE, "stoker check", "files, or folders of .bin, .jsonl and .txt files",
        "token ids must lie below N (default: as noted beside the file, else 50304)",
        "type of the tokens in a .bin without header (default: uint16)",
        "tokens of a sample: a shorter file is a fault", "the text's key in JSON lines (default: text)",
        "nothing to check: name files with --data PATH…",
        f"{GAP}: the bundled trainer, which reads the data, is not there",
    )
)  # fmt: skip
# Parts of sentences that are whole in `WHOLE`, and what is the same in every language.
PARTS = frozenset(
    text.replace("~", GAP)
    for text in (
        " since the checkpoint ~", "lost the connection to ~", "crashed (~: ~)", "A data worker ~~",
        "The stacks show ~ ~",
        "~ and the others elsewhere: the ranks took different branches. Look for a collective under `if rank == …`, and for batches that differ in number.",
        "~: look at what its data workers read, and give the DataLoader a timeout=.",
        "~: look for a kernel that does not end, and for Xid errors in `dmesg`.",
        "~: find out who suspended it; `kill -CONT` lets it continue.", ", no checkpoint is known", "uid ~",
        "A collective timed out: ~ never joined it", "A collective timed out: rank ~ never joined it", "waited for ~ ~",
        "stoker attach ~", "stoker continue ~", "micro ~, ~, global ~~", " within ~", "the same failure as attempt~ ~",
        "stoker run --nproc-per-node 2 train.py", "stoker attach train.log", "stoker run", "stoker run --config ~",
        "# Made by `stoker init`. To start it: stoker run~", "stoker run --resume-knob '~'",
        ": ~ starts the next attempt", "the run is over (~)~", "pid ~~", "pid ~", "~ (pid ~)",
        "no free port among ~ of ~-~: name one with --master-port", "pids ~~", "stoker run --config demo/demo",
        "~ (~ probes, ~ s)", "~ (~ probe, ~ s)", "not ~", "~ and worse", " (~ searched)",
        "~ copied (where the terminal allows it: OSC 52)", " after ~", "✗ attempt ~ failed~, ~", " (until ~)",
        "waiting for you: ~~", "waiting for a person~", " (~~ steps again)", " (~~ step again)", " at step ~",
        " since step ~", "it ran out of memory with these settings", ", ~ at step ~", "~~, last ~", " × ~ tokens",
        "aborted at exit, after training had finished", " on rank ~", " on ranks ~", " on ranks ~ …",
        "Reduce ~ (now ~)", "~: ~ divides the global batch.", "~ minutes",
        "restarted ~ within ~: it runs, but does not last",
        "more data workers (num_workers), pin_memory and persistent_workers, or data prepared on a local disk, would help",
        "no further checkpoint fits", "~ more checkpoint~ fit",
        "~ on the disk (~ GiB free, ~ GiB each): free some, or keep fewer (keep_checkpoints)",
        ", the GPUs are busy ~ % of the time", "~ % of a step is waiting for data~: ~", "fetching data",
        "on its own work, as measured in the ranks", "outside of the step", "before it reports the step",
        "rank ~ holds the others up by ~ s in every step of ~ s: it spends them ~", " (ended after ~ s)",
        " (normally ~ s)", ", and ~ other rank~", "trial of ~ steps: ~", "fits: ~ steps in ~", "made no ~ steps in ~",
        " (pid ~ on ~)", "a supervisor process looks after it~",
    )
)  # fmt: skip
WORKERS = "more data workers (num_workers), pin_memory and persistent_workers, or data prepared on a local disk, would help"
WHOLE = (
    "fits: 5 steps in 60 s", "made no 5 steps in 60 s", "a supervisor process looks after it (pid 12 on node_7)",
    "trial of 20 steps: finished at step 20",
    "No progress for 310 s, but stoker won't end it: rank 1 sleeps in sleep() at my/train.py:30; if it hangs, stop it with s or `stoker stop`",
    "reported only, stoker won't end it: rank 1 waits for a thread of its own that is at work in Event.wait() at my/train.py:30, and 2 other ranks; if it hangs, stop it with s",
    "reported only, stoker won't end it: rank 1 is waiting for data at my/train.py:30; if it hangs, stop it with s",
    "rank 1 computes in fetch_it()",
    *(f"rank 1 {waiting.words} in call_it() at my/train.py:30" for waiting in WAITINGS),
    "No progress for 12 s (normally 1.2 s): 7 ranks in all_reduce at my/train.py:41, rank 3 in read_it() at my/data.py:41",
    "rank 3 waiting for data at my/data.py:41, 2 ranks stopped by a signal (SIGSTOP)",
    "Another process uses this GPU: process 12 of bob_7 (3.0 GiB on GPU 1).",
    "12 steps since the checkpoint about step 200, by its time",
    "from the checkpoint about step 200, by its time (about 12 steps again)", "with --resume c2.pt, as given",
    "not stopped",
    "cuda_oom: steps were made and no whole checkpoint of this run was found for --resume; press e and add --resume PATH, or start with --resume-knob '--resume=DIR/FILE'; c3.pt was written at 21:15; whether it is whole is not known",
    "hang: steps were made since --resume c2.pt, and no whole checkpoint of this run was found: e gives another path, r starts from that one again",
    "waiting for you, for another 23 h 59 m", "waited for rank 1 in all_reduce at my/train.py:41",
    "lost the connection to a peer",
    "The stacks show rank 1 waiting for data at my/train.py:30: look at what its data workers read, and give the DataLoader a timeout=.",
    "The stacks show rank 1 waiting for the GPU at my/train.py:30: look for a kernel that does not end, and for Xid errors in `dmesg`.",
    "The stacks show rank 1 stopped by a signal (SIGSTOP): find out who suspended it; `kill -CONT` lets it continue.",
    "63 ranks: waited for ranks 1, 3 in all_gather", "was waiting for the GPU at my/train.py:41",
    "Look why my/data.py:41 does not end (a loop without a bound, a lock, a file or a server that does not answer): the stacks show rank 3 in read_it(), outside the collective.",
    "A collective timed out: ranks 1, 3 never joined it", "■ stopped by bob_7", "the same failure as attempt 1",
    "3 lines (40% searched)", "7+ found (40% searched)", "3 lines copied (where the terminal allows it: OSC 52)",
    "✗ attempt 1 failed after 3 m 08 s, step 1 212", "waiting for you",
    "waiting for you: e, r, s (until tomorrow 06:41)", "waiting for a person (until 2026-11-25 06:41)",
    "from the checkpoint at step 200 (12 steps again)", "nan or inf since step 12, last 1.005",
    "nan, inf at step 12, last 1.005",
    "restart? it ran out of memory with these settings; 12 steps may be lost: the next attempt begins from the first step, unless the script resumes by itself",
    " · micro-batch 8 × accumulation 4 × 2 ranks = global batch 64",
    " · micro-batch 8 × 2 048 tokens × accumulation 4 × 2 ranks = global batch 131 072 tokens",
    " · micro-batch 8, accumulation 4, global batch 131 072 tokens",
    "restart? this ends attempt 1 at step 1 212+; the next begins from the checkpoint at step 200 (12 steps again)",
    "restart? this ends attempt 2 before its first step; the next begins from the newest checkpoint that the script finds",
    "12 steps may be lost: the next attempt begins from the first step, unless the script resumes by itself",
    "the next attempt begins with --resume c2.pt, as given", "added at the launch: --resume=c2.pt",
    "Rank 1 aborted at exit, after training had finished", "More than one rank crashed",
    "A rank was killed (SIGKILL); most often memory ran out on the host (likely, not certain)",
    "Training hung on ranks 0, 1, 2 …", "Reduce device_batch_size (now 16): 8 divides the global batch.",
    "worker_crash: restarted 3 times within 10 minutes: it runs, but does not last",
        ("the run continues after it could not write (‹[28]›): what is trained since the last whole checkpoint would be lost; "
        "free space, or look at the folder's rights and mount"),
    "2 more checkpoints fit on the disk (5.0 GiB free, 2.00 GiB each): free some, or keep fewer (keep_checkpoints)",
    f"34 % of a step is waiting for data, the GPUs are busy 61 % of the time: {WORKERS}",
    "rank 1 holds the others up: in 7 of 10 looks at the stacks they waited, and it was at run_it.py:6",
    "rank 1 holds the others up by 0.2 s in every step of 1.1 s: it spends them outside of the step (GPU 1 is throttled)",
    "cuda_oom: micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged: the largest smaller divisor",
    "gpu_fault: without GPU 1: 3 ranks, micro-batch 4 unchanged, accumulation 2 → 3, ranks 4 → 3, global batch 64 → 72",
    "cuda_oom: restarted once for this without progress; gradient checkpointing, shorter sequences or sharding would help",
    "micro-batch 12 is the largest that fits: 12 × accumulation 2 × 2 ranks = global batch 48 (3 probes, 20 s)",
)  # fmt: skip


WORD = re.compile(r"[A-Za-z]{2,}")


@cache
def catalogue_of() -> dict[str, str]:
    return catalogue(Lang.ZH)


@cache
def chinese() -> Translator:
    return Translator(catalogue_of())


@cache
def numbered() -> Translator:
    """As `chinese`, with the number of each entry that was taken before its words."""
    return Translator({key: f"\x02{at}\x03{value}" for at, (key, value) in enumerate(catalogue_of().items())})


def keys_of(text: str) -> list[str]:
    """The keys of the entries that translating a text takes."""
    entries = list(catalogue_of())
    return [entries[int(at)] for at in re.findall("\x02(\\d+)\x03", numbered()(text))]


def left_in_english(text: str) -> set[str]:
    """Words of the sentence that stay English and that its entries do not keep, with the best filler of its gaps."""
    found = []
    for filler in FILLERS:
        entries, filled = catalogue_of(), text.replace(GAP, filler)
        kept = " ".join([filler, *(entries[key] for key in keys_of(filled))])
        shown = re.sub(r"`[^`]*`|--[\w-]+|\w+=\S*|\S*[_/]\S*", " ", chinese()(filled))
        found.append(set(WORD.findall(shown)) - set(WORD.findall(kept)) - KEPT)
    return min(found, key=len)


@pytest.mark.parametrize("path", [*SCREENS, *RECORDS, STORY], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_is_missing(path: Path) -> None:
    found = arguments_of(path, frozenset(["tr"])) if path == STORY else sentences(path)
    missing = {
        text: words
        for text in found
        if text not in PARTS | ENGLISH_ALONE and (words := left_in_english(text))
    }
    assert not missing


def test_whole_sentences_of_parts_are_translated() -> None:
    assert not {text: words for text in WHOLE if (words := left_in_english(text))}


def test_words_handed_to_the_translator_are_known() -> None:
    """Labels and titles are single words, which no pattern tells from names: those that are handed over are known."""
    missing = {
        text
        for path in SCREENS
        for text in arguments_of(path, frozenset(["tr", "section", "spoken", "key_line"]))
        if GAP not in text and not set(keys_of(text)) and text not in {"", *PARTS}
    }
    assert not missing


def words_of_tables() -> set[str]:
    """Words that are shown out of tables: keys, states, columns, classes."""
    bindings = [binding for binding in KEYS if isinstance(binding, Binding)]
    for pane in panes():
        bindings += [binding for binding in pane.BINDINGS if isinstance(binding, Binding)]
    found = {binding.description for binding in bindings} | {b.tooltip for b in bindings if b.tooltip}
    found |= {*GROUPS.values(), *COLUMNS, *map(str, SortKey)}
    for enum in (Outcome, Phase, RequestKind, StopStep, FailureClass, Reason):
        found |= {member.value.replace("_", " ") for member in enum}
    for text in class_texts().values():
        found |= {text.title, *text.advice}
    found |= {rule.why for rule in RULES}
    found |= {level.word for level in Strength} | {role.value for role in (Role.CAUSE, Role.CONSEQUENCE)}
    return found


def panes() -> set[type[Panel]]:
    """Every kind of pane there is."""
    for info in pkgutil.walk_packages([str(ROOT / "views/tui")], "supervisor.views.tui."):
        importlib.import_module(info.name)
    found, new = set[type[Panel]](), {Panel}
    while new:
        found |= new
        new = {
            kind
            for known in new
            for kind in known.__subclasses__()
            if kind.__module__.startswith("supervisor.")
        }
    return found


def test_words_of_tables_are_known() -> None:
    assert not {word for word in words_of_tables() if not set(keys_of(word))}


@pytest.mark.thorough
def test_no_entry_is_there_for_nothing() -> None:
    """Each entry is used by a sentence of the sources, or at least made of words that stand in them."""
    used: set[str] = set()
    for text in [*WHOLE, *words_of_tables(), *(t for path in [*SCREENS, *RECORDS] for t in sentences(path))]:
        for filler in FILLERS:
            used |= set(keys_of(text.replace(GAP, filler)))
    source = " ".join(text.replace("_", " ") for path in ROOT.rglob("*.py") for text in strings(path))
    for key in catalogue(Lang.ZH).keys() - used:
        pieces = re.split(r"\{\w+\}", key.replace("(s)", ""))
        lost = [piece for piece in pieces if not all(word in source for word in WORD.findall(piece))]
        assert not lost, key


@given(some.text(max_size=200))
def test_what_has_no_entry_is_not_touched(text: str) -> None:
    shown = chinese()(text)
    assert shown == text or set(keys_of(text))


SENTENCES = sorted(catalogue(Lang.ZH))


@given(some.sampled_from(SENTENCES), some.lists(some.integers(0, 99), min_size=6, max_size=6))
def test_every_entry_is_found(key: str, numbers: list[int]) -> None:
    """A sentence made of a key is found by an entry, with its numbers."""
    shown = iter(numbers)
    text = re.sub(r"\{\w+\}", lambda _: f"{next(shown)}", key)
    text = re.sub(r"(?<=\w)\(s\)", "s", text)  # a plural
    fallible = any(":!" in place for place in re.findall(r"\{[^}]*\}", catalogue_of()[key]))
    assert fallible or set(keys_of(text)) or key in {"; ", ": ", ", "}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("✗ attempt 1 failed, step 12", "✗ 第 1 次尝试失败，第 12 步"), (" · attempt 2", " · 第 2 次尝试"),
        ("⚠ hang: ending in 27 s", "⚠ 卡死：27 s 后结束"),
        ("reported only, stoker won't end it: rank 1 sleeps in sleep() at a.py:3; if it hangs, stop it with s", "只作提示，stoker 不会结束它：rank 1 在睡眠：sleep()，a.py:3；若确实卡死，请按 s 停止"),
        ("GPU memory ran out on rank 1 (likely, not certain)", "显存不足（rank 1）（很可能，但不确定）"),
        ("code_error: something nobody foresaw", "code_error: something nobody foresaw"),
    ],
)  # fmt: skip
def test_examples(text: str, shown: str) -> None:
    assert chinese()(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step 12", "第 12 步"), ("step 1.5–2", "第 1.5–2 步"), ("step x", "step x"), ("step ", "step "),
        ("1 line", "1 行"), ("2 lines", "2 行"), ("2 linesx", "2 linesx"), ("waited 3 h 12 m", "等了 3 h 12 m"),
        ("waited a day", "waited a day"), ("at a.py:3", "在 a.py:3"), ("at a b", "at a b"),
        ("in f(x) of 2", "2 的 f(x)"), ("in f(x, y) of 2", "in f(x, y) of 2"), ("so: step 3", "如此：第 3 步"),
        ("so: no such", "如此：no such"), ("must: step 3", "必须：第 3 步"), ("must: no such", "must: no such"),
        ("✗ step 1 · step 2; unknown, step 3 ", "✗ 第 1 步 · 第 2 步；unknown, 第 3 步 "), ("? step 4", "? 第 4 步"),
        ("unknown · nobody", "unknown · nobody"), ("step " + "1" * 995, "第 " + "1" * 995 + " 步"),
        ("step " + "1" * 996, "step " + "1" * 996), ("so: " * 11 + "step 1", "如此：" * 11 + "第 1 步"),
        ("so: " * 12 + "step 1", "如此：" * 12 + "step 1"), ("the step 7 of 9", "9 步的第 7 步"),
    ],
)  # fmt: skip
def test_places_take_what_their_names_allow(text: str, shown: str) -> None:
    entries = {
        "step {n}": "第 {n} 步", "{n} line(s)": "{n} 行", "waited {span}": "等了 {span}", "at {place}": "在 {place}",
        "in {call} of {n}": "{n} 的 {call}", "so: {what}": "如此：{what:t}", "must: {what}": "必须：{what:!}",
        "the step {a} of {b}": "{b} 步的第 {a} 步", "; ": "；",
    }  # fmt: skip
    assert Translator(entries)(text) == shown


@pytest.mark.parametrize(
    "entries", [{"step {n}": "第步"}, {"step {n}": "第 {m} 步"}, {"{a}{b}": "{a}{b}"}, {"{a} {a}": "{a}"}]
)
def test_bad_entries_are_refused(entries: dict[str, str]) -> None:
    with pytest.raises(BadCatalogue):
        Translator(entries)


OOM = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def test_diagnose_is_translated_and_json_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STOKER_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    log = tmp_path / "train.log"
    log.write_text(OOM)
    assert diagnose.main([str(log)]) == diagnose.EXIT_FAILURE
    assert "GPU memory ran out on rank 1" in capsys.readouterr().out
    diagnose.main([str(log), "--lang", "zh"])
    asked = capsys.readouterr().out
    assert "显存不足（rank 1）" in asked
    assert "CUDA out of memory. Tried to allocate 2.00 GiB." in asked
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    diagnose.main([str(log)])
    assert capsys.readouterr().out == asked
    diagnose.main([str(log), "--lang", "en"])
    assert "GPU memory ran out on rank 1" in capsys.readouterr().out
    diagnose.main([str(log), "--json"])
    assert '"title":"GPU memory ran out on rank 1"' in capsys.readouterr().out
