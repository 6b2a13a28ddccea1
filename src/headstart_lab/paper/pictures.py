"""The paper's figures 1 and 5 as they were run: coloured lines, and calls of the models on a time axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from headstart_charts.page import Drawing
from headstart_charts.plots import WIDTH, ticks, wrap_svg
from headstart_lab.paper.tracing import Line, TracedRound, TracedRun

_LEFT, _RIGHT, _TOP = 16, 64, 76
_STRIP, _BLOCK, _TOKEN = 84, 26, 6
"""Height of a strip, of its blocks, and of a token below them, in pixels."""
_DRAFT, _TARGET, _ENCODER, _DRAFT_ENCODER, _ACCEPTED, _OWN = 0, 3, 4, 1, 2, 5
"""Hues, after the paper's where there are such: blue, purple, yellow, orange; green and indigo for tokens."""
_REJECTED = 1
_LINE, _COLUMNS = 19, 94
"""Height of a line of figure 1 in pixels, and the characters that it has room for."""
_KEY = (
    (_TARGET, "target pass"),
    (_DRAFT, "draft step"),
    (_ENCODER, "target's encoder"),
    (_DRAFT_ENCODER, "draft's encoder"),
    (_ACCEPTED, "accepted token"),
    (_OWN, "target's own token"),
)


def figure_5(runs: Sequence[TracedRun]) -> Drawing:
    """One strip a run: encoders, draft steps, target passes, and below each round the tokens that it brought."""
    note = (
        "Each run as it was clocked, the fastest of a few, all from the same start. A round's draft steps share its "
        "drafting time evenly; what is left blank between blocks is verification and bookkeeping. A prompt's reading "
        "is shown where an encoder does it. Recording keeps the rounds apart, where several otherwise run in one call."
    )
    return Drawing("Figure 5: a trace of rounds", timeline_svg(runs, style=False), note)


def timeline_svg(runs: Sequence[TracedRun], style: bool = True) -> str:
    """The picture as one ``<svg>`` element; ``style`` as in ``plots.to_svg``."""
    longest = max((run.seconds for run in runs), default=0.0) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / longest
    bottom = _TOP + len(runs) * _STRIP

    def x(seconds: float) -> float:
        return _LEFT + scale * seconds

    parts = [f'<text class="title" x="{_LEFT}" y="26">Calls of the models</text>', *_key(runs)]
    for value in ticks(0.0, 1000 * longest):
        at = f"{x(value / 1000):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{at}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for place, run in enumerate(runs):
        parts += _strip(run, _TOP + place * _STRIP, x)
    parts.append(f'<text x="{WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">milliseconds</text>')
    told = "; ".join(f"{run.label}: {len(run.rounds)} passes, {1000 * run.seconds:.0f} ms" for run in runs)
    return wrap_svg("".join(parts), bottom + 48, f"Calls of the models on a time axis. {told}", style)


def figure_1(lines: Sequence[Line]) -> Drawing:
    """One line a round, as HTML; colours are backed by marks that need none."""
    rows = "".join(
        f"<li>{escape(line.before)}"
        f"{_mark('ins', 'accepted', line.accepted)}{_mark('del', 'rejected', line.rejected)}"
        f"{_mark('b', 'answer', line.answer)}</li>"
        for line in lines
    )
    note = (
        "Each line is one pass of the target. Green, underlined: guessed and accepted in it; red, struck: the guess "
        "that was rejected; blue, bold: the target's own token."
    )
    return Drawing("Figure 1: what became of the guesses", f'<ol class="rounds">{rows}</ol>', note)


