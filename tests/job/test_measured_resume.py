"""How a script resumes: from recorded facts of real two-rank runs, from what a person answered, and seen after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.job.knobs.measured import is_named
from supervisor.job.knobs.resume_settings import (
    ResumeWay,
    resume_seen,
    resume_way,
    with_answered_resume,
    with_measured_resume,
)
from supervisor.job.knobs.written_facts import MOST_PATHS, Facts
from supervisor.job.spec import NAMED, Knobs
from tests.job.test_measured import phase, recorded, setting

FOUND = Knobs(batch="--bs", resume_path="--resume", resumes="train.py:9", cannot_resume=False)
SAVED = "/job/out/step_20.pt"


def facts_of(*records: dict[str, Any]) -> Facts:
    facts = Facts()
    for record in records:
        facts.add(record)
    return facts


def way_of(*records: dict[str, Any]) -> ResumeWay:
    return resume_way(facts_of(*records))


@pytest.mark.parametrize(
    ("style", "resume", "name", "how"),
    [
        ("s01_plain", "flag", "--resume", "proposed: option"),
        ("s02_imagenet", "flag", "--resume", "proposed: option"),
        ("s05_hf", "flag", "--resume_from_checkpoint", "proposed: option"),
        ("s06_accel", "flag", "--resume_from_checkpoint", "proposed: option"),
        ("s07_lightning", "flag", "--ckpt", "proposed: option"),
        ("s10_timm", "flag", "--resume", "proposed: option"),
        ("s16_tyro", "flag", "--resume", "proposed: option"),
        ("s20_env", "self", None, "measured: itself"),
        ("s23_yaml", "flag", "train.resume", "proposed: switch"),
        ("s29_fsdp2", "flag", "--load", "proposed: option"),
        ("s24_const", None, None, "asked: never_loaded"),
    ],
)
def test_the_way_of_a_recorded_run(style: str, resume: str | None, name: str | None, how: str) -> None:
    way = way_of(*recorded(style))
    named = way.setting.rpartition("#")[2] if way.setting is not None else None  # without its file
    assert (way.resume, named, way.how) == (resume, name, how)


@pytest.mark.parametrize(
    ("command", "file", "shown"),
    [
        ("train.py --config conf/c.yaml", "/job/conf/c.yaml", "conf/c.yaml"),
        ("train.py --config=./conf/c.yaml", "/job/conf/c.yaml", "./conf/c.yaml"),
        ("train.py --config /job/conf/c.yaml", "/job/conf/c.yaml", "/job/conf/c.yaml"),
        ("train.py config=../c.yaml", "/c.yaml", "../c.yaml"),
        ("bash train.sh", "/job/conf/c.yaml", "conf/c.yaml"),
        ("bash train.sh", "/jobs/c.yaml", "/jobs/c.yaml"),
    ],
)
def test_a_file_is_spelled_as_in_the_command_else_from_the_working_folder(
    command: str, file: str, shown: str
) -> None:
    facts = Facts(command.split(), "/job")
    for record in (phase(), setting("train.resume", None, "yaml", file=file, type="NoneType")):
        facts.add(record)
    way = resume_way(facts)
    assert (way.setting, way.candidates) == (f"{shown}#train.resume", (f"{shown}#train.resume=PATH",))
    assert is_named(facts.settings[0], f"{shown}#train.resume")


@pytest.mark.parametrize(
    ("words", "declared"),
    [(["-r", "--resume"], "--resume"), ([], "resume=true")],
    ids=["option", "hydra key"],
)
def test_a_switch_is_set_as_its_parser_takes_it(words: list[str], declared: str) -> None:
    way = way_of(
        phase(), setting("resume", False, "argparse" if words else "hydra", type="bool", words=words)
    )
    assert way.how == "proposed: switch"
    assert way.candidates == (declared,)
    knobs = with_measured_resume(Knobs(), way.resume, way.setting, way.how)
    name, _, value = declared.partition("=")
    assert (knobs.resume, knobs.resume_value, knobs.resume_path) == (name, value, None)
    assert not knobs.resume_is_set, "it is set only where there is a checkpoint"


def test_declared_comes_before_measured_before_conventions_before_a_name() -> None:
    for declared in (
        Knobs(resume="--go", resume_value="", resumes=NAMED),
        Knobs(resume_path="--go", resumes=NAMED),
        Knobs(self_resuming=True, resumes="named (--self-resuming)"),
        Knobs(resume="--resume_from", resume_value="auto", declared=True),
        Knobs(resume="--resume", resume_value="auto", resumes="command line"),
        with_answered_resume(Knobs(), "never"),
    ):
        assert with_measured_resume(declared, "self", None, "measured: itself") is declared
    itself = with_measured_resume(FOUND, "self", None, "measured: itself")
    assert (itself.self_resuming, itself.resume_path, itself.start) == (True, None, None)
    assert with_measured_resume(FOUND, "flag", "--ckpt", "proposed: option") is FOUND
    no_way = Knobs(cannot_resume=True)
    by_name = with_measured_resume(no_way, "flag", "--ckpt", "proposed: option")
    assert (by_name.resume_path, by_name.cannot_resume) == ("--ckpt", False)
    assert with_measured_resume(no_way, None, None, "asked: never_loaded") is no_way


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("itself", {"self_resuming": True}),
        ("never", {"cannot_resume": True}),
        ("--load=PATH", {"resume_path": "--load"}),
        ("--go-on", {"resume": "--go-on", "resume_value": ""}),
        ("train.resume=true", {"resume": "train.resume", "resume_value": "true"}),
        ("env:CKPT=PATH", {"resume_path": "env:CKPT"}),
    ],
)
def test_an_answer_is_a_declaration(answer: str, expected: dict[str, Any]) -> None:
    knobs = with_answered_resume(FOUND, answer)
    ways = {"self_resuming": False, "cannot_resume": False, "resume_path": None, "resume": None, **expected}
    assert {name: getattr(knobs, name) for name in ways} == ways
    assert with_answered_resume(FOUND, "") is FOUND


def load(path: str, step: int = 0) -> dict[str, Any]:
    return {"kind": "loaded", "rank": 0, "path": path, "step": step}


STEP = {"kind": "step", "rank": 0, "step": 1, "steps": 1, "batches": 1, "micro_steps": 1}


@pytest.mark.parametrize(
    ("records", "seen"),
    [
        ([], None),
        ([load(SAVED)], True),
        ([load(SAVED), STEP], True),
        ([load("/job/pretrained.pt")], None),
        ([load("/job/pretrained.pt"), STEP], False),
        ([STEP], False),
        ([STEP, load(SAVED, step=1)], False),
        ([load("/job/out/step_20.pt.bak"), STEP], False),
        ([load(f"/data/{at}.pt") for at in range(MOST_PATHS)] + [load(SAVED), STEP], None),
    ],
    ids=["nothing yet", "loaded", "and trained", "other weights", "only those", "nothing", "too late", "a copy's name", "too many to know"],
)  # fmt: skip
def test_a_resume_is_seen_by_what_was_loaded_before_the_first_step(
    records: list[dict[str, Any]], seen: bool | None
) -> None:
    assert resume_seen(facts_of(phase(), *records), SAVED) is seen


def test_a_part_of_a_folder_and_a_link_are_the_checkpoint() -> None:
    facts = facts_of(phase(), load("/job/out/checkpoint-20/optimizer.pt"), load("/job/last.pt"), STEP)
    assert resume_seen(facts, "/job/out/checkpoint-20") is True
    assert resume_seen(facts, "/job/out/checkpoint-2") is False
    links = {"/job/last.pt": SAVED}
    assert resume_seen(facts, SAVED) is False
    assert resume_seen(facts, SAVED, real=lambda path: links.get(path, path)) is True


def test_a_folder_that_is_loaded_from_and_written_to_is_not_the_resume_option() -> None:
    out = setting("kappa", "/job/out", words=["--kappa"])
    records = [phase(), out, load(SAVED), {**load(SAVED), "optimizer_state": True}]
    assert way_of(*records).resume is None, "it may be the output folder"
    sought = {"kind": "sought", "rank": 0, "path": SAVED, "by": "exists"}
    assert way_of(*records, sought).resume == "self"
    whole = setting("kappa", SAVED, words=["--kappa"])
    assert way_of(phase(), whole, *records[2:]).setting == "--kappa"
    assert (
        way_of(phase(), setting("resume", "/job/out", words=["--resume"]), *records[2:]).setting == "--resume"
    )


def test_a_folder_that_is_made_was_not_looked_for() -> None:
    sought = {"kind": "sought", "rank": 0, "path": "/job/out", "saved": "/job/out/a.pt", "step": 4}
    assert way_of(phase(), {**sought, "by": "isdir"}).how == "asked: never_loaded"
    assert way_of(phase(), {**sought, "by": "listdir"}).how == "measured: itself"
    assert way_of(phase(), {**sought, "by": "exists", "path": "/job/out/a.pt"}).how == "measured: itself"
