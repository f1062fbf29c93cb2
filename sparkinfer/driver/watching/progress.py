"""How far a run is and how fast it goes, for the person who waits. Driver only; needs no pyspark.

In a terminal a display that is drawn anew a few times a second; elsewhere a line every now and then; on a quiet console
nothing. It only reads: a run does not notice whether anybody looks.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparkinfer.driver.watching.telemetry import Snapshot, Telemetry
from sparkinfer.driver.wording import counted

__all__ = ["Progress", "View", "Window", "duration_text"]

FRAMES_PER_SECOND = 2

NOW_S = 10.0
"""Seconds that `now` is measured on: some batches of a slow model, and no more than a person remembers."""

AHEAD_S = 120.0
"""Seconds whose speed is taken for that of the rest: long enough for a slow folder, short to forget the start."""

_BAR_COLUMNS = 24
"""What 80 columns leave beside a billion rows."""
_CODES_SHOWN = 4


@dataclass(frozen=True)
class View:
    """What is shown of a run.

    Attributes:
        now: its figures.
        rate: rows a second, over the last `NOW_S` or since the look before; None before anything can be said.
        mean_rate: rows a second of the whole run.
        left_s: seconds until it ends, if it goes on as in the last `AHEAD_S`; None where nobody knows.
        busy_share: in the time of `rate`.
    """

    now: Snapshot
    rate: float | None
    mean_rate: float | None
    left_s: float | None
    busy_share: float | None

    def rows_text(self) -> str:
        """812 of 2,000 rows (41 %)."""
        rows, total = self.now.rows, self.now.total_rows
        if total is None:
            return f"{rows:,} rows so far"
        return f"{rows:,} of {total:,} rows ({_per_cent(rows, total)})"

    def speed_text(self) -> str:
        """97.4 images/s now, 92.1 mean; 13 s left, 9 s so far."""
        left = "time left unknown" if self.left_s is None else f"{duration_text(self.left_s)} left"
        return (
            f"{_rate_text(self.rate)} images/s now, {_rate_text(self.mean_rate)} mean; {left}, "
            f"{duration_text(self.now.active_seconds)} so far"
        )

    def errors_text(self) -> str:
        """38 errors (4.7 %): 30 CORRUPT, 8 EMPTY."""
        failed = self.now.failed
        if not failed:
            return "0 errors"
        codes = sorted(self.now.errors.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{count:,} {code}" for code, count in codes[:_CODES_SHOWN])
        more = f", {len(codes) - _CODES_SHOWN} more" if len(codes) > _CODES_SHOWN else ""
        return f"{counted(failed, 'error')} ({_per_cent(failed, self.now.rows)}): {shown}{more}"

    def tasks_text(self) -> str:
        """2 running, 3 of 12 done, 0 failed; model busy 87 %, batch 8 on cpu."""
        tasks = self.now.tasks
        text = f"{tasks.running:,} running, {tasks.done:,} of {tasks.total:,} done, {tasks.failed:,} failed"
        if self.busy_share is None:
            return text
        devices = sorted({device.name.partition(":")[0] for _, device in self.now.devices})
        batch = f", batch {self.now.batch_size}" if self.now.batch_size else ""
        return f"{text}; model busy {self.busy_share:.0%}{batch} on {', '.join(devices) or 'cpu'}".replace("%", " %")

    def line(self) -> str:
        """Everything, for a log."""
        return f"{self.rows_text()}; {self.speed_text()}; {self.errors_text()}; tasks: {self.tasks_text()}"


class Window:
    """The last seconds of a run, to measure speed on."""

    def __init__(self) -> None:
        self._seen: deque[Snapshot] = deque()

    def view(self, now: Snapshot) -> View:
        """What to show, at this moment."""
        while len(self._seen) > 1 and now.active_seconds - self._seen[1].active_seconds >= AHEAD_S:
            self._seen.popleft()
        if not self._seen or now.active_seconds - self._seen[-1].active_seconds >= 1 / FRAMES_PER_SECOND:
            self._seen.append(now)
        # Rows come some seconds after the start: until then there is nothing to measure from.
        began = next((seen for seen in self._seen if seen.rows), now)
        # The last look before these seconds, since looks may be further apart than they are long.
        before = (seen for seen in reversed(self._seen) if now.active_seconds - seen.active_seconds >= NOW_S)
        lately = next(before, self._seen[0])
        rate = _rate(lately, now)
        return View(
            now=now,
            rate=rate,
            mean_rate=now.rows / now.active_seconds if now.rows and now.active_seconds else None,
            left_s=_left(now, _rate(began, now) or rate),
            busy_share=now.busy_share_since(lately),
        )


class Progress:
    """Shows how a run goes, while it is open.

    Args:
        console: where; nothing on a quiet one.
        telemetry: of the run.
        every_s: between two lines where there is no terminal, seconds.
    """

    def __init__(self, console: Console, telemetry: Telemetry, every_s: float) -> None:
        self._console, self._telemetry, self._every_s = console, telemetry, every_s
        self._window = Window()
        self._closing = threading.Event()
        self._noted: str | None = None
        self._shown: Live | threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.quiet:
            return self
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._shown = Live(get_renderable=self._frame, console=self._console, refresh_per_second=FRAMES_PER_SECOND)
        else:
            self._note()
            self._shown = threading.Thread(target=self._write_lines, name="sparkinfer-progress", daemon=True)
        self._shown.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.set()
        if isinstance(self._shown, Live):
            self._shown.stop()
        elif self._shown is not None:
            self._shown.join()
            self._note()

    def _frame(self) -> RenderableType:
        view = self._window.view(self._telemetry.snapshot())
        now = view.now
        if not now.active_seconds:
            return Text("")
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(style="bold", width=9)
        grid.add_column()
        bar = ProgressBar(now.total_rows, now.rows, width=_BAR_COLUMNS, pulse=now.total_rows is None)
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(bar, view.rows_text())
        grid.add_row("progress", row)
        grid.add_row("speed", view.speed_text())
        grid.add_row("errors", Text(view.errors_text(), style="red" if now.failed else ""))
        grid.add_row("tasks", view.tasks_text())
        return Group(grid, Text(now.note, style="yellow")) if now.note else grid

    def _write_lines(self) -> None:
        while not self._closing.wait(self._every_s):
            self.write_line()

    def write_line(self) -> None:
        """Writes one line, if a pass runs or has run."""
        view = self._window.view(self._telemetry.snapshot())
        self._note()
        if view.now.active_seconds:
            self._print("progress", view.line())

    def _note(self) -> None:
        """Tells once why figures come only as tasks end, also where a run ends before its first line."""
        note = self._telemetry.snapshot().note
        if note and note != self._noted:
            self._print("progress", note)
        self._noted = note

    def _print(self, label: str, text: str) -> None:
        self._console.print(f"[bold]{label}[/]  {escape(text)}", soft_wrap=True, highlight=False)


def duration_text(seconds: float) -> str:
    """Seconds for a person: 13 s, 2 min 05 s, 1 h 40 min, 3 d 4 h."""
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute:02d} min"
    return f"{minutes} min {second:02d} s" if minutes else f"{second} s"


def _left(now: Snapshot, rate: float | None) -> float | None:
    """Seconds until the end: by rows where their number is known, else by the tasks of the present pass."""
    if now.total_rows is not None:
        return max(0, now.total_rows - now.rows) / rate if rate else None
    tasks = now.tasks
    return now.active_seconds * (tasks.total - tasks.done) / tasks.done if tasks.done else None


def _rate(earlier: Snapshot, now: Snapshot) -> float | None:
    seconds = now.active_seconds - earlier.active_seconds
    return (now.rows - earlier.rows) / seconds if seconds > 0 else None


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"


def _per_cent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %"
