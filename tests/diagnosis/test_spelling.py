"""The spelling of what a diagnosis is made of: files and settings of other versions hold these words."""

from __future__ import annotations

from tests.spelling import words_of_kinds

WORDS = {
    "Doing": "collective backward gpu data own stopped kernel unknown",
    "Ended": "told raised not_shown",
    "Kind": "peers sleep network process file device timed thread lock runs stopped unknown",
    "Role": "cause consequence confirmation advice",
    "Trait": "generic open_type frames_required compiler_frames pipe_owner wraps_inner not_below_spawn firm firm_when_ending ends_messages launcher_report crash_report scheduler_report task_exit shell_exit bad_end good_end closing_line job_start launcher_end usage_exit traceback ends_traceback attempt_restart signals_peers kills_peers stop_signal own dump_answer abort shell_kill sigkill_only machine_wide names_task stack_dump told_again lost_connection",
}  # fmt: skip


def test_the_words_of_every_kind_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.diagnosis") == WORDS
