"""Decides which readings on a line count, and whether the line is a training report at all."""

from __future__ import annotations

import re

from supervisor.sources.metrics.names import PART_RANK, RUN_TIME, SOLE_RANK, Field, words_of
from supervisor.sources.metrics.progress_bars import is_other_work
from supervisor.sources.metrics.tokens import MASKED, NOTHING, PLAIN, Found, Parsed, Reading

# Lines with numbers that are not reports: checkpoints, plans, settings, best values, schedules.
_TALK = re.compile(
    r"(?:^|[\s\]|:*>(\x01-])(?:export\b|sav(?:e|ed|es|ing)\b(?! dict)|(?<!epoch )load(?:ed|ing)?\b|resum\w*|restor\w*|download\w*|best\b|early stopping|will\b|initial\b|goal\b|aim\b|lowest\b|continuing\b|upload\w*|stop when\b|training until\b|the paper\b|target:|evaluating loss|initializ\w*|"
    r"adjusting|reduc(?:e|ing) learning|setting|using\b|no improvement|patience|expected|announc\w*|warning\b|did not improve|improved from|config\w*|hyper-?param\w*|"
    r"arguments?\b|args\b|namespace|param_groups?|overflow|skipping|commit\b|head is now|attempted|requirement|collecting|version\b|cloning|remote:|wandb\x01*:|COMET|"
    r"starting\b|begin\b|resolving|receiving objects|checkpoint(?:ing)? (?:saved|written|at|every)|wrote\b|writing\b|removed?\b|deleting|total steps|num(?:ber)? of|num_(?!updates)\w+|scheduler\b|"
    r"memory report|see_memory|packet\b|building\b|compil(?:ing|ed)\b|warming|datasets?\b(?! eval)|tokeniz\w+|vocab\w*|parsed\b|parsing\b|found \d|found (?:a )?(?:better|new)\b|elapsed since|start\w* training|number of\b)",
    re.IGNORECASE,
)
_TALK_ANYWHERE = re.compile(
    r"improved from|did not improve|\bsaving (?:model|checkpoint)|stopping training|no[nt][ -]finite|aborting|@\[|\bRegion \d+|checkpoint saved|will be saved|oom_score|\bmeta: \{|保存|最佳|最优|最好|早停|加载|恢复训练|[\"'](?:config|hparams|hyperparameters|arg(?:uments|s)|settings)[\"']|\bspike\b|\dx the (?:running )?(?:mean|average|median)|\d\s*(?:-+>|=>|→)\s*[-\d.]|memory usage for model",
    re.IGNORECASE,
)
_GERUND = re.compile(r"[\s\])}:|-]*([A-Za-z]\w*ing)\b")
# The text of a chat with a model.
_SPEECH = re.compile(
    r"\W*(?:prompt|completion|generated|response|question|answer|user|assistant|human|system|input|output|[qa])(?: text)?\s?:\s",
    re.IGNORECASE,
)
_CONFIG_PAIR = re.compile(
    r"(?<![\w.-])[A-Za-z_][\w.-]*+\s?[=:]\s*(?![Nn]/?[Aa]\b|(?i:nan|inf)\b)(?:['\"]?[A-Za-z/.][\w./-]*['\"]?|\[|\{|True|False|None)(?=[,\s)}\]]|$)"
)
# "epoch 1, total time 81.21": an epoch and its duration.
_EPOCH_AND_TIME = re.compile(
    r"[^A-Za-z\d]*epoch\W{0,3}\d+\W+[a-z ]{0,20}time[a-z ]*\W{1,3}[\d.:]+(?: ?[a-z]+)?\W*$", re.IGNORECASE
)
# One entry of a dictionary printed over several lines. A loss of one kind may be part of a total below.
_ENTRY = re.compile(r"\s+['\"][\w/ .-]+['\"]\s*:\s*[-+.\deE]+,?\s*$")
# A list of losses: "Losses: [0.3, 0.1]".
_LOSSES = re.compile(r"(?<![a-z])losses(?![a-z])", re.IGNORECASE)
# A router's auxiliary losses, which are printed beside the loss and are not part of it.
_BESIDE = frozenset({"balance", "balancing", "router", "z"})
_WORDS = re.compile(r"[A-Za-z_一-鿿]{2,}")
_LONE_ETA = re.compile(
    r"(?:.*\x01)?[\W\d]*[A-Za-z-]+(?: [A-Za-z]+){0,3}\s*[:=]?\s*(?:[\d:.]+|(?:\d+(?:\.\d+)?\s?(?:d|h|m|s|days?|hours?|hrs?|min(?:ute)?s?|sec(?:ond)?s?)\b[,\s]*)+)"
    r"(?:\W+time (?:passed|elapsed|spent)\b.*)?\W*$",
    re.IGNORECASE,
)
# "Iteration: 12" at the line's start, "Learning iteration 66/30000" anywhere.
_LONE_COUNTER = re.compile(
    r"(?:(?:iter(?:ation)?|global[ _]step)\s*[:=]\s*\d+|\s*(?:learning |training )?(?:iteration|iter|step)\s+\[?\d+\s*(?:/|of)\s*\d+\]?:?|\s*batch\s+[\d,]+\s+of\s+[\d,]+\.?\s+elapsed: [\d:.]+)\s*$",
    re.IGNORECASE,
)
_COUNTER_WORDS = frozenset(
    {"step", "global", "global_step", "epoch", "iter", "iteration", "time", "train", "total"}
)
# "Starting epoch 3/10", "Begin of training epoch 3", "Start training epoch 9, 3511 iters per inner epoch."
_STARTS_EPOCH = re.compile(
    r"(?:.*\x01)?\W*(?:start(?:ing|ed)?|begin(?:ning)?)\s+(?:of\s+)?(?:train(?:ing)?\W{1,2})?(?:for\s+)?epoch\W{0,3}\d+(?:\s*(?:/|of)\s*\d+)?"
    r"(?:\W{1,3}\d+ (?:iter(?:ation)?s?|steps|batches)\b[a-z ]*)?\W*$",
    re.IGNORECASE,
)
_BARE_COUNT = re.compile(
    r"\b(?:(?:train[ _])?(?:mini-?)?batch(?:[ _]size)?|(?:max|num|total)?[ _]?steps)\s*[:=]?\s*$",
    re.IGNORECASE,
)
# Words that occur next to a batch size, but not next to a batch number.
_BESIDE_SIZE = re.compile(
    r"\b(?:(?:gradient|grad)?[ _]?accum(?:ulation)?(?:[ _]steps)?|acc[ _]steps|grad[ _]acc|gas?|micro|global|effective|world(?:[ _]size)?|ranks|gpus|nodes|workers)\s*[:=]?\s*\d",
    re.IGNORECASE,
)
# The part of a step that a time covers, and the mean after a value: "0.86s (0.91s)".
_PHASES = frozenset({"data", "load", "model", "forward", "backward", "infer"})
_MEAN = re.compile(r"\s?(?:s|secs?|seconds)?\s?\(\s?(?:avg|mean)?\W?\d")
_OF_TRAINING = frozenset({Field.LOSS, Field.VAL_LOSS, Field.LR, Field.GRAD_NORM})
# A line with scores but no counter has few values.
_FEW_READINGS = 6
# An action at a step, without a measurement.
_SAVED = re.compile(r"\b(?:saved|saving|checkpoint|snapshot)\b", re.IGNORECASE)
_DUMP = re.compile(r"\w ?\.{4}|^\s*[-*]{2}\s(?![Ee]poch|EPOCH)|Namespace\(|\bSummary\b.*\bparams\b")
# Exceptions, test results and warnings, which quote numbers.
_FAILURE = re.compile(
    r"::\w+\[|\b(?:PASSED|FAILED)\b|\b(?:warn|print|raise|logger\.\w+)\(|(?:^|[\s\]:(])(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Warning)\b(?::|$|\()|\bTraceback\b|^\s+File \"|\bassert(?:ion)?\b|^\s*\^+\s*$|Watchdog caught|timed out|\s//\s|\s\*\*\s",
)
# Program text: listings, diffs, lines that start with `if` or `return`.
_CODE = re.compile(
    r"^\s*>>> \w[\w.]* = |^Step \d+/\d+ : [A-Z]{3,}\b|=\s*[-\d.e+]+ \* [A-Za-z_]|=\s*[A-Za-z_][\w.]*\s*[*/]\s*[\d.]|^\s*return\s+[{(]|^\s*(?:el)?if\s.*:\s*$|>::\w|\blambda\s+\w+\s*:|^\s*def\s+\w+\("
    r"|^\s*[+-] {4,}\w[\w.]* = |^\s*>?\s*\d+ {4,}\w[\w.]* = |^\s*\d+ \| {4,}\w[\w.]* = |^\s*-+>\s*\d+ |^\s*\d+ -> \w+ = |(?:^|\s)\x01+:\s{3,}\w[\w.]* = "
)


