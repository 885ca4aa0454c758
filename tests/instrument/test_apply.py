"""A plan's values reach the script: its words, its environment, what its configuration file is parsed to. Nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.text.redact import HIDDEN
from tests.instrument.child import PYTHON, Ended, asked_of, run
from tests.instrument.test_settings import TRAINS

BATCH = {"words": ["--batch-size", "-b"], "name": "batch_size", "value": 4}
SHOWS = "import sys, json\nprint(json.dumps(sys.argv[1:]))\n" + TRAINS


def apply(words: list[str], *options: dict[str, Any], **rest: Any) -> str:
    """The plan for a process whose whole command line was `words` in the first attempt."""
    return json.dumps({"argv": words, "options": list(options), **rest})


def planned(
    folder: Path, words: list[str], *options: dict[str, Any], recorded: list[str] | None = None, **rest: Any
) -> Ended:
    """``python train.py WORDS`` under a plan; `recorded`: what the words were in the first attempt."""
    first = ["train.py", *(words if recorded is None else recorded)]
    environment = rest.pop("environment", {})
    plan = apply([PYTHON, *first], *options, **rest)
    return run(["train.py", *words], folder, STOKER_APPLY=plan, **environment)


def answers(ended: Ended) -> list[tuple[Any, ...]]:
    """What each `applied` says."""
    assert (ended.code, ended.of("note")) == (0, []), ended.err
    return [(one["by"], one["name"], one.get("before"), one["after"]) for one in ended.of("applied")]


HYDRA = {"words": ["trainer.batch"], "name": "trainer.batch", "value": 4}
PAIR = {"words": ["TRAIN.BATCH"], "name": "TRAIN.BATCH", "value": 4}
SWITCH = {"words": ["--resume"], "name": "resume", "value": True}


CHANGES = [
    (BATCH, "--batch-size 8 --lr 1", "--batch-size 4 --lr 1", 8),
    (BATCH, "--batch-size=8", "--batch-size=4", 8),
    (BATCH, "-b 8", "-b 4", 8),
    (BATCH, "-b8 x", "-b4 x", 8),
    (BATCH, "--lr 1", "--lr 1 --batch-size=4", None),
    (BATCH, "--lr 1 -- x", "--lr 1 --batch-size=4 -- x", None),
    (BATCH, "--batch-size-eval 8", "--batch-size-eval 8 --batch-size=4", None),
    ({**BATCH, "words": ["-b"]}, "--lr 1", "--lr 1 -b 4", None),
    (HYDRA, "trainer.batch=8 lr=1", "trainer.batch=4 lr=1", 8),
    (HYDRA, "+trainer.batch=8", "+trainer.batch=4", 8),
    (HYDRA, "lr=1", "lr=1 trainer.batch=4", None),
    (PAIR, "LR 0.1 TRAIN.BATCH 8 SEED 1", "LR 0.1 TRAIN.BATCH 4 SEED 1", 8),
    (PAIR, "--opts TEST.BATCH 8 TRAIN.BATCH 8", "--opts TEST.BATCH 8 TRAIN.BATCH 4", 8),
    ({**PAIR, "words": ["train.batch"]}, "out o train.batch 8", "out o train.batch 4", 8),
    ({**PAIR, "words": ["BATCH"]}, "BATCH 8", "BATCH 4", 8),
    (SWITCH, "--lr 1", "--lr 1 --resume", None),
    ({**SWITCH, "value": "/tmp", "words": ["--load"]}, "--load --lr 1", "--load /tmp --lr 1", None),
]  # fmt: skip
CHANGING = """
import json, sys
from _stoker_instrument import settings
settings._answer = lambda *answer: answers.append(answer)
for line in sys.stdin:
    option, words = json.loads(line)
    answers, sys.argv, settings.plan.options = [], ["train.py", *words], [option]
    settings._change_words()
    print(json.dumps([sys.argv[1:], answers]))
