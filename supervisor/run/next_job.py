"""The job for the next attempt: the changes from all restarts so far, folded together. Later changes win."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from msgspec import structs

from supervisor.job.arguments.command_line import set_value, values_of
from supervisor.job.batch import BatchSpec
from supervisor.job.errors import JobError
from supervisor.job.knobs.resume_settings import given_start, takes_path
from supervisor.job.knobs.set_batch import batch_of, batch_values
from supervisor.job.knobs.setting_names import is_argument
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.launch.oom_plan import missing_words
from supervisor.job.launch.plan import command_of
from supervisor.job.spec import JobSpec
from supervisor.run.records import OUT_OF_MEMORY, DecisionKind, FailureClass, SpecChange
from supervisor.run.state import AttemptState, RunState
from supervisor.text.redact import redact_text


@dataclass(frozen=True, slots=True)
class NextJob:
    """The job for the next attempt.

    Attributes:
        job: the job with the arguments that the user last typed and the batch that results from them.
        batch: the batch that replaces the job's own, or None.
        env: additional environment variables.
        set_args: additional (flag, value) pairs; an empty value means a bare flag.
        from_scratch: whether the attempt starts from scratch.
        raise_open_files: whether to raise the soft limit on open files to the hard limit.
        start_typed_after: the attempt after which the user typed a different checkpoint to start from, or None.
        is_typed: whether the user edited the arguments.
    """

    job: JobSpec
    batch: BatchSpec | None = None
    env: dict[str, str] = field(default_factory=dict)
    set_args: dict[str, str] = field(default_factory=dict)
    from_scratch: bool = False
    raise_open_files: bool = False
    start_typed_after: int | None = None
    is_typed: bool = False

    @property
    def current_batch(self) -> BatchSpec | None:
        """The batch of the next attempt, if known."""
        return self.batch or self.job.batch

    @property
    def words(self) -> tuple[str, ...]:
        """The script's arguments for the next launch, except those that make it resume, which are decided at launch."""
        args = self.job.entry_args
        for name, value in self._pairs():
            if is_argument(name) and not self.resumes(name):
                args = set_value(args, name, value)
        return args

    def resumes(self, name: str) -> bool:
        """Check whether a setting determines what the script resumes from."""
        knobs = self.job.knobs
        return name in {knobs.resume, knobs.resume_path, knobs.resume_step} or takes_path(name)

    def _pairs(self) -> list[tuple[str, str]]:
        return [*self.job.set_knobs, *self._batch_pairs(), *self.set_args.items()]

    def _batch_pairs(self) -> tuple[tuple[str, str], ...]:
        job = self.job
        if self.batch is None or self.batch == job.batch:
            return ()
        try:
            return batch_values(job.knobs, self.batch, before=job.batch, local_world_size=job.nproc_per_node)
        except JobError:  # the batch cannot be set; planning the launch reports that
            return ()

    def after(self, change: SpecChange, attempt: int) -> NextJob:
        """Return the job after applying one more change, which was decided after `attempt`."""
        now = self if change.argv is None else self._typed(change.argv, attempt)
        return replace(
            now,
            job=replace(now.job, nproc_per_node=change.nproc_per_node or now.job.nproc_per_node),
            batch=change.batch.after if change.batch is not None else now.batch,
            env={**now.env, **dict(change.env)},
            set_args={**now.set_args, **dict(change.set_args)},
            from_scratch=change.from_scratch,
            raise_open_files=now.raise_open_files or change.raise_open_files,
        )

    def _typed(self, argv: tuple[str, ...], attempt: int) -> NextJob:
        """Return the job with arguments that the user typed, which override everything set before."""
        elsewhere = tuple(pair for pair in self._pairs() if not is_argument(pair[0]))
        starts = self.job.knobs.starts
        try:
            batch = self.typed_batch(argv)
        except JobError:  # refused on request; an older journal may contain it
            batch = None
        is_new_start = given_start(argv, starts) not in {None, given_start(self.words, starts)}
        return replace(
            self,
            job=replace(self.job, entry_args=argv, batch=batch, set_knobs=tuple(dict(elsewhere).items())),
            batch=None,
            set_args={n: v for n, v in self.set_args.items() if self.resumes(n) and not is_new_start},
            start_typed_after=attempt if is_new_start else self.start_typed_after,
            is_typed=True,
        )

    def typed_batch(self, argv: tuple[str, ...]) -> BatchSpec | None:
        """Return the next attempt's batch with the typed arguments applied, or None if their effect on it cannot be determined.

        Raises:
            JobError: the typed numbers do not divide evenly.
        """
        knobs, now = self.job.knobs, self.current_batch
        names = (knobs.batch, knobs.accumulation, knobs.global_batch, *(name for name, _ in knobs.same))
        words = self.words
        if all(name is None or values_of(argv, name) == values_of(words, name) for name in names):
            return now
        return batch_of(
            argv,
            knobs,
            world_size=now.world_size if now is not None and now.ranks_known else self.job.world_size,
            local_world_size=self.job.nproc_per_node,
            unit=now.unit if now is not None else None,
            tokens_per_sample=now.tokens_per_sample if now is not None else 1,
            elsewhere={name: value for name, value in self._pairs() if not is_argument(name)},
        )