def is_program_text(masked: str) -> bool:
    """Check whether a masked line is an exception, a test result or a line of code."""
    return _FAILURE.search(masked) is not None or _CODE.search(masked) is not None


class _Line:
    """A line and the readings chosen from it. Doubtful readings are left out.

    Attributes:
        best: the chosen reading for each field. `own` holds values under the log's own names.
        pair: a counter and a total that count only if the named step is the same.
        measured: the fields that are not counters.
        has_scores: whether some values are reported only by training or evaluation.
        is_named: whether the counter has a name.
        is_heading: whether the line has only a counter and perhaps the remaining time.
    """

    def __init__(self, found: Found, masked: str, *, has_bar: bool, in_record: bool) -> None:
        self.found, self.masked, self.has_bar, self.in_record = found, masked, has_bar, in_record
        best, own = self.best, self.own = _chosen(found.readings, masked, in_record=in_record)
        self.pair = _pair_beside(best, found.readings)
        _sort_times(best, own, masked, has_bar=has_bar, in_record=in_record)
        self.has_scores = not all(one.weak for one in own.values())
        if not (Field.STEP in best or Field.EPOCH in best or in_record or has_bar):
            for field in {Field.LOSS, Field.VAL_LOSS} & best.keys():
                if words_of(best[field].name) == ["cost"]:
                    del best[field]  # a cost may be of anything
        if (
            masked[:1] == "{"
            and "data_time" in own
            and self.has_scores
            and best.keys().isdisjoint(_OF_TRAINING)
        ):
            # An evaluation record of MMEngine. Its step counts evaluation batches.
            best.pop(Field.STEP, None)
            best.pop(Field.STEP_TIME, None)
        if Field.STEP not in best:
            best.pop(Field.TOTAL_STEPS, None)
        self.has_loss = Field.LOSS in best or Field.VAL_LOSS in best
        self.is_counted = Field.STEP in best or Field.EPOCH in best
        self.is_named = not all(best[field].weak for field in (Field.STEP, Field.EPOCH) if field in best)
        self.measured = best.keys() - {
            Field.RANK,
            Field.STEP,
            Field.TOTAL_STEPS,
            Field.EPOCH,
            Field.TOTAL_EPOCHS,
        }
        is_bare = not self.measured - {Field.ETA} and not self.has_scores
        self.is_heading = self.is_counted and self.is_named and is_bare