def lines_svg(lines: Sequence[Line]) -> str:
    """Figure 1 as a picture of its own: one ``<svg>`` element. Of a long line the end is shown."""
    words = (
        (_ACCEPTED, "accepted", "accepted"),
        (_REJECTED, "rejected", "rejected"),
        (_OWN, "own", "target's own token"),
    )
    key = ", ".join(f"<tspan {_how(hue, kind)}>{word}</tspan>" for hue, kind, word in words)
    parts = [
        f'<text class="title" x="{_LEFT}" y="26">What became of the guesses</text>',
        f'<text class="soft" x="{_LEFT}" y="48" font-size="11">{key}; a line for each pass</text>',
    ]
    for place, line in enumerate(lines):
        marked = (
            (_ACCEPTED, "accepted", line.accepted),
            (_REJECTED, "rejected", line.rejected),
            (_OWN, "own", line.answer),
        )
        shown = [(hue, kind, text.replace("\n", "↵")) for hue, kind, text in marked if text]
        room = max(0, _COLUMNS - sum(len(text) for _, _, text in shown))
        before = line.before.replace("\n", "↵")
        before = before if len(before) <= room else f"…{before[len(before) - room + 1 :]}"
        spans = "".join(f"<tspan {_how(hue, kind)}>{escape(text)}</tspan>" for hue, kind, text in shown)
        parts.append(
            f'<text x="{_LEFT}" y="{_TOP + place * _LINE}" style="font:12px ui-monospace,monospace;white-space:pre">'
            f"{escape(before)}{spans}</text>"
        )
    told = f"What became of the guesses: {len(lines)} passes of the target"
    return wrap_svg("".join(parts), _TOP + len(lines) * _LINE + 4, told, style=True)


def _how(hue: int, kind: str) -> str:
    """Colour, backed by a mark that needs none."""
    mark = {
        "accepted": "text-decoration:underline",
        "rejected": "text-decoration:line-through",
        "own": "font-weight:700",
    }
    return f'class="{kind}" style="fill:var(--c{hue});{mark[kind]}"'


def _mark(tag: str, kind: str, text: str) -> str:
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if text else ""


def _key(runs: Sequence[TracedRun]) -> Iterable[str]:
    absent = set()
    if not any(run.encoder for run in runs):
        absent.add(_ENCODER)
    if not any(each.draft_encoder for run in runs for each in run.rounds):
        absent.add(_DRAFT_ENCODER)
    for place, (hue, label) in enumerate((hue, label) for hue, label in _KEY if hue not in absent):
        left = _LEFT + place * 122
        yield _block(left, 40, 12, 12, hue, label)
        yield f'<text class="soft" x="{left + 17}" y="51" font-size="11">{escape(label)}</text>'


def _strip(run: TracedRun, top: float, x: Callable[[float], float]) -> Iterable[str]:
    yield f'<text x="{_LEFT}" y="{top + 14}">{escape(run.label)}</text>'
    level = top + 22
    if run.encoder:
        yield _block(x(0), level, x(run.encoder) - x(0), _BLOCK, _ENCODER, "target's encoder")
    for number, each in enumerate(run.rounds, start=1):
        yield from _round(each, number, level, x)
    yield f'<text x="{x(run.seconds) + 6:.1f}" y="{level + 17}">{1000 * run.seconds:.0f} ms</text>'


def _round(each: TracedRound, number: int, level: float, x: Callable[[float], float]) -> Iterable[str]:
    at = each.start
    if each.draft_encoder:
        yield _block(x(at), level, x(at + each.draft_encoder) - x(at), _BLOCK, _DRAFT_ENCODER, "draft's encoder")
        at += each.draft_encoder
    for step in range(each.draft_steps):
        width = each.draft / each.draft_steps
        yield _block(x(at), level, x(at + width) - x(at), _BLOCK, _DRAFT, f"round {number}, draft step {step + 1}")
        at += width
    at = each.start + each.draft_encoder + each.draft
    yield _block(x(at), level, x(at + each.target) - x(at), _BLOCK, _TARGET, f"round {number}, target pass")
    hues = [_ACCEPTED] * len(each.accepted) + [_OWN] * (each.answer is not None)
    for place, hue in enumerate(hues):
        kind = "accepted token" if hue == _ACCEPTED else "target's own token"
        width = x(each.end) - x(each.start)
        share = width / len(hues)
        yield _block(x(each.start) + place * share, level + _BLOCK + 4, share, _TOKEN, hue, f"round {number}, {kind}")


def _block(left: float, top: float, width: float, height: float, hue: int, title: str) -> str:
    shown = max(0.5, width - 0.75)
    return (
        f'<rect x="{left:.2f}" y="{top:g}" width="{shown:.2f}" height="{height}" style="fill:var(--c{hue})">'
        f"<title>{escape(title)}</title></rect>"
    )
