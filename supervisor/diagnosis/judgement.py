"""A verdict as a named tuple: what `diagnose` prints before the records of a run are loaded.

The fields are those of `run.records.Verdict`, which events carry; the conversion is `to_record`.
Making the record's dataclasses costs more than a small log's whole diagnosis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervisor.run.failures import Action, FailureClass, Reason

if TYPE_CHECKING:
    from supervisor.run.records import Verdict


class JudgedCause(NamedTuple):
    """See `run.records.Cause`."""

    path: str
    line: int | None
    text: str


class JudgedConsequence(NamedTuple):
    """See `run.records.Consequence`."""

    failure: FailureClass
    rank: int | None
    path: str
    line: int | None
    text: str = ""
    what: str = ""

    @property
    def words(self) -> str:
        """What people are shown in place of the class."""
        return self.what or self.failure.value.replace("_", " ")


class Judgement(NamedTuple):
    """See `run.records.Verdict`."""

    failure: FailureClass
    reason: Reason | None
    confidence: float
    rank: int | None
    ranks: tuple[int, ...]
    node: str | None
    title: str
    cause: JudgedCause | None
    consequences: tuple[JudgedConsequence, ...]
    advice: tuple[str, ...]
    action: Action
    fingerprint: str

    def to_record(self) -> Verdict:
        """The same as the record that events carry."""
        from supervisor.run.records import Cause, Consequence, Verdict

        return Verdict(
            failure=self.failure,
            reason=self.reason,
            confidence=self.confidence,
            rank=self.rank,
            ranks=self.ranks,
            node=self.node,
            title=self.title,
            cause=Cause(*self.cause) if self.cause is not None else None,
            consequences=tuple(Consequence(*item) for item in self.consequences),
            advice=self.advice,
            action=self.action,
            fingerprint=self.fingerprint,
        )
