"""Turn a log's bytes into clean text (encodings, gzip, escape codes, progress lines) and guard the terminal.

Log text is data. The result of `clean` contains no escape codes, no control characters and no characters
that reorder a terminal's text, so callers can print or draw it directly. Names (of runs, files, hosts and
metrics) go through `printable`.
"""

from __future__ import annotations

import codecs
import re
import shlex
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby

from supervisor.text.patterns import Lazy

LINE_CAP_BYTES = 16384
CAP_MARK = " …[cut]"

HEAD_BYTES = 4096
"""How many leading bytes are needed to determine a file's type."""

MOST_NESTED = 4
"""How many layers of gzip to unpack: enough for a collector, an archive and a user. A thousand would exhaust the stack."""
MOST_UNPACKED_BYTES = 1 << 36
_GZIP_MAGIC = b"\x1f\x8b"
# Control characters in no log: all but NUL (see `is_binary`), BEL, backspace, tab, LF, VT, FF, CR, ESC.
_FOREIGN = bytes([*range(1, 7), *range(14, 27), *range(28, 32), 127])
# An unterminated string ends at the line's end, because a hostile line must not swallow more than itself.
_ESCAPES = Lazy(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 except tab and newline, DEL, C1, bidi controls and isolates, line and paragraph separators (a terminal or a widget may
# break the line there), and Unicode's invisible characters (Default_Ignorable_Code_Point: joiners, the soft hyphen, the BOM,
# fillers, variation selectors, tags), which would hide a word from a search.
_CONTROL_CLASS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_CONTROLS = Lazy(f"[{_CONTROL_CLASS}]")
# Within a line, a newline is as bad as a carriage return. A lone surrogate was an invalid UTF-8 byte, or cannot be written.
_UNSHOWN = Lazy(f"[\n\ud800-\udfff{_CONTROL_CLASS}]")
# Runs of combining marks, which are not word characters. Every script needs at most `MOST_MARKS` in a row.
_MARKS = Lazy(r"[^\w\s!-~\u2190-\u2bff]{5,}")
MOST_MARKS = 4
_NOT_ASCII = Lazy(r"[^\n -~]")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def sniff_encoding(head: bytes) -> str:
    """Determine a log's encoding from its first bytes: utf-8, utf-16-le or utf-16-be.

    Windows consoles redirect output as UTF-16, usually with a byte order mark. Without one, text in which every
    other byte is NUL also counts as UTF-16.
    """
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name
    sample = head[:512]
    if len(sample) >= 16:
        half = len(sample) // 2
        if sample[1::2].count(0) > 0.7 * half and sample[0::2].count(0) < 0.1 * half:
            return "utf-16-le"
        if sample[0::2].count(0) > 0.7 * half and sample[1::2].count(0) < 0.1 * half:
            return "utf-16-be"
    return "utf-8"


def is_packed(head: bytes) -> bool:
    """Check whether a log must be unpacked or transcoded to be read (gzip or UTF-16), judging by its first bytes."""
    return head.startswith(_GZIP_MAGIC) or sniff_encoding(head) != "utf-8"


def is_binary(head: bytes) -> bool:
    """Check whether a file is something other than a log (a checkpoint, an image), judging by its first bytes.

    Blocks of NULs do not count, because truncating a log while its writer has it open leaves them behind.
    """
    if b"\0" not in head or is_packed(head):
        return False
    rest = head.replace(b"\0", b"")
    # The head may end inside a character.
    broken = "\ufffd" in rest.decode("utf-8", "replace").removesuffix("\ufffd")
    return broken or len(rest.translate(None, _FOREIGN)) < len(rest)


def gunzip(
    chunks: Iterable[bytes],
    on_torn: Callable[[], None] = lambda: None,
    *,
    most_bytes: int = MOST_UNPACKED_BYTES,
) -> Iterator[bytes]:
    """Unpack gzip members as they arrive. If the end is cut off or damaged, yield the readable part and call `on_torn`.

    More than `most_bytes` of output counts as damaged, because a few megabytes can expand to terabytes.
    """
    left = most_bytes
    window = 1 << 20
    unpacker = zlib.decompressobj(wbits=31)
    begun = False
    for chunk in chunks:
        # NUL pads the blocks of a tape or an archive between members and after the last one.
        rest = chunk if begun else chunk.lstrip(b"\0")
        while rest:
            try:
                out = unpacker.decompress(rest, window)
            except zlib.error:
                on_torn()
                return
            if out:
                yield out
                left -= len(out)
                if left <= 0:
                    on_torn()
                    return
            begun = not unpacker.eof
            if unpacker.eof:
                rest = unpacker.unused_data.lstrip(b"\0")
                unpacker = zlib.decompressobj(wbits=31)
            else:
                rest = unpacker.unconsumed_tail
    if begun:
        on_torn()


def plain_chunks(
    chunks: Iterable[bytes], on_torn: Callable[[], None] = lambda: None, *, depth: int = 0
) -> Iterator[bytes]:
    """Yield a log as UTF-8 bytes, unpacking gzip, transcoding UTF-16 and dropping any BOM.

    Ordinary UTF-8 chunks pass through unchanged, so byte offsets match the file. For `on_torn`, see `gunzip`.
    It is also called if gzip is nested more than `MOST_NESTED` deep, in which case the log is not read.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= 16:
            break
    if not head:
        return
    whole = chain((head,), source)
    if head.startswith(_GZIP_MAGIC):
        if depth >= MOST_NESTED:
            on_torn()
            return
        yield from plain_chunks(gunzip(whole, on_torn), on_torn, depth=depth + 1)
        return
    name = sniff_encoding(head)
    if name == "utf-8":
        yield from whole
        return
    for text in codecs.iterdecode(whole, name, "replace"):
        yield text.replace("\ufeff", "").encode("utf-8", "replace")


def strip_escapes(text: str) -> str:
    """Remove ANSI/OSC sequences and every control character except tab, newline and carriage return."""
    if "\x1b" in text or not text.isascii():
        text = _ESCAPES.sub("", text)
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: "\r" if found[0] == "\r" else "", text)


def clean(raw: bytes, cap_bytes: int = LINE_CAP_BYTES) -> str:
    """Return one line of a log, without its newline, as text that is safe to display.

    Invalid UTF-8 becomes U+FFFD, progress output is folded to its last state, escape codes and control
    characters are dropped, and text longer than `cap_bytes` is cut with a visible mark.
    """
    if b"\r" in raw:
        # Fold before decoding: of a 100 MB progress flood only the last state counts, as on a terminal.
        raw = raw.rstrip(b"\r \t")
        raw = raw[raw.rfind(b"\r") + 1 :]
    cut = len(raw) > cap_bytes
    text = (raw[:cap_bytes] if cut else raw).decode("utf-8", "replace")
    if not (text.isascii() and text.isprintable()):
        text = strip_escapes(text).replace("\r", "")
    return text + CAP_MARK if cut else text


def printable(text: str) -> str:
    r"""Make a line from any source safe for a terminal. All command output passes through here.

    Characters that control the terminal, start a new line, reorder text or are invisible become escapes
    (``\x1b``, ``\n``, ``\u202e``). A tab becomes four cells, at most `MOST_MARKS` combining marks in a row are
    kept, and a second pass changes nothing.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\t", "    "))

    def few_marks(found: re.Match[str]) -> str:
        rows = groupby(found[0], lambda char: unicodedata.category(char)[0] == "M")
        return "".join("".join(row)[: MOST_MARKS if of_marks else None] for of_marks, row in rows)

    return _MARKS.sub(few_marks, shown)


def shell_word(word: str) -> str:
    """Quote `word` for bash using only printable characters. Pasting the result yields the original word."""
    if printable(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_bash_escaped, word)) + "'"


def _bash_escaped(char: str) -> str:
    if char in {"'", "\\"}:
        return f"\\{char}"
    if printable(char * 5) == char * 5:  # a combining mark is escaped
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 0x80 else f"\\U{ord(char):08x}"


def ascii_json(line: str) -> str:
    r"""Replace everything beyond printable ASCII with JSON escapes (``\u202e``), valid in any locale and harmless on any terminal."""
    if line.isascii() and line.isprintable():
        return line
    return _NOT_ASCII.sub(
        lambda found: re.sub("(....)", r"\\u\1", found[0].encode("utf-16-be", "surrogatepass").hex()), line
    )
