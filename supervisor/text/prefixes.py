"""Identify the writer of a line (rank, local rank, node and worker) from launcher prefixes.

The styles come from torch/csrc (`[rank3]:`), torchrun's ``--tee`` (`[default3]:`, role name and local
rank), ``srun --label`` (`3: `, a task number), pdsh and DeepSpeed (`node1: `), docker compose (`node1 | `),
Open MPI (`[1,3]<stderr>:`), Ray (`(Worker pid=7, ip=10.0.0.1)`), Lightning (`[rank: 3]`), kubectl
(`[pod/trainer-0/pytorch]`), and the file tree of torchrun's ``--log-dir``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from supervisor.text.patterns import Lazy, whole


class Origin(NamedTuple):
    """The writer of a line, to the extent that its prefix or file path reveals it. Unknown parts are None.

    `task` is the number that the launcher (``srun --label``, MPI) assigned. It is a rank if each task is a single
    process, or a node if each task is a torchrun.
    """

    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    stream: str | None = None
    task: int | None = None
    pid: int | None = None

    def over(self, other: Origin) -> Origin:
        """Return this origin with its unknown parts filled in from `other`."""
        known = {name: mine for name, mine in self._asdict().items() if mine is not None}
        return other._replace(**known)

    def agrees(self, other: Origin) -> bool:
        """Check whether both may be the same process, meaning that they agree on every rank, task or pid that both have."""
        numbers = (self.rank, self.local_rank, self.task, self.pid)
        others = (other.rank, other.local_rank, other.task, other.pid)
        pairs = zip(numbers, others, strict=True)
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


NOWHERE = Origin()

# The groups of these patterns are the parts of an `Origin`. A prefix without groups gives no writer.
_RANK = Lazy(r"\[rank[ :=]{0,2}(?P<rank>\d{1,6})\]:? ?", re.IGNORECASE)
# torchrun's --tee puts no blank after its colon. A blank there is the line's own indentation.
_LOCAL = Lazy(r"\[[A-Za-z_][A-Za-z_-]{1,24}?(?P<local_rank>\d{1,4})\]:")
_RAY = Lazy(
    r"\([A-Za-z_][\w.:/-]*(?:\([^()]{1,60}\))?(?: rank=(?P<rank>\d{1,6}))?,? ?pid=(?P<pid>\d+)(?:, ip=(?P<node>[^\s,)]+))?\) ?"
)
_MPI = Lazy(r"\[\d+,(?P<task>\d{1,6})\]<(?P<stream>std(?:out|err|diag))>: ?")
_TASK = Lazy(r"\s{0,4}(?P<task>\d{1,5}): (?=\S|$|  )")
_POD = Lazy(r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ?")
_NODE = Lazy(
    r"\[?(?P<node>(?:node|host|worker|gpu|dgx|ip|pod|trainer|compute|nid|cn|gn)[_-]?[\w.-]{0,40}?\d[\w.-]{0,20}|n\d{1,5})(?:\]:? | {0,20}\| |: |:(?=\[)|:$)"
)
_TIME = Lazy(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) ")
# A logger's or collector's prefix before a traceback's own lines, which have no time stamp.
_WRAPPED = Lazy(
    r"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?(?: (?:- )?(?:INFO|ERROR|WARNING)(?: -|:|\]))?|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d [\w.-]{1,63} [\w./-]{1,40}(?:\[\d{1,7}\])?:|stderr:|stdout:|\[\d{3,7}\]) "
    r"(?=(?:\S+ )?(?:Traceback \(most recent call last\)|  File \"|    \S|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|NotFound)(?:: |$)|\[rank\d))"
)
# The possible styles of a line, by its first character (0: a digit or a blank), in the order they are tried.
_STYLES = {
    "[": (_RANK, _LOCAL, _MPI, _POD, _NODE, _WRAPPED),
    "(": (_RAY,),
    "0": (_TASK, _TIME, _WRAPPED),
    **dict.fromkeys("sADFJMNOS", (_WRAPPED, _NODE)),  # "stderr:", "stdout:", a month's name
}
_OTHER_STYLES = (_NODE,)
_HOST = Lazy(r"(?:\[([\w.-]{1,63})\]|\(([\w.-]{1,63})\)|([\w.-]{1,63}))(?::| \|| ?\||) ")
_BARE_TASK = Lazy(r"\[(\d{1,5})\]:? ")
_NOT_HOSTS = frozenset(
    (
        "python", "torch", "cuda", "error", "warning", "info", "debug", "gpu", "rank", "step", "epoch",
        "frame", "file", "default",
    )
)  # fmt: skip
# At least this many names that start this share of the lines together are the hosts of one cluster.
MIN_HOSTS = 2
MIN_HOST_SHARE = 0.34
MIN_NUMBERED_LINES = 8
MIN_NUMBERED_SHARE = 0.5
# The mark in a set of hosts for lines that begin with a bare number in brackets.
NUMBERED = "[N]"
# The possible line prefixes of TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: `n1/g0:2 | `, `[trainer-2-6]:`.
_TEMPLATED = Lazy(r"(?=[^\s|#]{0,60}?\d)[^\s|#]{1,60}?(?:\]:? ?| ?\| ?|: )(?=\S|$|  )")
# Minimum changes per distinct number. Ranks write in turns, but a counter reaches each number only once.
CHANGES_OF_A_RANK = 2
# A script logger's text before a message: times, levels, logger and file names, in brackets or with separators.
_LOGGED_FIRST = Lazy(
    r"(?:\[[^\[\]]{1,60}\]|\(?\d[\d:.,/TZ+-]*\)?|[A-Z][a-z]{2}(?=,? \d)|(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|[IWEF]\d{4}\b"
    r"|(?:time|ts|level|lvl)=\S+|[\w./-]+\.py:\d+[\])]?|[A-Za-z_][\w.]*(?=:| [-|:] )|[-|:•>*])[\s:|,-]*",
    re.IGNORECASE,
)
_RANK_MARK = Lazy(
    r"\[(?:global[ _])?rank[ :=_-]{0,2}(\d{1,6})\]|\((?:global[ _])?rank[ :=_-]{0,2}(\d{1,6})\)|(?:global[ _])?rank[ _-]?(\d{1,6})(?=\]?(?::|\s[|-]\s|\s?\|))|rank=(\d{1,6})\b"
    # icefall's "(2/8) Epoch 1". Without a counter after it, it may itself be a counter.
    r"|\((\d{1,6})/\d{1,6}\) (?=(?:Epoch|Step|Iter)\w*\b)",
    re.IGNORECASE,
)
# Maximum number of words before a rank mark, and of characters searched in a line.
MOST_WORDS_BEFORE_RANK = 8
RANK_MARK_CHARS = 160
_PATH_LOCAL = Lazy(r"(?:^|[/\\])attempt_\d+[/\\](\d+)[/\\](stdout|stderr)\.log")
_PATH_NODE = Lazy(
    # "two_nodes_oom.log" contains no node: a name has a digit, or is one letter.
    r"(?:^|[/\\._-])(nodes?[/\\_-]?\d+|(?:node|host)(?:[-_]?[a-z_-]{0,20}\d[a-z0-9_-]{0,20}|[-_][a-z])(?=[._/\\]))",
    re.IGNORECASE,
)
_PATH_RANK = Lazy(r"(?:^|[/\\._-])(?:global[_-]?)?rank[_.-]?(\d{1,6})(?=\D|$)", re.IGNORECASE)


def split_prefix(text: str, hosts: Collection[str] = ()) -> tuple[Origin, str]:
    """Strip launcher prefixes from a line. Return its writer and the remaining text.

    Prefixes nest up to four deep (`0: node1: [rank3]: …`). `hosts` contains prefixes known to be host names in
    this log (see `learn_hosts`). Without it, only words that look like node names count.
    """
    origin = NOWHERE
    rest = text
    for _ in range(4):
        found, after = _one(rest, hosts, origin)
        if found is None:
            break
        # With two node names, the outer one is the collector's and the inner one the launcher's.
        origin, rest = (origin._replace(node=None) if found.node else origin).over(found), after
    return origin, rest


def _one(text: str, hosts: Collection[str], so_far: Origin) -> tuple[Origin | None, str]:
    """Return the origin in a line's outermost prefix (None if there is no prefix) and the text that follows."""
    template = next((host for host in hosts if host[0] == "^"), None)
    if template is not None and so_far.local_rank is None and (match := re.match(template, text)):
        return _origin_in(match), text[match.end() :]
    first = text[:1]
    for style in _STYLES.get("0" if first.isdigit() or first == " " else first, _OTHER_STYLES):
        if style is _TASK and so_far.task is not None:
            continue
        if (match := style.match(text)) is not None:
            return _origin_in(match), text[match.end() :]
    if hosts and (match := _HOST.match(text)) and (name := match[match.lastindex or 1]) in hosts:
        return Origin(node=name), text[match.end() :]
    if NUMBERED in hosts and so_far.task is None and (match := _BARE_TASK.match(text)):
        return Origin(task=int(match.group(1))), text[match.end() :]
    return None, text


