"""What a launcher, a logger, a collector or a terminal puts around a line changes none of its values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.corpus.test_metrics_corpus import CORE, DATA, equal, read

Wrap = Callable[[str, int], str]


def before(prefix: str) -> Wrap:
    """Put `prefix` before a line; `#` in it is the line's number, of two digits."""
    return lambda line, row: prefix.replace("#", f"{row % 60:02}") + line


def _of_json(name: str, **others: str) -> Wrap:
    return lambda line, _: json.dumps({name: line, **others}, ensure_ascii=False)


WRAPS: dict[str, Wrap] = {
    prefix: before(prefix)
    for prefix in (
        "[rank0]: ", "[rank0]:", "[default3]:", "[rank: 1] ", "[Rank 0] ", "0: ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "node1 | ", "node1: ", "worker-0  | ",
        "(Worker pid=7012) ", "(RayTrainWorker pid=712, ip=10.0.0.3) ", "[pod/train-0/pytorch] ", "2024-01-01 10:00:#,123 - INFO - ", "2024-01-01 10:00:#,123 - trainer - INFO - ",
        "2024-01-01 10:00:#,123 INFO trainer: ", "2024-01-01 10:00:#,123 [INFO] ", "[2024-01-01 10:00:#,123] [INFO] [train.py:12:main] ",
        "[2024-01-01 10:00:#,123][trainer][INFO] - ", "INFO:root:", "INFO:__main__:", "INFO ", "[INFO] ", "2025-01-09T04:11:#.123456Z ", "2025-01-09T04:11:#.1Z stdout F ",
        "Jan  9 04:11:# gpu01 python[1203]: ", "[10:00:#] ", "10:00:# ", "10:00:# INFO     ", "2024-01-01 10:00:#.123 | INFO     | train:main:12 - ",
        "I0214 10:31:#.120441 139872 train.py:318] ", "[rank1]: 2024-01-01 10:00:#,123 - INFO - ", "[1704103200.1#] ", "[  12.0#] ", "stderr: ", " ", "\t",
    )
} | {
    "a JSON message": _of_json("message", level="INFO"),
    "a JSON log": lambda line, _: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-01-01T10:00:01.12Z"}),
    "JSON, the message last": lambda line, _: json.dumps({"time": "2025-01-01T10:00:01.5Z", "msg": line}, ensure_ascii=False),
    "colour": lambda line, _: f"\x1b[32m{line}\x1b[0m",
    "coloured names": lambda line, _: re.sub(r"([A-Za-z]+)([:=])", "\x1b[1;36m\\1\x1b[0m\\2", line),
    "carriage returns": lambda line, _: line + "\r",
    "blanks behind": lambda line, _: line + "      ",
    "no-break blanks": lambda line, _: line.replace(" ", "\u00a0"),
}  # fmt: skip


def shown(line: str) -> str:
    """What a terminal shows of a line that was drawn several times."""
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(("corpus", "share"), [("metrics.jsonl", 0.985), ("metrics_more.jsonl", 0.985)])
def test_what_is_around_a_line_changes_none_of_its_values(wrap: str, corpus: str, share: float) -> None:
    values = 0
    missed, invented = [], []
    for raw in (DATA / corpus).read_text(encoding="utf-8").splitlines():
        record = json.loads(raw)
        found = read(record["text"], lambda line, row: WRAPS[wrap](shown(line), row))
        expected = {entry["line"]: entry for entry in record["expect"]}
        for row, entry in expected.items():
            got = found.get(row, {})
            wanted = [key for key in CORE if key in entry and key != "rank"]
            values += len(wanted)
            missed += [
                f"{record['id']} row {row} {key}: want {entry[key]} got {got.get(key)}"
                for key in wanted
                if got.get(key) is None or not equal(got[key], entry[key])
            ]
        invented += [
            f"{record['id']} row {row} {key}={got[key]}"
            for row, got in found.items()
            for key in ("loss", "val_loss")
            if key in got and key not in expected.get(row, {})
        ]
    assert not invented
    assert len(missed) <= (1 - share) * values, "\n".join(missed)
