"""Text into tokens and back: bytes as they are, or byte pairs by the `tokenizers` library (extra `bpe`).

Nothing is downloaded: a tokenizer is trained by ``trainer data prepare`` or given as a tokenizer.json. Standard library
alone until a tokenizer.json is opened.
"""

from __future__ import annotations

import codecs
import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from trainer.config import DataError

BYTE_VOCABULARY: Final = 256
SEPARATOR: Final = b"\n"
# Ends a document; GPT-2's own name for it.
END_OF_TEXT: Final = "<|endoftext|>"
TOKENIZER: Final = "tokenizer.json"
# Pieces of documents (1 MiB and less) that a tokenizer is trained on: more text changes its pairs little.
MOST_PIECES: Final = 512
LONGEST_LINE: Final = 1 << 20  # characters that are held
TOKENS_AT_ONCE: Final = 1 << 14


class Text(Protocol):
    """Tokens as they are shown: gives what each further token adds."""

    def after(self, token: int) -> str:
        """The text that is certain now."""
        ...

    def rest(self) -> str:
        """What is left at the end."""
        ...


class Tokenizer(Protocol):
    """A way to make tokens of text."""

    vocab_size: int
    encoding: str  # as prepare notes it
    saved: bytes  # a tokenizer.json; empty where there is nothing to save

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without any that marks its end."""
        ...

    def document(self, pieces: Iterable[bytes]) -> Iterator[tuple[Sequence[int], int]]:
        """Tokens of a document and its end, piece by piece, each with the bytes of text that it stands for."""
        ...

    def length(self, tokens: Sequence[int]) -> int:
        """Bytes of text that tokens stand for."""
        ...

    def text(self) -> Text:
        """Turns tokens into text, one after another."""
        ...


class Bytes:
    """A token a byte of UTF-8."""

    vocab_size = BYTE_VOCABULARY
    encoding = "bytes"
    saved = b""

    def encode(self, text: str) -> list[int]:
        """Its bytes."""
        return list(text.encode())

    def document(self, pieces: Iterable[bytes]) -> Iterator[tuple[Sequence[int], int]]:
        """The bytes, and a line's end."""
        for piece in pieces:
            yield piece, len(piece)
        yield SEPARATOR, 1

    def length(self, tokens: Sequence[int]) -> int:
        """One each."""
        return len(tokens)

    def text(self) -> Text:
        """What is no UTF-8 is replaced."""
        return _ByteText()


class _ByteText:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def after(self, token: int) -> str:
        return self._decoder.decode(bytes([token]))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class Pairs:
    """Tokens by a tokenizer.json."""

    encoding = "tokenizer.json"

    def __init__(self, saved: bytes) -> None:
        """Raises DataError: it is none, or the library is missing."""
        library = _library("reading a tokenizer.json")
        self.saved = saved
        try:
            self._held = library.Tokenizer.from_str(saved.decode())
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise DataError(f"no tokenizer.json: {' '.join(str(error).split())[:200]}") from None
        self.vocab_size: int = self._held.get_vocab_size()
        self._end: int | None = self._held.token_to_id(END_OF_TEXT)

    def encode(self, text: str) -> list[int]:
        """Tokens, without those that the tokenizer would put around a text."""
        found: list[int] = self._held.encode(text, add_special_tokens=False).ids
        return found

    def document(self, pieces: Iterable[bytes]) -> Iterator[tuple[Sequence[int], int]]:
        """The tokens, and one that ends a document: a line's end where the tokenizer knows none."""
        for text in _whole_words(pieces):
            yield self.encode(text), len(text.encode())
        end = [self._end] if self._end is not None else self.encode("\n")
        yield end, len(SEPARATOR)

    def length(self, tokens: Sequence[int]) -> int:
        """Counted in the text of the tokens; the end of a document counts one."""
        total = 0
        for at in range(0, len(tokens), TOKENS_AT_ONCE):
            part = list(tokens[at : at + TOKENS_AT_ONCE])
            total += len(self._held.decode(part).encode()) + part.count(self._end)  # type: ignore[arg-type]
        return total

    def text(self) -> Text:
        """The library's own stream; the end of a document is a line's end."""
        return _PairText(self._held, self._end)


class _PairText:
    def __init__(self, held: Any, end: int | None) -> None:
        from tokenizers.decoders import DecodeStream

        self._held, self._end = held, end
        self._stream = DecodeStream(skip_special_tokens=True)

    def after(self, token: int) -> str:
        if token == self._end:
            return "\n"
        try:
            return self._stream.step(self._held, token) or ""
        except Exception:  # noqa: BLE001 - bytes that never become a character: the stream cannot continue behind them
            self.__init__(self._held, self._end)  # type: ignore[misc]
            return "\ufffd"

    def rest(self) -> str:
        return ""


def trained(documents: Iterable[Iterable[bytes]], vocab_size: int) -> Pairs:
    """Trains byte pairs, as GPT-2 has them.

    Args:
        documents: each in pieces; the first `MOST_PIECES` pieces are looked at.
        vocab_size: at most so many tokens: the 256 bytes, the end of a document, and the commonest pairs.

    Raises:
        DataError: the library is missing.
    """
    library = _library("training a tokenizer")
    held = library.Tokenizer(library.models.BPE())
    held.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    held.decoder = library.decoders.ByteLevel()
    how = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    held.train_from_iterator(
        islice((text for pieces in documents for text in _whole_words(pieces)), MOST_PIECES), how
    )
    return Pairs(held.to_str().encode())


def opened(path: Path) -> Pairs:
    """The tokenizer of a file.

    Raises:
        DataError: it cannot be read, or is none.
    """
    try:
        return Pairs(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def known(vocab_size: int, saved: bytes) -> Tokenizer | None:
    """What makes text of a model's tokens: its tokenizer.json, else bytes if it has 256; None if nothing does."""
    if saved:
        return Pairs(saved)
    return Bytes() if vocab_size == BYTE_VOCABULARY else None


def beside(path: str) -> bytes:
    """The tokenizer.json that `prepare` noted beside a token file; empty if there is none."""
    try:
        note: Any = json.loads(Path(path + ".json").read_text(encoding="utf-8"))
        return Path(path).with_name(TOKENIZER).read_bytes() if note["encoding"] == TOKENIZER else b""
    except (OSError, ValueError, KeyError, TypeError):
        return b""


def packed(tokens: Sequence[int], dtype: str) -> bytes:
    """Tokens as they stand in a token file, little-endian."""
    if isinstance(tokens, bytes) and dtype == "uint16":
        wide = bytearray(2 * len(tokens))
        wide[::2] = tokens
        return bytes(wide)
    held = array("H" if dtype == "uint16" else "I", tokens)
    if sys.byteorder == "big":
        held.byteswap()
    return held.tobytes()


def _whole_words(pieces: Iterable[bytes]) -> Iterator[str]:
    """The text of pieces, cut behind a line's end; in a line that is too long between words."""
    decoder, begun = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in pieces:
        text = begun + decoder.decode(piece)
        cut = text.rfind("\n") + 1
        if not cut and len(text) > LONGEST_LINE:
            cut = text.rfind(" ") if " " in text[1:] else len(text)  # a space begins a word
        begun = text[cut:]
        if cut:
            yield text[:cut]
    if last := begun + decoder.decode(b"", final=True):
        yield last


def _library(what: str) -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise DataError(f"{what} needs the library tokenizers: pip install 'stoker[bpe]'") from None
    return tokenizers