def judge(found: Found, masked: str, *, has_bar: bool, in_record: bool) -> Parsed:
    """Choose among readings of the same field, and decide whether the line is a report."""
    if not has_bar and not in_record and (size := _size_of_batch(found.readings, masked)) is not None:
        kept = [reading for reading in found.readings if reading is not size]
        found = found._replace(readings=kept, settings=max(1, found.settings))
    line = _Line(found, masked, has_bar=has_bar, in_record=in_record)
    if (not has_bar and _talks(line)) or _DUMP.search(masked) or _SPEECH.match(masked):
        names_settings = found.settings > 0 or "onfig" in masked or "rguments" in masked
        return NOTHING._replace(settings=names_settings)
    rates = not line.best.keys().isdisjoint({Field.GRAD_NORM, Field.TOKENS, Field.SAMPLES, Field.STEP_TIME})
    if (
        (found.settings >= 2 and not rates)
        or (found.settings > 0 and not (line.has_loss or has_bar or rates))
        or (not line.has_loss and "{" not in masked and len(_CONFIG_PAIR.findall(masked)) >= 2)
    ):
        return NOTHING._replace(settings=True)
    if not line.measured and not line.has_scores and _SAVED.search(masked):
        return NOTHING
    if not (has_bar or line.has_loss or _reports(line)):
        return NOTHING._replace(
            settings=found.settings > 0 or (Field.LR in line.best and not line.is_counted)
        )
    readings = (*line.best.values(), *line.own.values())
    sums_up, plain_time = RUN_TIME in line.own, _is_plain_time(line)
    return Parsed(readings, line.pair, line.is_heading, off_curve=sums_up, plain_time=plain_time)


