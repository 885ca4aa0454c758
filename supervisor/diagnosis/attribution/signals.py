"""The signal that ended a process, out of the line that tells of it."""

from __future__ import annotations

from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy

# Numbers of Linux (signal(7)); the POSIX ones are the same on macOS but for SIGBUS (10), which exits there with 138.
_BY_NUMBER = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_NAME = Lazy(r"\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL)\b")
_NUMBER = Lazy(
    r"(?:exit ?code *[:=]?|return code =|code [:=]?|status) *\(?(-\d{1,2}|1[34]\d)\b|[Ss]ignal:? (\d{1,2})\b"
)
# As strsignal(3) and shells say it; a POSIX shell adds 128 to the number.
_WORDS = (
    ("SIGSEGV", Lazy(r"(?i)segmentation fault|\bsegfault|access violation|0xC0000005|段错误|段錯誤|セグメンテーション|Speicherzugriffsfehler|segmento\b|segmentação|сегментирования")),
    ("SIGBUS", Lazy(r"(?i)\bbus error")),
    ("SIGILL", Lazy(r"(?i)illegal (?:hardware )?instruction")),
    ("SIGFPE", Lazy(r"(?i)floating.point exception")),
    ("SIGABRT", Lazy(r"\bAborted\b|\bzsh: abort|terminate called|free\(\): |malloc|corrupted (?:size|double)|double free|munmap_chunk|stack smashing")),
)  # fmt: skip


def signal_of(text: str) -> str | None:
    """The signal's name; None where the line names none."""
    if match := _NAME.search(text):
        return match.group()
    for name, words in _WORDS:
        if words.search(text):
            return name
    if match := _NUMBER.search(text):
        number = whole((match.group(1) or match.group(2)).lstrip("-"))
        return _BY_NUMBER.get(number - 128 if number > 128 else number)
    return None