def unmeasured_trial(state: RunState) -> tuple[AttemptState, AttemptState] | None:
    """Return the attempt that the policy restarted with measurements off and the attempt that ran without them, or None."""
    for before, after in pairwise(state.attempts):
        change = before.decision.change if before.decision is not None else None
        if change is not None and NOT_MEASURED in change.env and before.decided_by == "policy":
            return before, after
    return None


def got_further(before: AttemptState, after: AttemptState) -> bool:
    """Check whether an attempt got past the last step of the one before it, or finished successfully."""
    if after.last_step is not None and (before.last_step is None or after.last_step > before.last_step):
        return True
    is_healthy = after.verdict is not None and after.verdict.failure is FailureClass.HEALTHY
    return is_healthy and after.job_exit_code == 0 and after.stop is None


def _ended_alike(before: AttemptState, after: AttemptState) -> bool:
    one, other = before.verdict, after.verdict
    if one is None or other is None or got_further(before, after):
        return False
    return (one.failure, one.reason) == (other.failure, other.reason)


def undecided(state: RunState) -> RunState:
    """Return `state` without the decision after its latest attempt, so `next_job` yields that attempt's job."""
    return structs.replace(
        state,
        attempts=tuple(
            structs.replace(a, decision=None) if a is state.attempt else a for a in state.attempts
        ),
    )


def next_job(job: JobSpec, state: RunState) -> NextJob:
    """Return `job` as it will run in the attempt that follows those in `state`."""
    job = state.answered_job(job)
    now = NextJob(job, state.fitted.batch if state.fitted is not None else None)
    trial = unmeasured_trial(state)
    for attempt in state.attempts:
        if trial is not None and attempt is trial[1] and _ended_alike(*trial):
            # The measurements were not the cause, and later attempts may need them.
            now = replace(now, env={n: v for n, v in now.env.items() if n != NOT_MEASURED[0]})
        decision = attempt.decision
        if decision is not None and decision.kind is DecisionKind.RESTART and decision.change is not None:
            now = now.after(decision.change, attempt.number)
    return now


def declared_again(state: RunState, job: JobSpec) -> str:
    """Return the command that reruns a run with the options it needed to restart after running out of memory, or "".

    Safe to print: secrets are hidden and there are no control characters.
    """
    attempt = state.attempt
    if attempt is None or not state.is_over:
        return ""
    if attempt.failure not in OUT_OF_MEMORY and attempt.differs is None:
        return ""
    missing = missing_words(state.answered_job(job))
    return redact_text(command_of(job, missing) or "") if missing else ""
