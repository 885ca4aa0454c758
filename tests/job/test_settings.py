"""Each key that a file may hold is asked for, and does what it says."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.explain import explain, setting_of, variables
from supervisor.job.config.files import toml_values
from supervisor.job.config.resolve import JobInputs, resolve_job, resolve_retry
from supervisor.job.config.setting_values import (
    MOST_SIGNATURES,
    ConfigFile,
    FileSettings,
    Resolver,
    check_file,
    own_signatures,
)
from supervisor.job.config.trainer_table import TRAINER_KEYS
from supervisor.job.errors import JobError
from supervisor.job.launch.env import WIRE_REASON
from supervisor.job.setting_keys import SETTINGS, KeyType, Setting, unit_of
from supervisor.job.spec import (
    ClassOverride,
    EntryKind,
    FitSettings,
    JobSpec,
    Knobs,
    OwnSignature,
    TrialSettings,
)
from supervisor.text.redact import HIDDEN
from tests.job.lines import job
from tests.spelling import words_of_kinds

ROOT = Path(__file__).parents[2]

# Read from the file itself before anything is resolved; by the screen (cli/common.py).
ASKED_ELSEWHERE = {"run.script", "run.module"} | {key for key in SETTINGS if key.startswith(("ui.", "runs."))}


def test_no_setting_is_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    real = Resolver.get

    def get(self: Resolver, key: str) -> Any:
        asked.add(key)
        return real(self, key)

    monkeypatch.setattr(Resolver, "get", get)
    resolve_job(JobInputs(parse_run_argv(["--fit-batch", "train.py"]), {}, "/w"))
    resolve_job(JobInputs(parse_run_argv([]), {}, "/w", job_file=ConfigFile("job.toml", {"depth": 2})))
    assert set(SETTINGS) - asked == ASKED_ELSEWHERE


@pytest.mark.parametrize(
    ("kind", "given", "held"),
    [
        (KeyType.INT, "12", 12),
        (KeyType.INT, "1e3", 1000),
        (KeyType.INT, "1_000", 1000),
        (KeyType.INT, 5.0, 5),
        (KeyType.INT, "9007199254740993", 9007199254740993),
        (KeyType.FLOAT, ".5", 0.5),
        (KeyType.FLOAT, "1e-4", 1e-4),
        (KeyType.FLOAT, 3, 3.0),
        (KeyType.SWITCH, "ON", True),
        (KeyType.SWITCH, 0, False),
        (KeyType.TEXT, 7, "7"),
    ],
)
def test_a_value_becomes_what_the_setting_holds(kind: KeyType, given: object, held: object) -> None:
    done = Setting(kind, "").held("--x", given)
    assert (type(done), done) == (type(held), held)


def test_a_run_file_that_lacks_a_setting_means_its_default() -> None:
    spec = job("--batch-knob --bs train.py")
    made = JobSpec("train", EntryKind.SCRIPT, "train.py")
    given = {"cwd", "knobs", "outputs", "world_size", "origins"}
    differs = {field.name for field in fields(spec) if getattr(spec, field.name) != getattr(made, field.name)}
    assert differs == given
    assert spec.knobs == Knobs(batch="--bs", declared=True, refusal=spec.knobs.refusal)
    assert job("--fit-batch train.py").fit == FitSettings()
    assert job("--trial train.py").trial == TrialSettings()


CLASSES = frozenset({"hang", "cuda_oom", "healthy", "unknown", "code_error"})


def checked(text: str, *, is_job: bool = False) -> FileSettings:
    return check_file(ConfigFile("f.toml", toml_values(text), text), classes=CLASSES, is_job=is_job)


def test_a_file_is_taken_apart_into_what_it_holds() -> None:
    found = checked(
        'depth = 4\nbatch_size = 3\n[policy]\nmax_retries = "7"\n[run]\nargs = ["--a", 2]\n[env]\nA = 1\nB = true\nC = false\nD = "x"\n'
        '[policy.hang]\nanswer = "stop"\nmax = 2\ndelay_s = 0\nwait_s = 1.5\nshow_first = ["port", "disk"]\n'
        '[[metrics]]\nname = "loss"\nregex = "loss=(.*)"\n',
        is_job=True,
    )
    assert found.file.name == "f.toml"
    assert found.settings == {"policy.max_retries": 7}
    assert found.trainer == {"depth": 4, "device_batch_size": 3}
    assert found.env == {"A": "1", "B": "1", "C": "0", "D": "x"}
    assert found.args == ("--a", "2")
    assert found.classes == {
        "hang": {"answer": "stop", "max": 2, "delay_s": 0.0, "wait_s": 1.5, "show_first": ("port", "disk")}
    }
    assert found.metrics == (("loss", "loss=(.*)"),)
    assert check_file(None, classes=CLASSES, is_job=True) == FileSettings()


@pytest.mark.parametrize(
    ("text", "is_job", "message"),
    [
        ("metrics = 1", False, "f.toml:1: metrics is a list of tables: [[metrics]] with name, regex"),
        ("[[metrics]]\nname = 'a'", False, "f.toml:1: each [[metrics]] has a name and a regex"),
        ("[[metrics]]\nname = 'a'\nregex = 'x'", False, "f.toml:3: metric 'a': 'x' has no group: put the number in (...)"),
        ("run = 1", False, "f.toml:1: run is a table of settings, got 1"),
        ("[run]\nargs = 1", False, "f.toml:2: run.args is a list of arguments, got 1"),
        ("[run]\nargs = [[1]]", False, "f.toml:2: run.args is a list of arguments, got [[1]]"),
        ("[policy]\nmax_retrys = 1", False, "f.toml:2: unknown key 'policy.max_retrys': did you mean 'policy.max_retries'?"),
        ("[run]\nqqqqqqqqqqqq = 1", False, "f.toml:2: unknown key 'run.qqqqqqqqqqqq': see configs/README.md for every key"),
        ("[policy]\nmax_retries = 'x'", False, "f.toml:2: policy.max_retries wants a whole number, got 'x'"),
        ("[env]\n'a b' = 1", False, "f.toml:2: env: 'a b' is no name of a variable"),
        ("[env]\nA = [1]", False, "f.toml:2: env.A wants text, got [1]"),
        ("[policy.hnag]\nmax = 1", False, "f.toml:1: unknown key 'policy.hnag': did you mean 'policy.hang'?"),
        ("[policy.hang]\nmux = 1", False, "f.toml:2: unknown key 'policy.hang.mux': did you mean 'policy.hang.max'?"),
        ("[policy.hang]\nmax = -1", False, "f.toml:2: policy.hang.max must be at least 0, got -1"),
        ("[policy.hang]\nanswer = 'x'", False, "f.toml:2: policy.hang.answer takes one of restart, hold, stop, got 'x'"),
        ("[policy.hang]\nshow_first = ['x']", False, "f.toml:2: policy.hang.show_first is a list of gpu_memory, port, disk, got ['x']"),
        ("[policy.hang]\nshow_first = 'disk'", False, "f.toml:2: policy.hang.show_first is a list of gpu_memory, port, disk, got 'disk'"),
        ("[policy]\nhang = 1", False, "f.toml:2: policy.hang is a table of settings, got 1"),
        ("depth = 3", False, "f.toml:1: unknown key 'depth': see configs/README.md for every key"),
        ("depth = 0", True, "f.toml:1: depth must be at least 1, got 0"),
        ("batch_size = 3\ndevice_batch_size = 3", True, "f.toml:2: 'device_batch_size' is another name of 'device_batch_size', which is set too"),
        ("[ui]\ntheme = 'dark'", True, "f.toml:1: [ui] belongs in stoker.toml or ~/.config/stoker/config.toml: it is of the screen, not of one job"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_line_that_says_where_and_what_to_write(
    text: str, is_job: bool, message: str
) -> None:
    with pytest.raises(JobError) as refused:
        checked(text, is_job=is_job)
    assert refused.value.message == message


def test_the_table_of_a_class_arrives_in_the_limits_on_restarts() -> None:
    text = '[policy]\nflap_window_s = 60\n[policy.hang]\nanswer = "restart"\nchange = "fewer_workers"\n'
    text += 'max = 2\ndelay_s = 1.5\nshow_first = ["disk"]\nwait_s = 9\n'
    file = ConfigFile("stoker.toml", toml_values(text), text)
    retry = resolve_retry(JobInputs(parse_run_argv([]), {}, "/w", job_file=file, failure_classes=CLASSES))
    assert retry.flap_window_s == 60.0
    assert retry.overrides == (ClassOverride("hang", "restart", 2, 1.5, "fewer_workers", ("disk",), 9.0),)


@pytest.mark.parametrize("flag", ["--batch-knob=", "--accumulation-knob="])
def test_a_flag_that_can_mean_nothing_is_refused(flag: str) -> None:
    with pytest.raises(JobError, match="wants the name of a flag"):
        resolve_job(JobInputs(parse_run_argv([flag, "train.py"]), {}, "/w"))


def test_all_that_is_wrong_in_a_file_is_said_at_once() -> None:
    with pytest.raises(JobError) as refused:
        checked("[policy]\nmax_retries = 'x'\nqqqqqqqqqq = 1\n[env]\nA = [1]\n")
    assert len(refused.value.message.splitlines()) == 3
    assert str(refused.value) == refused.value.message


def signature(**keys: object) -> tuple[OwnSignature, ClassOverride | None]:
    table = {"id": "mine", "regex": "boom", "class": "hang", **keys}
    table = {key: value for key, value in table.items() if value is not None}
    return own_signatures(ConfigFile("f.toml", {}), [table], CLASSES)[0]


@pytest.mark.parametrize(
    ("keys", "override"),
    [
        ({}, None),
        ({"action": "stop"}, ("stop", None, None)),
        ({"action": "hold"}, ("hold", None, None)),
        ({"action": "restart"}, ("restart", None, "none")),
        ({"action": "shrink"}, ("restart", None, "shrink")),
        ({"recurs": "no"}, ("restart", 1, "none")),
        ({"recurs": "yes"}, ("hold", None, None)),
        ({"action": "stop", "recurs": "yes"}, ("stop", None, None)),
        ({"action": "new_port", "recurs": "no"}, ("restart", 1, "new_port")),
    ],
)
def test_what_a_users_signature_has_done_about_it(
    keys: dict[str, str], override: tuple[str, int | None, str | None] | None
) -> None:
    found, done = signature(**keys)
    assert found == OwnSignature("mine", "boom", "hang")
    assert done == (
        override and ClassOverride("signature:mine", override[0], override[1], change=override[2])
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"regexp": "x"}, "unknown key 'signature.regexp': did you mean 'signature.regex'?"),
        ({"regex": [1]}, "signature.regex wants text, got [1]"),
        ({"role": "x"}, "signature.role takes one of cause, consequence, advice, got 'x'"),
        ({"id": "My id"}, "signature 'My id': its id is lower-case words joined by hyphens"),
        ({"id": None}, "signature '': its id is lower-case words joined by hyphens"),
        ({"regex": "a" * 2001}, "signature 'mine': its regex is longer than 2000 characters"),
        ({"regex": "x*"}, "signature 'mine': 'x*' matches any line"),
        ({"regex": None}, "signature 'mine': '' matches any line"),
        ({"class": None}, "signature 'mine' needs a class or a name of your own"),
        ({"class": "healthy"}, "signature.class takes one of code_error, cuda_oom, hang, got 'healthy'"),
        ({"action": "none"}, "signature.action takes one of restart, hold, stop, shrink, fewer_workers, new_port, no_libuv, raise_files, resume_earlier, got 'none'"),
        ({"action": "restart", "recurs": "yes"}, "signature 'mine': it recurs, so that a restart would meet it again: hold or stop"),
    ],
)  # fmt: skip
def test_a_users_signature_that_cannot_be_used_is_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(JobError) as refused:
        signature(**keys)
    assert refused.value.message == f"f.toml: {message}"


def test_users_signatures_have_names_of_their_own_and_are_not_too_many() -> None:
    file = ConfigFile("f.toml", {})
    table = {"id": "a", "regex": "x", "class": "hang"}
    most = [{**table, "id": f"a{n}"} for n in range(MOST_SIGNATURES)]
    assert len(own_signatures(file, most, CLASSES)) == MOST_SIGNATURES
    for given, message in (
        ([table, table], "signature 'a' is there twice"),
        ([*most, table], f"{MOST_SIGNATURES + 1} signatures, more than {MOST_SIGNATURES}"),
        (
            [1],
            "signature is a list of tables: [[signature]] with id, regex, class, name, role, action, start, recurs",
        ),
        (
            table,
            "signature is a list of tables: [[signature]] with id, regex, class, name, role, action, start, recurs",
        ),
    ):
        with pytest.raises(JobError, match=r"^f\.toml: ") as refused:
            own_signatures(file, given, CLASSES)
        assert refused.value.message == f"f.toml: {message}"


RANGED = {key: setting for key, setting in {**SETTINGS, **TRAINER_KEYS}.items() if setting.range is not None}


def test_the_bounds_of_each_setting_are_held_and_said() -> None:
    for setting in RANGED.values():
        bounds = setting.range
        assert bounds is not None
        low, high = bounds.low, bounds.high
        step: float = 1 if setting.kind is KeyType.INT else 1e-9 * max(1.0, high or 0)
        assert setting.held("x", low + step if bounds.open_low else low) == pytest.approx(low, abs=step)
        with pytest.raises(JobError, match=f"^x must be {re.escape(bounds.words)}, got "):
            setting.held("x", low if bounds.open_low else low - step)
        if high is not None:
            with pytest.raises(JobError, match=f"^x must be {re.escape(bounds.words)}, got "):
                setting.held("x", high if bounds.open_high else high + step)


def test_where_a_setting_comes_from_first_found_wins() -> None:
    def found(argv: list[str], env: dict[str, str], *layers: FileSettings) -> tuple[str, str, str]:
        resolver = Resolver(parse_run_argv([*argv, "train.py"]), env, layers)
        resolver.get("run.nproc_per_node")
        return resolver.origins[-1]

    project = FileSettings("project", ConfigFile("stoker.toml", {}), {"run.nproc_per_node": "5"})
    user = FileSettings("user", ConfigFile("config.toml", {}), {"run.nproc_per_node": "6"})
    env = {"STOKER_NPROC_PER_NODE": "3", "NPROC_PER_NODE": "4"}
    key = "run.nproc_per_node"
    assert found(["--nproc-per-node", "2"], env, project) == (key, "2", "flag --nproc-per-node")
    assert found([], env, project) == (key, "3", "env STOKER_NPROC_PER_NODE")
    assert found([], {"NPROC_PER_NODE": "4"}, project) == (key, "4", "env NPROC_PER_NODE")
    assert found([], {}, project, user) == (key, "5", "project stoker.toml")
    assert found([], {}, user) == (key, "6", "user config.toml")
    assert found([], {}) == (key, "1", "default")


def test_the_page_of_keys_is_as_the_tables_of_settings_have_them() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "configs_page.py"))
    text = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    assert made["page"](text) == text, "run: python scripts/configs_page.py"
    assert text.count("<!-- end -->") == 2
    keys = (key.rpartition(".")[2] for key in (*made["SETTINGS"], *made["settings"].types()))
    assert [key for key in keys if f"| `{key}` |" not in text] == []


WORDS = {
    "AccumulationCounts": "per_rank all_ranks",
    "BatchUnit": "samples tokens",
    "EntryKind": "script module command trainer",
    "KeyType": "whole number number text true or false",
    "Certainty": "measured asked refused",
    "KnobScope": "per_rank per_node global unknown",
    "Measure": "allocator device resident",
    "Place": "argument environment file",
    "Topic": "script arguments python ranks nodes address resume file",
    "Unread": "scope micro accumulation counter exit_code resume",
    "Why": "loader fed pieces first_dimension second_dimension batches backwards call_text name_and_value derived"
    " no_accumulation declared several several_loaders by_name by_value arithmetic scope global_variable unconfirmed nothing_seen"
    " unknown_shape no_step too_few_steps changing ranks_differ fixed_in_code without_batch",
}  # fmt: skip


def test_the_words_that_a_run_file_holds_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.job") == WORDS


HALTS = ("--grace", "STOKER_GRACE")
RANKS = (
    "--nproc-per-node",
    "STOKER_NPROC_PER_NODE",
    "PET_NPROC_PER_NODE",
    "NPROC_PER_NODE",
    "nproc_per_node",
    "num_gpus",
)
SHELL = "env (the shell's, passed on)"
BY_FLAG, BY_SHELL = ("12.0", "flag --grace"), ("20", "env STOKER_GRACE")
OWN_VARIABLE = "a variable of the job"


@pytest.mark.parametrize(
    ("names", "key", "sources", "default", "other_names"),
    [
        (("grace_s", "grace", "policy.grace_s", *HALTS), "policy.grace_s", [BY_FLAG, BY_SHELL, ("7.0", "job file job.toml:2"), ("30.0", "default")], "30", HALTS),
        (RANKS, "run.nproc_per_node", [("2", "env STOKER_NPROC_PER_NODE"), ("1", "default")], "1", RANKS),
        (("--master-port",), "run.master_port", [(None, "not set")], "", ("--master-port", "STOKER_MASTER_PORT", "PET_MASTER_PORT")),
        (("policy.hang.max",), "policy.hang.max", [(None, "not set")], "", ()),
        (("depth", "--depth", "STOKER_DEPTH"), "depth", [(None, "not set")], "4", ("STOKER_DEPTH",)),
        (("batch_size",), "device_batch_size", [(None, "not set")], "16", ("batch_size", "STOKER_DEVICE_BATCH_SIZE")),
        (("NCCL_DEBUG", "env.NCCL_DEBUG"), "NCCL_DEBUG", [("INFO", "yours (flag --env)"), ("WARN", SHELL)], "--debug-distributed sets it to INFO", None),
        (("CUBLAS_WORKSPACE_CONFIG",), "CUBLAS_WORKSPACE_CONFIG", [(":4096:8", "--deterministic: what a script cannot set for itself")], "--deterministic sets it to :4096:8", None),
        (("OMP_NUM_THREADS",), "OMP_NUM_THREADS", [("1", "as torchrun would: several ranks share the cores")], "set to 1 for several ranks, as torchrun would", None),
        (("STOKER_RUN_DIR",), "STOKER_RUN_DIR", [("(of each attempt its own)", WIRE_REASON)], OWN_VARIABLE, None),
        (("HF_TOKEN",), "HF_TOKEN", [(HIDDEN, SHELL)], OWN_VARIABLE, None),
        (("FOO_BAR",), "FOO_BAR", [(None, "not set")], OWN_VARIABLE, None),
    ],
)  # fmt: skip
def test_a_setting_is_explained_by_any_of_its_names(
    names: tuple[str, ...], key: str, sources: list[tuple[str | None, str]], default: str, other_names: tuple[str, ...] | None
) -> None:  # fmt: skip
    env = {"STOKER_GRACE": "20", "STOKER_NPROC_PER_NODE": "2", "NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_x"}
    line = "--grace 12 --env NCCL_DEBUG=INFO --deterministic --config job.toml train.py"
    spec = job(line, "[policy]\ngrace_s = 7\n", env=env)
    for name in names:
        found = explain(name, spec, env, {"hang"})
        setting = setting_of(key, {"hang"})
        facts = {"meaning": default, "takes": "", "unit": "", "default": ""}
        if setting is not None:
            facts = {
                "meaning": setting.meaning,
                "takes": setting.takes,
                "unit": unit_of(key),
                "default": default,
            }
        (value, origin), *beaten = sources
        overrode = [{"value": text, "origin": where} for text, where in beaten]
        assert found == {"key": key, "value": value, "origin": origin, "overrode": overrode, **facts, "other_names": other_names or ()}, name  # fmt: skip
    shown = {row["key"]: row for row in variables(spec, env)}
    assert list(shown) == ["PYTHONUNBUFFERED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED", "NCCL_DEBUG", "PYTHONPATH"]  # fmt: skip
    assert shown["NCCL_DEBUG"]["value"] == "INFO"


def test_of_the_trainer_the_default_is_a_source_too() -> None:
    spec = job("--config job.toml", "depth = 4\n")
    row = explain("depth", spec, {})
    assert (row["value"], row["origin"]) == ("4", "job file job.toml:1")
    assert row["overrode"] == [{"value": "4", "origin": "default"}]
    assert explain("head_dim", spec, {})["origin"] == "default"
    for name, hint in (
        ("NCCL_DEBUGG", "did you mean 'NCCL_DEBUG'?"),
        ("gracee", "did you mean '--grace'?"),
        ("foo bar", "`stoker config explain` lists all that are set"),
    ):
        with pytest.raises(JobError) as refused:
            explain(name, spec, {})
        assert refused.value.message == f"no setting {name!r}: {hint}"