"""


def test_words_are_replaced_or_added(tmp_path: Path) -> None:
    cases = "\n".join(json.dumps([option, words.split()]) for option, words, *_ in CHANGES)
    done = asked_of(CHANGING, cases, tmp_path)
    for (option, words, changed, before), (argv, told) in zip(CHANGES, done, strict=True):
        assert argv == changed.split(), words
        assert [(name, after) for _, name, _, after in told] == [(option["name"], option["value"])], words
        held = str(before) if before is not None else None
        assert told[0][2] == held, words


@pytest.mark.parametrize("other", [False, True])
def test_only_the_process_that_was_recorded_is_changed(tmp_path: Path, other: bool) -> None:
    (tmp_path / "train.py").write_text(SHOWS)
    recorded = ["--batch-size", "8", "--name", "y" if other else "x", "--local_rank=1"]
    ended = planned(tmp_path, ["--batch-size", "8", "--name", "x"], BATCH, recorded=recorded)
    assert json.loads(ended.out)[1] == ("8" if other else "4")
    assert len(answers(ended)) == (not other)


SECRET = "--api-key (s3cr\net -b 8"
SAME = [
    ("--rank 0 -b 8 --gpu 0", "--rank 1 -b 8 --gpu 1", True),
    ("-b 8 --node_rank=0", "-b 8 --node_rank=1", True),
    ("-b 8 --dist-rank 10", "-b 8 --dist-rank 9", True),
    ("-b 8 --rank 0", "-b 8 --seed 0", False),
    ("-b 8 --rank 0 --seed 0", "-b 8 --rank 1 --seed 1", False),
    ("-b 8 --lora_rank_alpha 8", "-b 8 --lora_rank_alpha 9", False),
    ("-b 8 --rank 0", "-b 8 --rank 0 1", False),
    ("-b 8 --gpu 0", "-b 8 --gpu all", False),
    (f"--api-key {HIDDEN} -b 8", SECRET, True),
    (f"--api-key=sk-{HIDDEN} -b 8", SECRET, False),
    (f"--{HIDDEN} {HIDDEN} -b 8", SECRET, True),
    (f"--api-key x{HIDDEN}z -b 8", SECRET, False),
    (f"{HIDDEN} -b 8", SECRET, False),
    (f"--api-key (s|{HIDDEN} -b 8", SECRET, False),
]
COMPARING = """
import json, sys
from _stoker_instrument import settings
for line in sys.stdin:
    print(json.dumps(settings._is_planned(*json.loads(line))))
"""


def test_the_process_that_a_plan_is_for_is_found_by_its_words(tmp_path: Path) -> None:
    """Ranks that a shell starts differ in their numbers alone; a word that the journal hides may be anything."""
    cases = "\n".join(
        json.dumps([["python", *own.split(" ")], ["python", *recorded.split(" ")], [BATCH]])
        for recorded, own, _ in SAME
    )
    for (recorded, own, is_same), found in zip(SAME, asked_of(COMPARING, cases, tmp_path), strict=True):
        assert found is is_same, (recorded, own)


def test_pairs_of_words_are_found_again_by_what_the_records_show_of_them(tmp_path: Path) -> None:
    """Of yacs' words the records show the key before a number that a plan may change, and no other text."""
    (tmp_path / "train.py").write_text(SHOWS)
    words: list[str | Path] = [
        "train.py",
        "--opts",
        "TRAIN.BATCH",
        "8",
        "MODEL.NAME",
        "resnet",
        "--token",
        "a.batch",
        "9",
    ]
    (phase,) = run(words, tmp_path).of("phase")
    assert phase["argv"][2:] == ["--opts", "TRAIN.BATCH", "8", HIDDEN, HIDDEN, "--token", HIDDEN, "9"]
    plan = json.dumps({"argv": phase["argv"], "options": [PAIR]})
    ended = run(words, tmp_path, STOKER_APPLY=plan)
    assert json.loads(ended.out)[:3] == ["--opts", "TRAIN.BATCH", "4"]


