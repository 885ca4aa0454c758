"""Tracks what earlier lines mean for the next one: table headers, tracebacks, settings blocks and headings."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from supervisor.sources.metrics import lexicon
from supervisor.sources.metrics.line import parse_line
from supervisor.sources.metrics.line_report import is_program_text
from supervisor.sources.metrics.names import SOLE_RANK, Field, words_of
from supervisor.sources.metrics.progress_bars import begins_other_work, find_bar, is_other_work
from supervisor.sources.metrics.tables import (
    Header,
    find_header,
    read_pair_row,
    read_row,
)
from supervisor.sources.metrics.tokens import (
    MASKED,
    NOTHING,
    Parsed,
    convert,
    json_message,
    mask,
    message_start,
    shifted,
)

MAX_HEADING = 120
# Blanks that most patterns do not match as blanks: no-break, thin, ideographic.
_BLANKS = dict.fromkeys((0xA0, 0x2007, 0x2009, 0x202F, 0x3000), " ")
_TRACE = "Traceback (most recent call last)"
# "Training arguments:", "----- config -----", "optimizer:". One combined expression would try each word at each position.
_BLOCK_WORD = re.compile(
    r"(?:config\w*|arguments?|args|hyper-?parameters?|options|settings|parameters)\b[\w .]*[:\s=*-]*$",
    re.IGNORECASE,
)
_BEFORE_BLOCK_WORD = re.compile(r"\s*[-*=# ]*[\w .-]*$")
_BLOCK_NAME = re.compile(r"\s*[\w.-]+:\s*$")
# Headings above values of held-out data: "Validating...", "Evaluating the model on the dev set", "Run
# validation at step 100", "Test Error:", "--> EVAL PERFORMANCE", "Eval begin...".
_HELD_OUT = re.compile(
    r"\W*(?:(?:now|run|running|start|starting|begin|beginning) )?(?:the )?(?:(?:evaluat|validat|predict)(?:e|ing|ion)|testing|test(?= (?:at|after|for)))"
    r"(?: (?:the|on|at|after|in|for|of|model|phase|loop|set|split|data|test|dev|validation|eval|epoch|steps?|iteration|iter|batches|samples|examples|\d+))*\W*$"
    r"|(?:(?:test|val|valid|validation|eval|evaluation|dev)\s+\w[ \w]{0,22}|.{0,80}\bon the (?:test|validation|evaluation|dev) set):\s*$"
    r"|[\s>*=#-]*(?:-->|>|\*+|=+|#+)\s*(?:eval\w*|valid\w*|test\w*)(?: \w+)?[\s*=#-]*$"
    r"|\W*(?:eval\w*|valid\w*|test\w*)\s+(?:begins?|starts?|started)\b[^\d:=]*$",
    re.IGNORECASE,
)
# The name of a set on its own: "Validation:", "验证集:".
_SET_ALONE = re.compile(r"[\W_]*([^\W\d_]{3,12})(?:[ _][Ss]et)?\s*[:：][\s*=#-]*$")
# The end of a pass over held-out data: " * Acc@1 71.2 loss 1.2".
_STARRED = re.compile(r"\s?\* (?!.*\b(?:epoch|step|iter\w*|train\w*)\b)[A-Za-z]", re.IGNORECASE)
# "Averaged stats: loss: 0.31": describes the previous pass.
_MEANS = re.compile(r"\s*Averaged? (?:stats|metrics|results)\s*:", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\b", re.IGNORECASE)
# "***** train metrics *****": a table of means over the whole run.
_SUMMARY = re.compile(r"\W*(?:train|training|final) (?:metrics|results|summary)\W*$", re.IGNORECASE)
# Which set a held-out loss belongs to, for logs that print both.
_VALIDATION = re.compile(
    r"(?<![A-Za-z])(?:val|valid\w*|dev)(?![A-Za-z])|(?<![A-Za-z])val(?=loss)", re.IGNORECASE
)
_TEST = re.compile(r"(?<![A-Za-z])test(?:ing)?(?![A-Za-z])", re.IGNORECASE)
_BEST = re.compile(
    r"best (?:iteration|epoch|step|model|result)\w*(?: (?:is|was|at|in|of|from|on)\b[\w ]{0,30})?\s*:\s*$",
    re.IGNORECASE,
)
# In an apparent block of settings, a number with this many digits was computed, not configured.
_MEASURED = re.compile(r":\s*-?\d+\.\d{7,}(?:e-?\d+)?\s*$")

# Caffe: "Train net output #1: loss = 3.4 (* 1 = 3.4 loss)", below the iteration's total.
_OUTPUT = re.compile(r"\boutput #\d+:")
# "TrainConfig(" with its fields on the lines below.
_CALL = re.compile(r"\s*(?:[\w.]+\s?[=:]\s?)?[A-Za-z_][\w.]*\($")
# "lr=0.1,": transformers does not indent the fields of its arguments.
_FIELD = re.compile(r"[A-Za-z_]\w*=")
# scikit-learn's classification report, in which a class may be named "loss".
_REPORT = re.compile(r"\s*precision\s+recall\s+f1-?score\s+support\s*$")
_REPORT_ROW = re.compile(r"\s*\S.*\s[\d.e-]+\s+\d+\s*$")


# "Timer: 0.6698", "time: 0.21 sec.": a time on a line of its own, for an unknown number of steps.
_LONE_TIME = re.compile(
    r"\W*(?:(?:batch|iter|step)[ _])?timer?\s*[:=]\s*\d+\.\d+\s*(?:s|secs?|seconds?)?\W*$", re.IGNORECASE
)
# A longer block is not a call or a summary. The arguments of transformers take about 130 lines.
MAX_BLOCK = 200
# Few runs have more epochs, and few runs that print steps next to a set's loss have fewer steps.
MAX_EPOCHS = 1000
_OF_SET = lexicon.EVAL_WORDS | lexicon.TRAIN_WORDS
# What a bar or a nameless counter may show beside its count if it is not about training.
_OF_COUNTER = frozenset({Field.STEP, Field.TOTAL_STEPS, Field.STEP_TIME, Field.SAMPLES, Field.ETA})
_FULL_BAR = re.compile(r"100%\|[█#=]+\|")


# A line of drawing characters only, which does not end a table.
_RULE = re.compile(r"[\s|+:=─━┼-]*$")
# "| train/   |        |": a table of names and values, not of settings.
_SECTION_ROW = re.compile(r"\s*\|\s*[A-Za-z_][\w ]*/\s*\|\s*\|\s*$")


class Below(Enum):
    """What may appear below a heading that announces held-out data or other work."""

    OTHER = auto()
    RESULTS = auto()  # the next line is the first one, whose indentation selects INDENTED or SET
    INDENTED = auto()  # results, as long as lines are indented
    SET = auto()  # results, up to a counter, which belongs to training
    WORK = auto()  # bars and nameless counters of other work: "Encoding 17562 texts"
    WORKED = auto()  # the full bar of other work, which may be drawn again


_NOT_HELD_OUT = frozenset({Below.OTHER, Below.WORK, Below.WORKED})


class State(NamedTuple):
    """How earlier lines affect the next one.

    `evaluated` means that the previous report was on held-out data. `in_call` and `in_summary` are the maximum number of
    lines left in the block, or 0 outside a block. `only_loss` is the loss that counts as the total because its lines had no
    other loss ("focal_loss"), or None once the log prints a total or another kind of loss, which makes them parts.
    `pairs_are_epochs` says whether an unnamed `[1/15]` counts epochs. It is None until that is known.
    """

    header: Header | None = None
    in_trace: bool = False
    in_record: bool = False
    evaluated: bool = False
    in_settings: bool = False
    in_section: bool = False
    skip_next: bool = False
    below: Below = Below.OTHER
    after_val_loss: bool = False
    in_call: int = 0
    in_summary: int = 0
    in_report: bool = False
    in_best: bool = False
    only_loss: str | None = ""
    validates: bool = False
    pairs_are_epochs: bool | None = None


def parse(text: str, state: State) -> tuple[Parsed, State, bool]:
    """Parse a line in the given state. Return its readings, the next state, and whether the line was a table row."""
    if not text.isascii():
        text = text.translate(_BLANKS)
    if (wrapped := json_message(text)) is not None:
        begin, end, message = wrapped
        around = parse_line(text[:begin] + MASKED * (end - begin) + text[end:])
        if not any(reading.field for reading in around.readings):
            parsed, after, is_row = parse(message, state)
            return shifted(parsed, begin), after, is_row
    begin = message_start(text)
    message = text[begin:]
    if not message.strip():
        return NOTHING, state._replace(in_settings=False), False
    if (below := _in_block(message, state)) is not None:
        return NOTHING, below, False
    state = state._replace(in_call=0, in_report=False, in_best=False)
    row, after = _from_table(message, state)
    if row is not None:
        row, after = _whole_loss(row, after)
        return shifted(row, begin), after, True
    if after.below is Below.RESULTS:
        after = after._replace(below=Below.INDENTED if _is_indented(message) else Below.SET)
    if not _is_indented(message):
        after = after._replace(in_record=False, in_summary=0)
        if after.below is Below.INDENTED and not _is_bar(message):
            after = after._replace(below=Below.OTHER)
    if len(message) <= MAX_HEADING and (below := _heads(message, after)) is not None:
        return NOTHING, below, False
    if after.in_settings and _is_indented(message) and not _MEASURED.search(message) and not _is_bar(message):
        # Here a line that looks like a set's name is a key of the settings.
        return NOTHING, after._replace(below=Below.OTHER) if after.below is Below.SET else after, False
    parsed, after = _of_line(text, begin, after)
    return *_whole_loss(parsed, after), False


def _whole_loss(parsed: Parsed, state: State) -> tuple[Parsed, State]:
    """Use earlier lines to decide whether the only loss on a line is the total loss."""
    found = next((reading for reading in parsed.readings if reading.field == Field.LOSS), None)
    if found is None or parsed.off_curve:
        return parsed, state
    if found.rank > SOLE_RANK:
        return parsed, state._replace(only_loss=None)
    if state.only_loss in {"", found.name}:
        return parsed, state._replace(only_loss=found.name)
    readings = tuple(one._replace(field="") if one is found else one for one in parsed.readings)
    return parsed._replace(readings=readings), state._replace(only_loss=None)


def _of_validation(parsed: Parsed, message: str, state: State) -> tuple[Parsed, State]:
    """Take a test-set loss off the curve if the log also has a validation loss, which is a different curve."""
    found = [one for one in parsed.readings if one.field == Field.VAL_LOSS]
    if not found:
        return parsed, state
    if any(_VALIDATION.search(one.name) for one in found) or _VALIDATION.search(message):
        return parsed, state._replace(validates=True)
    return parsed._replace(
        off_curve=parsed.off_curve or (state.validates and _TEST.search(message) is not None)
    ), state


def _of_pair(parsed: Parsed, text: str, state: State) -> tuple[Parsed, State]:
    """Read unnamed pairs (`[1/15]`) as epochs if no epochs are named and the first pair with a train or test loss is 0/N or 1/N, N <= MAX_EPOCHS."""
    by_field = {one.field: one for one in parsed.readings}
    if Field.EPOCH in by_field:
        return parsed, state._replace(pairs_are_epochs=False)
    step, total = by_field.get(Field.STEP), by_field.get(Field.TOTAL_STEPS)
    if step is None or total is None or not step.weak:
        return parsed, state
    losses = [one.name for one in parsed.readings if one.field in {Field.LOSS, Field.VAL_LOSS}]
    if state.pairs_are_epochs is None and not _OF_SET.isdisjoint(words_of(" ".join(losses))):
        count, of_all = (convert(one.conversion, text[one.start : one.end]) or 0 for one in (step, total))
        state = state._replace(pairs_are_epochs=count <= 1 and of_all <= MAX_EPOCHS)
    if not state.pairs_are_epochs:
        return parsed, state
    fields = {Field.STEP: Field.EPOCH, Field.TOTAL_STEPS: Field.TOTAL_EPOCHS}
    readings = tuple(one._replace(field=fields.get(one.field, one.field)) for one in parsed.readings)
    return parsed._replace(readings=readings), state


def _heads(message: str, state: State) -> State | None:
    """Return the state below a heading, or None if the line is not a heading."""
    if (alone := _SET_ALONE.match(message)) is not None and lexicon.EVAL_WORDS.issuperset(words_of(alone[1])):
        # "val:" and "TEST:" may be keys in settings with indented values.
        is_key = message.isascii() and (message.islower() or message.isupper())
        return state._replace(below=Below.SET, in_settings=is_key)
    if _HELD_OUT.match(message):
        return state._replace(below=Below.RESULTS)
    word = _BLOCK_WORD.search(message)
    is_block = word is not None and _BEFORE_BLOCK_WORD.match(message[: word.start()]) is not None
    if is_block or _BLOCK_NAME.match(message):
        return state._replace(in_settings=True)
    if _SUMMARY.match(message):
        return state._replace(in_summary=MAX_BLOCK)
    return None


def _is_indented(message: str) -> bool:
    return message[:1] in " \t" or message[:2] == "- "


def _of_line(text: str, begin: int, state: State) -> tuple[Parsed, State]:
    """Parse a line whose message starts at `begin`. Return its readings and the next state."""
    message = text[begin:]
    indented, is_bar = _is_indented(message), _is_bar(message)
    # A line with its own word for the set or the epoch is a summary, not a result.
    if state.below is Below.SET and any(
        words.search(message) for words in (lexicon.TRAINS, lexicon.EVALUATES, _EPOCH)
    ):
        state = state._replace(below=Below.OTHER)
    in_record = (state.in_record or (state.in_settings and indented)) and not _LONE_TIME.match(message)
    evaluates = (
        (state.below not in _NOT_HELD_OUT and not is_bar)
        or _STARRED.match(message) is not None
        or (state.evaluated and _MEANS.match(message) is not None)
    )
    parsed = _with_message(text, begin, in_record=in_record, evaluates=evaluates)
    fields = {reading.field for reading in parsed.readings}
    if (worked := _of_work(message, parsed, state.below)) is not None:
        return NOTHING._replace(once=parsed.once), state._replace(below=worked)
    if state.below in {Below.WORK, Below.WORKED}:
        state = state._replace(below=Below.OTHER)
    if state.below is not Below.OTHER and is_bar and fields.isdisjoint((Field.LOSS, Field.VAL_LOSS)):
        return NOTHING._replace(once=parsed.once), state  # the bar of the pass over held-out data
    if state.below is Below.SET and not fields.isdisjoint((Field.STEP, Field.EPOCH)):
        state = state._replace(below=Below.OTHER)
        parsed = _with_message(text, begin, in_record=in_record, evaluates=False)
    if state.after_val_loss and Field.LOSS in fields and "" in fields and fields <= {Field.LOSS, ""}:
        # After "Val loss: 0.41", the same loss is printed again next to its parts.
        parsed = parse_line(text, evaluates=True)
    if state.in_summary or _OUTPUT.search(message):
        parsed = parsed._replace(off_curve=True)
    parsed, state = _of_validation(parsed, message, state)
    parsed, state = _of_pair(parsed, text, state)
    if parsed.evaluates or not fields.isdisjoint((Field.STEP, Field.LOSS)):
        state = state._replace(evaluated=parsed.evaluates)
    if parsed.heading and parsed.evaluates and not is_bar:
        state = state._replace(below=Below.SET)  # "Eval epoch: 24"
    return parsed, state._replace(
        after_val_loss=[reading.field for reading in parsed.readings] == [Field.VAL_LOSS],
        in_settings=state.in_settings if indented else parsed.settings and not parsed.readings,
        in_record=state.in_record or parsed.heading,
        in_summary=max(0, state.in_summary - 1),
    )


def _of_work(message: str, parsed: Parsed, below: Below) -> Below | None:
    """Return what follows a line about other work, such as tokenizing, or None if the line is about training."""
    is_bar = _is_bar(message)
    if below not in _NOT_HELD_OUT:
        return None
    if not parsed.readings and not is_bar and begins_other_work(message):
        return Below.WORK
    if below is Below.OTHER or lexicon.TRAINS.search(message) or _EPOCH.search(message):
        return None
    fields = {one.field: one for one in parsed.readings}
    if not is_bar and not parsed.readings:
        goes_on = below is Below.WORK and (is_other_work(message) or _is_indented(message))
        return below if goes_on else None
    if not fields.keys() <= _OF_COUNTER or not (is_bar or (Field.STEP in fields and fields[Field.STEP].weak)):
        return None
    if _FULL_BAR.search(message):
        return Below.WORKED
    return Below.WORK if below is Below.WORK else None


def _with_message(text: str, begin: int, *, in_record: bool, evaluates: bool) -> Parsed:
    """Parse a line, or only its message if that yields more. A message may start with "[50]", a counter or a bar."""
    parsed = parse_line(text, in_record=in_record, evaluates=evaluates)
    if not begin:
        return parsed
    message = text[begin:]
    if parsed.readings and is_program_text(mask(message)):
        return NOTHING
    if _is_whole(parsed) or is_program_text(mask(text)):
        return parsed
    alone = parse_line(message, in_record=in_record, evaluates=evaluates)
    return shifted(alone, begin) if _weight(alone) > _weight(parsed) or not parsed.readings else parsed


def _in_block(message: str, state: State) -> State | None:
    """Return the state after a line inside a skipped block, or None if the line is not in one.

    Progress bars are never skipped, even when indented.
    """
    if state.skip_next:
        return state._replace(skip_next=False)
    if _is_bar(message):
        return None
    stripped, indented = message.strip(), _is_indented(message)
    if state.in_trace and not indented and _is_whole(parse_line(message)):
        return None  # a line of the other stream between lines of the traceback
    if state.in_trace or _TRACE in message:
        goes_on = indented or stripped.startswith(("During handling", "The above exception", _TRACE))
        return state._replace(in_trace=goes_on or not state.in_trace)
    if state.in_best and indented:
        return state
    if _BEST.search(message):
        return state._replace(skip_next=True, in_best=not indented)
    if state.in_call and _goes_on_in_call(message, indented=indented):
        return state._replace(in_call=0 if message[0] in ")]}" else state.in_call - 1)
    if _CALL.match(message) and not indented:
        return state._replace(in_call=MAX_BLOCK)
    if _REPORT.match(message):
        return state._replace(in_report=True)
    return state if state.in_report and _REPORT_ROW.match(message) else None


def _goes_on_in_call(message: str, *, indented: bool) -> bool:
    """Check whether a line is a field or the closing bracket of the call above, either of which can look like a report."""
    is_field = indented or message[0] in ")]}" or _FIELD.match(message) is not None
    return is_field and message.rstrip()[-1] in ",([{)]}" and not _is_whole(parse_line(message))


def _is_whole(parsed: Parsed) -> bool:
    """Check whether a line reports both a training position and a loss."""
    fields = {reading.field for reading in parsed.readings}
    return not fields.isdisjoint((Field.STEP, Field.EPOCH)) and not fields.isdisjoint(
        (Field.LOSS, Field.VAL_LOSS)
    )


def _weight(parsed: Parsed) -> int:
    """Count the canonical fields that a line reports."""
    return sum(bool(reading.field) for reading in parsed.readings)


def _is_bar(message: str) -> bool:
    return "%|" in message and find_bar(message) is not None


def _from_table(text: str, state: State) -> tuple[Parsed | None, State]:
    """Read a table row. Return `NOTHING` for a table's header or rule lines, or None for any other line."""
    if _RULE.match(text):
        return NOTHING, state
    if not any(separator in text for separator in ("|", "│", "┃", ",", "\t", "  ")):
        return None, state._replace(in_section=False) if state.in_section else state
    if _SECTION_ROW.match(text):
        return NOTHING, state._replace(in_section=True)
    row = read_pair_row(text, in_section=state.in_section)
    if row is not None:
        return row, state
    state = state._replace(in_section=False)
    if state.header is not None and (row := read_row(state.header, text)) is not None:
        return row, state
    header = find_header(text)
    if header is not None:
        return NOTHING, state._replace(header=header)
    return None, state