def _reports(line: _Line) -> bool:
    """Check whether a line with neither a loss nor a progress bar still reports metrics."""
    best, own, fields = line.best, line.own, line.best.keys() - {Field.RANK}
    if line.in_record and (fields or own):
        return True
    if line.is_counted:
        return bool(
            # "1017000: lr=1.0" has a time and a setting.
            line.measured - (set() if line.is_named else {Field.LR})
            or (own and (line.is_named or line.has_scores))
            or (line.is_heading and _is_lone_counter(best, line.masked))
            or (Field.EPOCH in best and _EPOCH_AND_TIME.match(line.masked))
        )
    if _stands_alone(best) or (fields == {Field.ETA} and _LONE_ETA.match(line.masked)):
        return True
    return line.has_scores and len(line.found.readings) <= _FEW_READINGS


def _sort_times(
    best: dict[str, Reading], own: dict[str, Reading], masked: str, *, has_bar: bool, in_record: bool
) -> None:
    """Decide what each time measures: on a line with a step never an epoch, else the epoch that the line sums up, or unknown."""
    is_within_epoch = Field.STEP in best or has_bar
    has_loss = Field.LOSS in best or Field.VAL_LOSS in best
    sums_up = (
        has_loss
        and Field.EPOCH in best
        and "." not in masked[best[Field.EPOCH].start : best[Field.EPOCH].end]
    )
    took, timed = best.get(Field.EPOCH_TIME), best.get(Field.STEP_TIME)
    if took is not None and (is_within_epoch or (took.weak and not sums_up and not in_record)):
        _keep_own(own, best.pop(Field.EPOCH_TIME))
    if timed is not None and timed.weak and not is_within_epoch and not in_record:
        del best[Field.STEP_TIME]
        if sums_up:
            best.setdefault(Field.EPOCH_TIME, timed._replace(field=Field.EPOCH_TIME))
        else:
            _keep_own(own, timed)


def _keep_own(own: dict[str, Reading], reading: Reading) -> None:
    """Keep a reading as printed, under the log's own name."""
    if reading.name:
        own.setdefault(reading.name, reading._replace(field="", conversion=PLAIN))


def _size_of_batch(readings: list[Reading], masked: str) -> Reading | None:
    """Return the step reading if it may count samples or steps: "batch=8", "batch 8 accum 4", or "steps 90" with only whole numbers."""
    steps = [reading for reading in readings if reading.field == Field.STEP]
    others = [reading for reading in readings if reading.field not in {Field.STEP, Field.RANK}]
    if len(steps) != 1 or not others or not (bare := _BARE_COUNT.search(masked, 0, steps[0].start)):
        return None
    is_measured = any(
        one.field not in {"", Field.LR} or (not one.field and "." in masked[one.start : one.end])
        for one in others
    )
    is_counted = any(one.field in {Field.EPOCH, Field.TOTAL_STEPS} for one in others)
    is_size = not is_counted and "batch" in bare[0].lower() and _BESIDE_SIZE.search(masked) is not None
    return steps[0] if is_size or not is_measured else None


def _talks(line: _Line) -> bool:
    """Check whether a line has numbers but reports nothing, or names a stage: an unnamed pair, then an action ("[1/6] Loading data (dt=0.05s)")."""
    best, masked = line.best, line.masked
    first = min((reading.start for reading in best.values()), default=len(masked))
    talks = _TALK.search(masked[:first]) or _TALK_ANYWHERE.search(masked)
    if talks is not None and not _STARTS_EPOCH.match(masked):
        return True
    step, total = best.get(Field.STEP), best.get(Field.TOTAL_STEPS)
    if step is None or total is None or not step.weak or line.has_loss or line.has_scores:
        return False
    begun = _GERUND.match(masked, total.end)
    return begun is not None and (_TALK.match(begun[1]) is not None or is_other_work(begun[1]))


