"""The spelling of what stands in a journal: runs of other versions of stoker, and scripts, read these words."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType
from typing import Any

import msgspec

from supervisor.run import answers, control, events, node_files, records, runfile, series, state, summaries
from supervisor.run.paths import RUN_SCHEMA
from tests.spelling import words_of_kinds

WORDS = {
    "Action": "none reduce_batch set_allocator new_port restart restart_with_env fewer_workers raise_limit resume_earlier wait_disk exclude_gpu requeue hold stop",
    "DecisionKind": "succeed restart hold fail give_up stop requeue",
    "Difference": "step learning_rate loss grad_norm global_batch from_step_0 step_counter learning_rate_restarted learning_rate_counted_twice accumulation_weighting weights data_order optimizer_state",
    "FailureSign": "exiting gone",
    "FailureClass": "cuda_oom host_oom shm_exhausted fd_limit disk_full nccl_timeout nccl_error libuv port_in_use rendezvous dataloader_worker worker_crash hang ddp_mismatch cuda_error gpu_fault cuda_unavailable nan_loss checkpoint_load missing_file permission_denied auth_or_hub import_error usage_error compile_error code_error terminated healthy unknown",
    "FindingLevel": "ok info warning refuse",
    "LeftWhy": "after_success nested unknown",
    "NodePhase": "ready running ended left",
    "NodeSight": "joined silent back ended left",
    "Outcome": "succeeded failed gave_up stopped lost refused",
    "Phase": "rendezvous loading compiling stepping evaluating checkpointing",
    "Precondition": "gpu_memory port disk",
    "Reason": "allocator kernel_kill cgroup_kill slurm instrument user time_limit preempted node_fail outside raised killed segfault signal exit_code silent at_exit no_step ended_early",
    "RequestKind": "stop stop_now restart restart_with start_now hold stacks profile keep_waiting answer note",
    "Sameness": "same same_within_noise differs unknown",
    "StopStep": "ask sigterm sigkill sweep survivors",
    "StopWhy": "request signal restart rank_died requeue hang trial plan_differs not_resumed",
    "Tone": "info good warn bad",
    "Want": "run end over",
}  # fmt: skip
TAGS = """
advisory attempt_ended attempt_started backoff_started batch_answered batch_asked batch_fitted batch_measured change_planned checkpoint_committed checkpoint_kept
clock_set decided diagnosed evidence_seen gpu_found hang_countdown hang_found hang_kept hang_withdrawn held keeper_left
keeper_started launch_cleared launch_intended log_quiet logs_dated loss_finite loss_not_finite memory_measured node_seen note_added only_flagged phase_changed
preflight_found probe_ended probe_started processes_gone processes_left progress rank_exited rank_failing rank_started recovered request_done
request_refused plan_confirmed plan_differs resume_compared resume_missed run_ended run_started slow_rank_found stacks_probed stacks_taken stall_ended stall_flagged stop_intended stop_rung
trainer_ready waiting_for
"""


def classes(module: ModuleType, base: type) -> list[Any]:
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, base)]
    return [each for each in found if each.__module__ == module.__name__]


def test_every_word_of_every_kind_keeps_its_spelling() -> None:
    assert words_of_kinds("supervisor.run") == WORDS


def test_every_event_keeps_its_tag() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in classes(events, events.Event)}
    assert tags - {"Event", "AttemptEvent", "None"} == set(TAGS.split())


STRUCTS = [
    each
    for module in (answers, control, events, node_files, records, runfile, series, state, summaries)
    for each in classes(module, msgspec.Struct)
]
NOT_NOTHING = {
    "Decided.by": "policy",
    "KeeperSettings.checks": True,
    "KeeperSettings.sample_interval_s": 1.0,
    "Request.args": control.RequestArgs(),
    "RunState.condition": state.Preflight(),
    "RunState.mode": "launched",
}


def test_what_an_older_file_lacks_is_nothing_known() -> None:
    """A field that is not there says nothing: neither a number but 0 nor a truth."""
    of_structs: list[tuple[type, Any]] = [
        (kind, field) for kind in STRUCTS for field in msgspec.structs.fields(kind)
    ]
    plain: list[Any] = [each for each in vars(records).values() if dataclasses.is_dataclass(each)]
    of_records: list[tuple[type, Any]] = [
        (kind, field) for kind in plain for field in dataclasses.fields(kind)
    ]
    told = {
        f"{kind.__name__}.{field.name}": field.default
        for kind, field in (*of_structs, *of_records)
        if field.default not in (msgspec.NODEFAULT, dataclasses.MISSING, None, "", False, ())
        and field.name not in {"v", "schema"}
    }
    assert told == NOT_NOTHING
    versions = {kind.__struct_defaults__[0] for kind in events.KINDS}
    assert versions == {events.SCHEMA_VERSION} == {control.SCHEMA_VERSION} == {RUN_SCHEMA} == {1}


def test_records_are_made_by_the_names_of_their_fields() -> None:
    """So that a new field never takes the place of another."""
    by_place = {
        kind.__name__
        for kind in STRUCTS
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    }
    assert by_place == {"JobKind", "_Schema"}
