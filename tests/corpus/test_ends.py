"""How logs end without a signature's help: shells' notices, tracebacks without a head, users' stops, trackers, notebooks.

Shells' notices are what bash 5.2, zsh 5.9, fish 3.6, dash, mksh and tcsh printed; the records were labelled before they were
first read: 83 of the first 159 were right then. Of 70 more, written once the rules stood (`read-…`), 65 were.
"""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import DATA, records, verdict_on


@pytest.mark.parametrize("record", records(DATA / "ends.jsonl"), ids=lambda record: str(record["id"]))
def test_how_a_log_without_a_signature_ends(record: dict[str, Any], engine: Engine) -> None:
    verdict = verdict_on(record["text"], engine)
    assert verdict.failure.value in record["accept"]
    if cause := record.get("cause"):
        assert verdict.cause is not None
        assert cause in verdict.cause.text