def _origin_in(match: re.Match[str]) -> Origin:
    """Build the writer from a match's groups."""
    parts = {name: part for name, part in match.groupdict().items() if part}
    numbers = {name: whole(part) for name, part in parts.items() if name not in {"node", "stream"}}
    return Origin(node=parts.get("node"), stream=parts.get("stream"), **numbers)


def rank_mark(text: str) -> int | None:
    """Return the rank that a script's logger prints near the start of a line, as in ``2026-11-20 10:00:00 WARNING [rank2] …``.

    Only times, levels and logger names may precede it, because a message about a rank does not identify its writer.
    """
    rest = text[:RANK_MARK_CHARS].lstrip()
    if "ank" not in rest and "ANK" not in rest and "(" not in rest:
        return None
    for _ in range(MOST_WORDS_BEFORE_RANK):
        if (mark := _RANK_MARK.match(rest)) is not None:
            return int(mark[mark.lastindex or 1])
        if (word := _LOGGED_FIRST.match(rest)) is None:
            return None
        rest = rest[word.end() :]
    return None


def learn_hosts(lines: Iterable[str]) -> frozenset[str]:
    """Find a log's host-like prefixes by how often they recur.

    A word before `: `, ` | ` or in brackets counts as a host if several such words start at least a third of
    the lines and differ only in their last letters or digits. The result contains `NUMBERED` if a bare number
    in brackets starts the lines, as with Intel MPI and Hydra, and a pattern starting with ``^`` if torchrun's
    prefix follows a user's template.
    """
    # Keyed by the characters around the name, and the common part of the cluster's names.
    families: dict[tuple[str, str], Counter[str]] = {}
    total = bare = 0
    # By form: the numbers, and the rank given after them in the line.
    templates: dict[str, list[tuple[tuple[int, ...], int | None]]] = {}
    for line in lines:
        if not line.strip():
            continue
        total += 1
        origin, rest = split_prefix(line)
        if origin == NOWHERE and (match := _TEMPLATED.match(line)):
            digits = tuple(map(int, re.findall(r"\d{1,6}", match.group())))
            behind = split_prefix(line[match.end() :])[0].rank
            templates.setdefault(re.sub(r"\d{1,6}", "#", match.group()), []).append((digits, behind))
        bare += _BARE_TASK.match(rest) is not None
        # A collector's prefix may precede the hosts, and hosts the ranks.
        match = _HOST.match(line) or _HOST.match(rest)
        if match is None or not _may_be_host(name := match[match.lastindex or 1]):
            continue
        group = match.lastindex or 1
        around = (
            match.string[match.start() : match.start(group)] + match.string[match.end(group) : match.end()]
        )
        # The common part of a cluster's names: all but their last digits, or their last single letter.
        shared = re.sub(r"\d+", "#", name) if any(c.isdigit() for c in name) else name[:-1]
        families.setdefault((around, shared), Counter())[name] += 1
    found = {
        name
        for names in families.values()
        if len(names) >= MIN_HOSTS and names.total() >= MIN_HOST_SHARE * total
        for name in names
    }
    if total >= MIN_NUMBERED_LINES and bare >= MIN_NUMBERED_SHARE * total:
        found.add(NUMBERED)
    for form, rows in templates.items():
        if len(rows) >= MIN_NUMBERED_SHARE * total and (roles := _roles(rows)):
            found.add(_template_pattern(form, roles))
    return frozenset(found)


