"""The report's contact sheet: pictures of a few rows with what the model made of them. Driver side; no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkinfer.driver.reporting.charts import bar
from sparkinfer.driver.reporting.images import Thumbnails
from sparkinfer.driver.reporting.text import esc

__all__ = ["contact_sheet", "label_text", "sheet_rows"]

FAILED = 12
"""Failing rows that are shown; of each code, as evenly as there are."""


def sheet_rows(table: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Title -> the rows that are shown below it.

    Args:
        table: `table` of the report's content; empty lists where it has none.
    """
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for row in table["failed"] or []:
        if row["path"] is not None:
            by_code.setdefault(row["code"], []).append(row)
    rounds = max(map(len, by_code.values()), default=0)
    failed = [rows[i] for i in range(rounds) for rows in by_code.values() if i < len(rows)]
    return {
        "A sample of the predictions": [row for row in (table.get("sample") or []) if row["path"] is not None],
        "The least confident": [row for row in (table.get("least") or []) if row["path"] is not None],
        "Failing images": failed[:FAILED],
    }


def contact_sheet(content: Mapping[str, Any], pictures: Thumbnails) -> str:
    """The section's HTML."""
    rows = sheet_rows(content["table"])
    note = f'<p class="soft">No pictures: {esc(pictures.note)}.</p>' if pictures.note else ""
    parts = "".join(_part(title, some, pictures) for title, some in rows.items() if some)
    if pictures.note or not parts:
        parts = ""
        note = note or '<p class="soft">There is nothing to show.</p>'
    return f'<div class="card"><h2>Images</h2>{note}{parts}</div>'


def label_text(row: Mapping[str, Any]) -> str:
    """The label of a row, or its class where the model has no labels; as HTML."""
    return esc(row["label"]) if row["label"] is not None else f"class {esc(row['class_idx'])}"


def _part(title: str, rows: Sequence[Mapping[str, Any]], pictures: Thumbnails) -> str:
    figures = "".join(_failed(row, pictures) if "code" in row else _predicted(row, pictures) for row in rows)
    return f'<div class="sheet"><h3>{esc(title)}</h3><div class="grid-of">{figures}</div></div>'


def _predicted(row: Mapping[str, Any], pictures: Thumbnails) -> str:
    confidence = row["confidence"]
    is_share = confidence is not None and 0 <= confidence <= 1
    value = "" if confidence is None else f"{confidence:.1%}" if is_share else f"{confidence:.3g}"
    label = label_text(row)
    caption = (
        f'{bar(confidence if is_share else 0)}<p class="caption"><span title="{label}">{label}</span>'
        f"<b>{esc(value)}</b></p>"
    )
    return _figure(row, pictures, caption, f"{row['label'] or row['class_idx']} {value}")


def _failed(row: Mapping[str, Any], pictures: Thumbnails) -> str:
    name = esc(row["code"]).replace("_", "_<wbr>")  # it may be wider than its picture
    code = f'<span class="bad-text" title="{esc(row["message"])}">{name}</span>'
    caption = f'{bar(1, "warn")}<p class="caption">{code}</p>'
    return _figure(row, pictures, caption, row["code"])


def _figure(row: Mapping[str, Any], pictures: Thumbnails, caption: str, told: str) -> str:
    path = str(row["path"])
    jpeg = pictures.jpegs.get(path)
    if jpeg is not None:
        inside = f'<img alt="{esc(told)}" src="data:image/jpeg;base64,{esc_base64(jpeg)}">'
    else:
        inside = f"<p>{esc(pictures.problems.get(path, 'no picture'))}</p>"
    name = path.rstrip("/").rsplit("/", 1)[-1]
    return (
        f'<figure><div class="picture">{inside}</div><figcaption>{caption}'
        f'<p class="file" title="{esc(path)}"><bdi>{esc(name)}</bdi></p></figcaption></figure>'
    )


def esc_base64(text: str) -> str:
    """Base64, and nothing else, as it is.

    Raises:
        ValueError: it is something else.
    """
    if not text.isascii() or not all(c.isalnum() or c in "+/=" for c in text):
        raise ValueError("a picture is no base64")
    return text