def test_variables_are_set(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, json\nprint(os.environ['BATCH'], os.environ['WORD'])" + TRAINS
    )
    environment = {"BATCH": "8", "WORD": "hunter2"}
    ended = planned(tmp_path, [], environ={"BATCH": "4", "WORD": "hunter3"}, environment=environment)
    assert ended.out == "4 hunter3\n"
    applied = {one["name"]: one for one in ended.of("applied")}
    assert (applied["BATCH"]["before"], applied["BATCH"]["after"]) == (8, 4)
    assert {"before", "after"}.isdisjoint(applied["WORD"])
    assert [one["value"] for one in ended.of("setting") if one["by"] == "env"] == [4]


FILES = {
    "yaml": ("yaml.safe_load({}.read())", "train: {batch_size: 8}\nlist: [{n: 1}]\n"),
    "json": ("json.load({})", '{"train": {"batch_size": 8}, "list": [{"n": 1}]}'),
    "toml": ("tomllib.load({}.detach())", "list = [{n = 1}]\n[train]\nbatch_size = 8\n"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("recorded", [False, True])
def test_the_first_parse_of_a_file_is_changed_and_the_file_is_not(
    tmp_path: Path, kind: str, recorded: bool
) -> None:
    """In the process that was recorded, or in any one where none was."""
    load, text = FILES[kind]
    path, other = tmp_path / f"train.{kind}", tmp_path / f"other.{kind}"
    path.write_text(text)
    other.write_text(text.replace("8", "7"))
    calls = "".join(
        f"print({load.format(f'open({name!r})')})\n" for name in (other.name, path.name, path.name)
    )
    (tmp_path / "train.py").write_text(f"import json, tomllib, yaml\n{calls}" + TRAINS)
    keys = [("train.batch_size", 4), ("train.accum", 2), ("list.0.n", 3), ("absent.deep.key", 1)]
    files = [{"path": str(path), "key": key, "value": value} for key, value in keys]
    plan = {"argv": [PYTHON, "train.py"] if recorded else None, "options": [], "files": files}
    ended = run(["train.py"], tmp_path, STOKER_APPLY=json.dumps(plan))
    lines = [eval(line) for line in ended.out.splitlines()]
    assert lines[1] == {"train": {"batch_size": 4, "accum": 2}, "list": [{"n": 3}]}
    assert [lines[0]["train"], lines[2]["train"]] == [{"batch_size": 7}, {"batch_size": 8}]
    assert answers(ended) == [
        (kind, "train.batch_size", 8, 4),
        (kind, "train.accum", None, 2),
        (kind, "list.0.n", 1, 3),
    ]
    assert path.read_text() == text


def test_a_broken_plan_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWS)
    for plan in ("{", "[]", '{"options": []}', '{"argv": ["x"], "options": [{}]}'):
        ended = run(["train.py", "-b", "8"], tmp_path, STOKER_APPLY=plan)
        assert (ended.code, ended.out, ended.err, ended.of("applied")) == (0, '["-b", "8"]\n', "", [])


def test_children_of_spawn_answer_too(tmp_path: Path) -> None:
    (tmp_path / "conf.json").write_text('{"accum": 8}')
    (tmp_path / "train.py").write_text(
        "import multiprocessing\n"
        "def work(rank):\n"
        "    import argparse, json, os, sys\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    print(sys.argv[1:], json.load(open('conf.json')), os.environ['BATCH'], flush=True)\n"
        + TRAINS.replace("\n", "\n    ")
        + "\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, args=(1,)); child.start(); child.join()\n"
    )
    files = [{"path": str(tmp_path / "conf.json"), "key": "accum", "value": 4}]
    ended = planned(tmp_path, ["-b", "8"], BATCH, files=files, environ={"BATCH": "4"})
    assert ended.out == "['-b', '4'] {'accum': 4} 4\n", ended.err
    assert answers(ended) == [("env", "BATCH", 4, 4), ("argv", "batch_size", 4, 4), ("json", "accum", 8, 4)]