def _roles(rows: Sequence[tuple[tuple[int, ...], int | None]]) -> dict[int, str]:
    """Return the meaning of a template's numbers, keyed by position, or an empty dict if unclear.

    The last number that varies is the rank if it distinguishes all prefixes. Otherwise it is the local rank,
    and the number before it is the node. A single number is unambiguous only if ranks follow it in the lines.
    """
    digits = list(dict.fromkeys(numbers for numbers, _ in rows))
    differing = [at for at in range(len(digits[0])) if len({numbers[at] for numbers in digits}) > 1]
    changes = sum(one[0] != other[0] for one, other in pairwise(rows))
    if not differing or changes < CHANGES_OF_A_RANK * len(digits):
        return {}
    last = differing[-1]
    if len(differing) == 1:
        return {last: "local_rank"} if any(rank is not None for _, rank in rows) else {}
    if len({numbers[last] for numbers in digits}) == len(digits):
        return {last: "rank"}
    return {last: "local_rank", differing[-2]: "node"}


def _template_pattern(form: str, roles: Mapping[int, str]) -> str:
    """Return the pattern for `form`, a template with `#` for each number. A node's number keeps its preceding letters (n1)."""
    pattern = "^"
    for at, part in enumerate(re.split(r"([A-Za-z]*#)", form)):
        letters, number = re.escape(part.removesuffix("#")), r"\d{1,6}" if at % 2 else ""
        role = roles.get(at // 2) if at % 2 else None
        if role == "node":
            pattern += f"(?P<node>{letters}{number})"
        else:
            pattern += letters + (f"(?P<{role}>{number})" if role else number)
    return pattern


def _may_be_host(name: str) -> bool:
    known_word = name.rstrip("0123456789").lower() in _NOT_HOSTS
    return not known_word and (name[0].isalpha() or name.count(".") == 3)


def origin_of_path(path: str) -> Origin:
    """Identify a log file's writer from its path (in torchrun's tree or a run directory, or named `node1.log` or `rank3.err`)."""
    origin = NOWHERE
    if match := _PATH_LOCAL.search(path):
        origin = Origin(local_rank=int(match.group(1)), stream=match.group(2))
    elif match := _PATH_RANK.search(path):
        origin = Origin(rank=int(match.group(1)))
    if match := _PATH_NODE.search(path):
        origin = origin._replace(node=match.group(1).strip("/\\").replace("nodes/", "node"))
    if origin.stream is None and (
        match := re.search(r"(stdout|stderr|\.out|\.err)", path.rsplit("/", 1)[-1])
    ):
        origin = origin._replace(stream="stderr" if "err" in match.group(1) else "stdout")
    return origin
