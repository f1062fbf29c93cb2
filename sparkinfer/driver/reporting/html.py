"""report.html: one page that needs nothing but itself. Driver side; no Spark.

The page has no script and loads nothing: its style sheet and pictures are inside, and a content security policy lets
no more in. Whatever comes from data is escaped by `text.esc`, or where a chart is made.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any

import yaml

from sparkinfer.core.errors import ErrorCode
from sparkinfer.driver.reporting.charts import axis, bar, columns, plot, timeline
from sparkinfer.driver.reporting.images import Thumbnails
from sparkinfer.driver.reporting.sheet import contact_sheet, label_text
from sparkinfer.driver.reporting.text import duration, esc, number, percent, short_seconds
from sparkinfer.driver.sources.inputs import size_text

__all__ = ["page"]

SHOWN_PARTITIONS = 10

_MAX_COLUMNS = 120
"""Bars of a chart: three pixels each on a phone."""

_CHART_BINS = 20

_MAX_POINTS = 120
"""Of the curve of the throughput: a second each in a short run."""

Content = Mapping[str, Any]


def page(content: Content, pictures: Thumbnails) -> str:
    """The page.

    Args:
        content: from `reporting.content.content_of`: plain data without secrets.
        pictures: of rows that `content` names.
    """
    style = files("sparkinfer.driver.reporting").joinpath("report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    sections: dict[str, tuple[str, Callable[[], str]]] = {
        "throughput": ("Throughput", lambda: _throughput(content)),
        "stages": ("Stages", lambda: _stages(content)),
        "predictions": ("Predictions", lambda: _predictions(content)),
        "partitions": ("Partitions", lambda: _partitions(content)),
        "errors": ("Errors", lambda: _errors(content)),
        "images": ("Images", lambda: contact_sheet(content, pictures)),
        "setup": ("Setup", lambda: _setup(content)),
    }
    links = "".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in sections.items())
    body = "".join(f'<section id="{key}">{make()}</section>' for key, (_, make) in sections.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{esc(content['name'])}: run report</title><style>{style}</style></head><body>"
        f"{_header(content, links)}<main>{_failure(content)}{_retry(content)}{_figures(content)}{body}</main>"
        f"<footer>Written by sparkinfer {esc(content['versions'].get('sparkinfer', ''))}. "
        "The same figures as data: report.json, beside this page.</footer></body></html>\n"
    )


def _header(content: Content, links: str) -> str:
    good = content["state"] == "done"
    state = '<span class="state good">✓ done</span>' if good else '<span class="state bad">✕ failed</span>'
    model = content["model"]
    version = f", version {model['version']}" if model.get("version") else ""
    facts = {
        "Run": f'<span class="mono">{esc(content["run_id"])}</span>',
        "Started": esc(content["started"].replace("T", " ").replace("+00:00", " UTC")),
        "Model": f"{esc(model['name'])}{esc(version)} ({esc(model['format'])}, {number(model['classes'])} classes)",
        "Output": esc(content.get("output", "")),
    }
    return (
        '<header class="top"><p class="eyebrow">sparkinfer run report</p>'
        f'<div class="title"><h1>{esc(content["name"])}</h1>{state}</div>{_facts(facts)}'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _failure(content: Content) -> str:
    error = content.get("error")
    if not error:
        return ""
    hint = f'<p class="soft">{esc(error["hint"])}</p>' if error.get("hint") else ""
    return (
        f'<section class="card failure"><h2>The run failed: {esc(error["type"])}</h2>'
        f"<pre>{_lines(error['message'])}</pre>{hint}</section>"
    )


def _retry(content: Content) -> str:
    """What a run of `--retry-errors` is about."""
    retry = content["retry"]
    if not retry:
        return ""
    parts = [f"{number(retry['failed'])} failed rows of an earlier run were run again"]
    if retry["mended"] is not None:
        again = sum(content["errors"].values())
        parts.append(f"{number(retry['mended'])} of them are mended, {number(again)} rows fail now")
    if retry["stay"]:
        parts.append(f"{number(retry['stay'])} stay as they are: their input is gone or has changed")
    table = f"The whole table has {number(retry['table_rows'])} rows"
    if retry["table_errors"] is not None:
        table += f", {number(sum(retry['table_errors'].values()))} of them failed"
    text = f"{'; '.join(parts)}. All figures here are of the {number(content['rows'])} rows of this run. {table}."
    return f'<section class="card"><h2>A retry of failed rows</h2><p>{esc(text)}</p></section>'


def _figures(content: Content) -> str:
    """The few numbers that somebody looks for first."""
    rows, failed = content["rows"] or 0, sum((content["errors"] or {}).values())
    progress, work = content["progress"], content["work"]
    seconds = content["seconds"] or sum(phase["seconds"] for phase in content["phases"])
    busy = work["busy_share"]
    infer = content["stages"].get("infer", {})
    cards = [
        ("Rows", number(rows), "", f"{size_text(work['image_bytes'])} of images" if work["image_bytes"] else ""),
        (
            "Throughput",
            number(progress["rows_per_second"]),
            "images/s",
            f"over {duration(progress['seconds'])} of prediction" if progress["rows_per_second"] else "",
        ),
        ("Failed rows", number(failed), "", f"{percent(failed, rows)} of all rows"),
        ("Duration", *_split(duration(seconds)), "start-up included"),
        (
            "Model busy",
            "–" if busy is None else percent(busy, 1).removesuffix(" %"),  # noqa: RUF001 - a dash is meant
            "" if busy is None else "%",
            f"P95 {short_seconds(infer['p95'])} a call" if infer.get("count") else "",
        ),
    ]
    shown = "".join(
        f'<div class="card"><p class="name">{name}</p><p class="value">{esc(value)}'
        f'{f" <span class=unit>{esc(unit)}</span>" if unit else ""}</p><p class="more">{esc(more)}</p></div>'
        for name, value, unit, more in cards
    )
    return f'<div class="figures">{shown}</div>'


def _throughput(content: Content) -> str:
    progress = content["progress"]
    points = rates(progress["history"])
    note = f'<p class="soft small">{esc(progress["note"])}</p>' if progress.get("note") else ""
    if len(points) < 3:
        return _card("Throughput over time", f'{note}<p class="soft">The run was too short for a curve.</p>')
    mean = progress["rows_per_second"]
    ticks = axis(max(rate for _, rate in points))
    last = points[-1][0]
    labels = [duration(last * i / 4) for i in range(5)]
    told = f"Images per second over {duration(last)}; mean {number(mean)}"
    drawing = timeline(points, ticks[-1], label=told, level=mean)
    key = f'<p class="soft small"><span class="key"></span>mean {number(mean)} images/s</p>' if mean else ""
    return _card("Throughput over time", key + note + plot(drawing, ticks, labels, "images/s", "since the start"))


def rates(history: Sequence[Content]) -> list[tuple[float, float]]:
    """(seconds, rows per second since the point before) of a course of cumulative rows; from 0 s on.

    Of a long course only some points, evenly spread: each is then the mean over a longer time.
    """
    every = math.ceil(len(history) / _MAX_POINTS) or 1
    course = [{"seconds": 0.0, "rows": 0}, *history[-1 - (len(history) - 1) // every * every :: every]]
    points = [
        (now["seconds"], (now["rows"] - before["rows"]) / (now["seconds"] - before["seconds"]))
        for before, now in pairwise(course)
        if now["seconds"] > before["seconds"]
    ]
    return [(0.0, points[0][1]), *points] if points else []


def _stages(content: Content) -> str:
    stages = {name: stage for name, stage in content["stages"].items() if stage["count"]}
    phases = _phases(content)
    if not stages:
        return f"{_card('Stages', _NO_FIGURES)}{phases}"
    longest = max(stage["seconds"] for stage in stages.values())
    total = sum(stage["seconds"] for stage in stages.values())
    rows = "".join(
        f'<tr><td>{esc(name)}</td><td class="graph">{bar(stage["seconds"] / longest if longest else 0)}</td>'
        f'<td>{esc(duration(stage["seconds"]))}</td><td class="wide">{percent(stage["seconds"], total)}</td>'
        f'<td class="wide">{number(stage["count"])}</td>'
        + "".join(f'<td class="{c}">{short_seconds(stage[q])}</td>' for q, c in _QUANTILE_CLASSES.items())
        + "</tr>"
        for name, stage in stages.items()
    )
    heads = "".join(f'<th class="{c}">{q.upper()}</th>' for q, c in _QUANTILE_CLASSES.items())
    table = (
        f'<div class="scroll"><table><thead><tr><th>Stage</th><th></th><th>Total</th><th class="wide">Share</th>'
        f'<th class="wide">Times</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    note = "Summed over all tasks. Read, infer and write are timed by batch, decode and preprocess by image."
    return _card("Time by stage", f'<p class="soft small">{note}</p>{table}') + phases


_QUANTILE_CLASSES = {"p50": "wide", "p95": "", "p99": "wide"}
_NO_FIGURES = '<p class="soft">No task has told its figures.</p>'


def _phases(content: Content) -> str:
    phases = content["phases"]
    if not phases:
        return ""
    total = sum(phase["seconds"] for phase in phases)
    rows = "".join(
        f'<tr><td class="text">{esc(phase["name"])}</td><td class="graph">'
        f"{bar(phase['seconds'] / total if total else 0)}</td><td>{esc(duration(phase['seconds']))}</td></tr>"
        for phase in phases
    )
    return _card(
        "Time by phase",
        f'<p class="soft small">As the driver saw it.</p><table class="lean"><tbody>{rows}</tbody></table>',
    )


def _predictions(content: Content) -> str:
    table = content["table"]
    if table.get("note"):
        return _card("Predictions", f'<p class="soft">{esc(table["note"])}</p>')
    good = sum(table["confidence"]) + table["outside"]
    if not good:
        return _card("Predictions", '<p class="soft">No row has a prediction.</p>')
    return f'<div class="pair">{_confidence(table, good)}{_labels(table, good)}</div>'


def _confidence(table: Content, good: int) -> str:
    bins = len(table["confidence"]) // _CHART_BINS
    counts = [sum(table["confidence"][i : i + bins]) for i in range(0, len(table["confidence"]), bins)]
    ticks = axis(max(counts), whole=True)
    edges = [f"{i / _CHART_BINS:.2f} to {(i + 1) / _CHART_BINS:.2f}" for i in range(_CHART_BINS)]
    titles = [f"{edge}: {count:,} rows" for edge, count in zip(edges, counts, strict=True)]
    found = table["confidence_quantiles"]
    told = f"Histogram of the confidence of {good:,} rows; median {number(found['p50'])}"
    drawing = columns(counts, ticks[-1], titles, label=told)
    middle = (
        f"Median {found['p50']:.0%}; nine in ten rows lie between {found['p5']:.0%} and {found['p95']:.0%}."
        if found["p50"] is not None
        else ""
    )
    outside = f" {number(table['outside'])} rows are outside 0 to 1: raw scores." if table["outside"] else ""
    text = f'<p class="soft small">{esc(middle + outside)}</p>'
    return _card("Confidence", text + plot(drawing, ticks, ["0", "0.25", "0.5", "0.75", "1"], "rows", "confidence"))


def _labels(table: Content, good: int) -> str:
    shown = table["labels"]
    most = shown[0]["rows"] if shown else 1
    rows = "".join(
        f'<tr><td class="text">{label_text(label)}</td><td class="graph">{bar(label["rows"] / most)}</td>'
        f"<td>{number(label['rows'])}</td><td>{percent(label['rows'], good)}</td></tr>"
        for label in shown[:12]
    )
    others = good - sum(label["rows"] for label in shown[:12])
    rest = f'<p class="soft small">Other classes: {number(others)} rows.</p>' if others else ""
    return _card("Labels", f"<table><tbody>{rows}</tbody></table>{rest}")


def _partitions(content: Content) -> str:
    balance, listed = content["balance"], content["partition_table"]
    if not balance:
        return _card("Partitions", _NO_FIGURES)
    seconds = sorted((record["seconds"] for record in listed), reverse=True)[:_MAX_COLUMNS]
    ticks = axis(seconds[0])
    titles = [f"{duration(value)}" for value in seconds]
    told = f"Seconds of the {len(seconds):,} slowest partitions, the slowest first; slowest {duration(seconds[0])}"
    drawing = columns(seconds, ticks[-1], titles, label=told)
    spread = balance["seconds"]
    text = (
        f"{balance['partitions']:,} partitions; median {duration(spread['p50'])}, "
        f"slowest {duration(spread['largest'])}: {number(spread['largest_over_mean'])} times the mean."
    )
    which = "each partition" if len(seconds) == balance["partitions"] else f"the {len(seconds)} slowest partitions"
    chart = plot(drawing, ticks, ["", ""], f"seconds of {which}", "the slowest first")
    slowest = sorted(listed, key=lambda record: -record["seconds"])[:SHOWN_PARTITIONS]
    heaviest = sorted(listed, key=lambda record: -record["image_bytes"])[:SHOWN_PARTITIONS]
    tables = f'<div class="pair">{_records("Slowest", slowest)}{_records("Heaviest", heaviest)}</div>'
    return _card("Partitions", f'<p class="soft small">{esc(text)}</p>{chart}') + tables


def _records(title: str, records: Sequence[Content]) -> str:
    rows = "".join(
        f"<tr><td>{record['stage']}/{record['partition']}</td><td>{number(record['rows'])}</td>"
        f"<td>{esc(size_text(record['image_bytes']))}</td><td>{esc(duration(record['seconds']))}</td>"
        f'<td>{number(sum(record["errors"].values()))}</td><td class="wide text">{esc(record["host"])}</td></tr>'
        for record in records
    )
    heads = "<tr><th>Stage/No.</th><th>Rows</th><th>Images</th><th>Time</th><th>Failed</th>"
    heads += '<th class="wide text">Host</th></tr>'
    return _card(
        f"{title} partitions", f'<div class="scroll"><table><thead>{heads}</thead><tbody>{rows}</tbody></table></div>'
    )


def _errors(content: Content) -> str:
    errors, rows = content["errors"] or {}, content["rows"] or 0
    if not errors:
        return _card("Errors", '<p class="soft">No row failed.</p>')
    failed = content["table"]["failed"] or []
    blocks = []
    for code, count in sorted(errors.items(), key=lambda item: (-item[1], item[0])):
        meaning = ErrorCode(code).meaning if code in set(ErrorCode) else ""
        samples = [row for row in failed if row["code"] == code][:3]
        if not samples and code in (content["samples"] or {}):
            samples = [{"path": content["samples"][code], "message": ""}]
        items = "".join(
            f"<li><bdi>{esc(row['path'])}</bdi><br><span class=soft>{esc(row['message'] or '')}</span></li>"
            for row in samples
        )
        blocks.append(
            f'<div class="error"><h3><code>{esc(code)}</code><span>{number(count)} rows, {percent(count, rows)}</span>'
            f'</h3><p class="soft small">{esc(meaning)}</p><ul>{items}</ul></div>'
        )
    return _card("Errors", "".join(blocks))


def _setup(content: Content) -> str:
    environment = {key: value for key, value in content["environment"].items() if key != "settings"}
    spec = yaml.safe_dump(content["spec"], sort_keys=False, allow_unicode=False, width=100)
    devices = {f"{d['name']} on {d['host']}": _device(d) for d in content["devices"]}
    parts = [
        ("Job file", f"<pre>{_lines(spec)}</pre>"),
        ("Model", _plain({key.replace("_", " "): value for key, value in content["model"].items()})),
        ("Versions", _plain(content["versions"])),
        ("Environment", _plain({key.replace("_", " "): value for key, value in environment.items()})),
        ("Devices", _facts(devices) if devices else '<p class="soft">No task has told which one it uses.</p>'),
        ("Spark settings", _plain(content["environment"]["settings"])),
    ]
    return _card("Setup", "".join(f"<details><summary>{name}</summary>{inside}</details>" for name, inside in parts))


def _device(device: Content) -> str:
    parts = []
    if device["busy_share"] is not None:
        parts.append(f"the model ran in {percent(device['busy_share'], 1)} of its tasks' time")
    if device["mean_utilisation"] is not None:
        parts.append(f"utilisation {percent(device['mean_utilisation'], 1)}")
    if device["peak_memory_used_bytes"] is not None:
        total = device["memory_total_bytes"]
        of = f" of {size_text(total)}" if total is not None else ""
        parts.append(f"at most {size_text(device['peak_memory_used_bytes'])}{of} of memory in use")
    return esc("; ".join(parts) or device["kind"])


def _card(title: str, inside: str) -> str:
    return f'<div class="card"><h2>{esc(title)}</h2>{inside}</div>'


def _facts(facts: Mapping[str, str]) -> str:
    shown = "".join(f"<dt>{esc(name)}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{shown}</dl>'


def _plain(facts: Mapping[str, Any]) -> str:
    return _facts({name: number(value) if _is_number(value) else esc(value) for name, value in facts.items()})


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _lines(text: str) -> str:
    return "\n".join(map(esc, text.splitlines()))


def _split(text: str) -> tuple[str, str]:
    """12.3 s -> 12.3 and s; longer durations stay whole."""
    value, _, unit = text.partition(" ")
    return (value, unit) if " " not in unit else (text, "")