def _chosen(
    readings: list[Reading], masked: str, *, in_record: bool
) -> tuple[dict[str, Reading], dict[str, Reading]]:
    """Return the chosen reading for each field, and all other readings under their own names."""
    best: dict[str, Reading] = {}
    own: dict[str, Reading] = {}
    is_counted = any(reading.field in {Field.STEP, Field.EPOCH} for reading in readings)
    for reading in readings:
        held = best.get(reading.field)
        is_alone = reading.rank > SOLE_RANK or (is_counted and not in_record and not _LOSSES.search(masked))
        is_part = reading.field in {Field.LOSS, Field.VAL_LOSS} and reading.rank <= PART_RANK
        if not reading.field or (is_part and (not is_alone or rivals(readings, reading))):
            _keep_own(own, reading)
        elif held is None or reading.rank > held.rank:
            best[reading.field] = reading
            if held is not None:
                _keep_own(own, held)
        elif reading.field not in {Field.STEP_TIME, Field.MEMORY, Field.LR}:
            _keep_own(own, reading)
    part = best.get(Field.LOSS)
    # A policy loss in a block of many lines. The total has its own line.
    is_of_block = part is not None and in_record and part.rank in {3, 4}
    if part is not None and (is_of_block or (part.rank <= PART_RANK and _ENTRY.match(masked))):
        _keep_own(own, best.pop(Field.LOSS))
    return best, own


def rivals(readings: list[Reading], one: Reading) -> bool:
    """Check whether a partial loss appears alongside other partial losses, in which case none of them is the total."""
    return any(
        other is not one
        and (
            (other.field == one.field and other.rank > SOLE_RANK)
            or (
                (not other.field or other.rank == SOLE_RANK)
                and "loss" in other.name.lower()
                and "scale" not in other.name
                and _BESIDE.isdisjoint(words_of(other.name))
            )
        )
        for other in readings
    )


def _pair_beside(best: dict[str, Reading], readings: list[Reading]) -> tuple[Reading, Reading] | None:
    """Remove and return an `i/N` pair beside a named counter. Its total counts if both counters agree."""
    step, total = best.get(Field.STEP), best.get(Field.TOTAL_STEPS)
    if step is None or total is None or total.weak:
        return None
    pairs = [r for r in readings if r.field == Field.STEP and r.rank == total.rank]
    mine = next((p for p in pairs if p.end <= total.start and total.start - p.end <= 12), None)
    return (mine, best.pop(Field.TOTAL_STEPS)) if mine is not None and mine != step else None


def _is_lone_counter(best: dict[str, Reading], masked: str) -> bool:
    """Check whether a line is little more than a counter: `Epoch 1/5`, `epoch:  6`, `[step=2000/739328,epoch=0]`."""
    masked = masked.rsplit(MASKED, 1)[-1]
    words = _WORDS.findall(masked)
    if _LONE_COUNTER.match(masked) or _STARTS_EPOCH.match(masked):
        return True
    if Field.EPOCH in best:
        has_total = "/" in masked or Field.TOTAL_EPOCHS in best
        ends_with_it = masked.rstrip(" ]).")[-1:].isdigit()
        return len(words) <= 2 or (has_total and len(words) <= 8 and ends_with_it)
    if {word.lower() for word in words} <= _COUNTER_WORDS:
        return masked.lstrip()[:1] in "[(=-#*>"
    return len(words) <= 2 and masked.lstrip()[:1] in "[(=-#*" and masked.rstrip()[-1:] in "]:)=-#*"


def _stands_alone(best: dict[str, Reading]) -> bool:
    """Check for values that need no step: throughput, MFU, GPU memory, gradient norm, current learning rate or named step time."""
    rate = best[Field.LR].name.lower() if Field.LR in best else ""
    is_current = "current" in rate or "当前" in rate or rate.startswith(("train/", "optim/"))
    timed = best.get(Field.STEP_TIME)
    name = timed.name.lower() if timed is not None and not timed.weak else ""
    return (
        is_current
        or re.search(r"speed|step|iter|batch", name) is not None
        or any(
            field in {Field.TOKENS, Field.SAMPLES, Field.MFU, Field.MEMORY, Field.GRAD_NORM}
            and not reading.weak
            and reading.rank >= 5
            for field, reading in best.items()
        )
    )


def _is_plain_time(line: _Line) -> bool:
    """Check whether a line's time may cover several steps. A name, unit (ms), bracketed mean, rate, ETA or partial step time would rule this out."""
    timed = line.best.get(Field.STEP_TIME)
    if timed is None or not timed.weak or timed.conversion.scale < 1.0:
        return False
    has_parts = any(not _PHASES.isdisjoint(words_of(name)) for name in line.own)
    is_rated = not line.best.keys().isdisjoint({Field.SAMPLES, Field.TOKENS, Field.MFU, Field.ETA})
    return not has_parts and not is_rated and _MEAN.match(line.masked, timed.end) is None
