"""What a dataclass of a script says of a flag's default: a value, None, or nothing that reading it could tell."""

from __future__ import annotations

import pytest

from supervisor.job.knobs.source.read_source import scan_source


@pytest.mark.parametrize(
    ("value", "default", "known"),
    [
        (" = 8", 8, True),
        (" = None", None, True),
        (" = field(default=8)", 8, True),
        (" = field(default=None)", None, True),
        (' = field(default=None, metadata={"help": "x"})', None, True),
        (" = field(metadata=None, default=8)", 8, True),
        (" = field(metadata=None)", None, False),
        (" = field(default_factory=make)", None, False),
        (" = make()", None, False),
        ("", None, False),
    ],
)
def test_the_default_of_a_field(value: str, default: int | None, known: bool) -> None:
    text = (
        "from dataclasses import dataclass, field\nfrom transformers import HfArgumentParser\n"
        f"@dataclass\nclass Own:\n    batch: int{value}\n(own,) = HfArgumentParser(Own).parse_args_into_dataclasses()\n"
    )
    flag = scan_source(text).flag("--batch")
    assert flag is not None
    assert (flag.default, flag.default_known, flag.type, flag.is_switch) == (default, known, "int", False)
