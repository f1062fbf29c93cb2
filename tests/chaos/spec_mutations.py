"""Job files and `--set` texts as people, editors and attackers get them wrong. Driver's side of the tests; no pyspark.

`mutated_job(rng, job)` changes a good job a little, in its data or in its text, or puts something else in its place.
"""

from __future__ import annotations

import copy
import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

__all__ = ["SPECIAL_FILES", "mutated_job", "mutated_sets"]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**400), 0.5, 1e308, float("inf"), float("nan"),
    "", " ", "~", "auto", "1e999", "9" * 400 + " GB", "9" * 400 + "s", "0x" + "f" * 5000, "a" * 5000, "a/" * 3000,
    "\0", "a\0b", "\ud800", "\x1b[2J\x1b]0;x\x07", "line\nbreak", "\u202egnp.exe", "e\u0301 \u00e9 \U0001f600", "*",
    "&", "{", "[", "%", "`x`; DROP TABLE y", "../../..", "file://[", "s3a://", "hdfs:x", "file:relative", "C:\\photos",
    [], [[]], [[[["deep"]]]], ["a"] * 300, [1, 2, 3], {}, {"a": {"b": {"c": [1, {"d": None}]}}}, {"": 1}, {1: 2},
    {"key with spaces": "x"}, dt.date(2026, 1, 1), b"\x00\xff", {"one", "two"},
)  # fmt: skip

_HUGE_KEY = "k" * 20_000

NAMES = (
    "", " ", "Source", "sources", "modle", "model.path", "batchsize", "__class__", "{}", _HUGE_KEY, "line\nbreak",
    "\x1b[31mred", "\U0001f600", "null", "on", "1", "<<", "=", "path", "images", "\ud800",
)  # fmt: skip

TOKENS = (
    "\t", "\0", "\ufeff", "\u2028", "\x85", "\x1b", "{", "}", "[", "]", ": ", "- ", "? ", "& ", "*a", "&a ", "! ", "!!",
    "!!str ", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!!null ", "!!map ",
    "!!python/object/apply:os.system [true] ", "!<tag:yaml.org,2002:int> ", "<<: *a\n", "---\n", "...\n", "%YAML 9.9\n",
    "%TAG ! tag:x,2000:\n", "#", "'", '"', "|\n", ">\n", "\\", "@", "`", "\r", "0o9", "1:2:3", "2026-13-45", "=",
    "\U0001f600", "\x7f", "0x" + "f" * 5000 + " #",
)  # fmt: skip


def _bomb(levels: int, width: int) -> str:
    """Aliases of aliases: `width ** levels` values in a few lines ("billion laughs")."""
    lines = ["model: {path: m.onnx, options: {"]
    lines += [f"  k0: &l0 [{', '.join(['lol'] * width)}],"]
    lines += [f"  k{n}: &l{n} [{', '.join([f'*l{n - 1}'] * width)}]," for n in range(1, levels)]
    return "\n".join([*lines, "}}", "source: {images: photos}", f"name: *l{levels - 1}", "sink: {path: out}", ""])


def _merge_bomb(levels: int, width: int) -> str:
    """Merges of merges: PyYAML copies all keys at every level."""
    lines = ["k0: &m0 {a: 1}"]
    lines += [f"k{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join([*lines, ""])


SPECIAL_FILES: tuple[bytes, ...] = (
    b"",
    b"\n\n",
    b"# nothing\n",
    b"---\n...\n",
    b"null\n",
    b"42\n",
    b"- a\n- b\n",
    b"!!set {source, model, sink}\n",
    b"!!omap [source: 1]\n",
    b"!!str {=: x}\n",
    b"!!python/object/apply:os.system ['true']\n",
    b"? !!str [a]\n: b\n",
    b"? !!str {a: b}\n: c\n",
    b"? [a, b]\n: c\n",
    b"&a {source: *a, model: *a, sink: *a}\n",
    b"model: &m {path: m.onnx, options: {self: *m}}\nsource: {images: photos}\nsink: {path: out}\n",
    b"source: {keep: &k [a, *k]}\n",
    b"name: !!int ''\n",
    b"name: !!float ''\n",
    b"name: !!bool maybe\n",
    b"name: !!timestamp soon\n",
    b"name: !!timestamp 2001-01-01 00:00:00+99:99\n",
    b"name: !!binary '*'\n",
    b"name: [" * 400,
    b"{" * 1000,
    b"a: " * 3000 + b"1\n",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "name: x\n".encode("utf-16"),
    b"PK\x03\x04" + bytes(200),
    b"\x00" * 1000,
    b"x" * 200_000,
    b"name: " + b"x" * 200_000 + b"\n",
    b"source: {images: [" + b"photos, " * 5_000 + b"]}\n",
    _bomb(12, 12).encode(),
    _bomb(40, 10).encode(),
    _merge_bomb(12, 10).encode(),
    b'{"source": {"images": "photos"}, "model": {"path": "m.onnx"}, "sink": {"path": "out"}, "sink": 1}',
)
"""Whole files that are no job, and such as harm who reads them without care."""


def mutated_job(rng: random.Random, job: dict[str, Any]) -> bytes:
    """A job file's bytes: `job` with a few things wrong, or a file of `SPECIAL_FILES`."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(SPECIAL_FILES)
    data = copy.deepcopy(job)
    if kind < 0.65:
        for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
            rng.choice(_STRUCTURAL)(rng, data)
    text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False, default_flow_style=rng.choice([None, False]))
    if kind >= 0.6:
        for _ in range(rng.choice([1, 1, 2, 4])):
            text = rng.choice(_TEXTUAL)(rng, text)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    if kind >= 0.95 and raw:
        for _ in range(rng.choice([1, 3])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def mutated_sets(rng: random.Random, job: dict[str, Any]) -> list[str]:
    """None to three `--set` texts, right or wrong. No NUL: the system passes none in arguments."""
    texts = []
    for _ in range(rng.choice([0, 0, 0, 1, 1, 3])):
        key = ".".join(rng.choice(list(_keys(job))))
        if rng.random() < 0.3:
            key = rng.choice([key + ".deeper", key.upper(), "." + key, key + ".", "", *NAMES])
        value = rng.choice([*map(str, VALUES), *TOKENS, *(token + "x" for token in TOKENS), "[" * 3000, "[a, b]"])
        text = rng.choice([f"{key}={value}", f"{key}={value}", f"{key} = {value}", key, value])
        texts.append(text.replace("\0", ""))
    return texts


def _keys(block: dict[Any, Any], parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in block.items():
        yield (*parent, str(name))
        if isinstance(value, dict):
            yield from _keys(value, (*parent, str(name)))


def _blocks(block: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    if block:
        yield block
    for value in block.values():
        if isinstance(value, dict):
            yield from _blocks(value)


def _somewhere(rng: random.Random, job: dict[Any, Any]) -> tuple[dict[Any, Any], Any]:
    block = rng.choice(list(_blocks(job)) or [{"name": None}])
    return block, rng.choice(list(block))


def _wrong_value(rng: random.Random, job: dict[Any, Any]) -> None:
    block, key = _somewhere(rng, job)
    block[key] = copy.deepcopy(rng.choice(VALUES))


def _wrapped(rng: random.Random, job: dict[Any, Any]) -> None:
    block, key = _somewhere(rng, job)
    block[key] = rng.choice([[block[key]], {key: block[key]}, [[block[key]] * 3], str(block[key])])


def _renamed(rng: random.Random, job: dict[Any, Any]) -> None:
    block, key = _somewhere(rng, job)
    name = str(key)
    at = rng.randrange(len(name) + 1)
    block[rng.choice([name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper(), *NAMES])] = block.pop(key)


def _dropped(rng: random.Random, job: dict[Any, Any]) -> None:
    block, key = _somewhere(rng, job)
    del block[key]


def _moved(rng: random.Random, job: dict[Any, Any]) -> None:
    block, key = _somewhere(rng, job)
    value = block.pop(key)
    rng.choice([job, *_blocks(job)])[key] = value


def _added(rng: random.Random, job: dict[Any, Any]) -> None:
    block, _ = _somewhere(rng, job)
    block[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))


_STRUCTURAL: tuple[Callable[[random.Random, dict[Any, Any]], None], ...] = (
    _wrong_value, _wrong_value, _wrong_value, _wrapped, _renamed, _dropped, _moved, _added,
)  # fmt: skip


def _token_put(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(TOKENS) + text[at:]


def _tag_before_a_value(rng: random.Random, text: str) -> str:
    places = [at for at, c in enumerate(text) if text.startswith(": ", at)]
    at = rng.choice(places) + 2 if places else 0
    return text[:at] + rng.choice(TOKENS) + text[at:]


def _cut(rng: random.Random, text: str) -> str:
    start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return rng.choice([text[:start], text[start:], text[:start] + text[end:]])


def _line_changed(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or ["\n"]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    changed = rng.choice(
        [
            [*lines[: at + 1], *lines[at:]],
            [*lines[:at], *lines[at + 1 :]],
            [*lines[:at], " " * rng.randrange(1, 5) + lines[at], *lines[at + 1 :]],
            [*lines[:at], lines[at].lstrip(), *lines[at + 1 :]],
            [*lines[:at], lines[other], *lines[at + 1 :]],
            [*lines, *lines],
        ]
    )
    return "".join(changed)


_TEXTUAL: tuple[Callable[[random.Random, str], str], ...] = (
    _token_put, _token_put, _tag_before_a_value, _cut, _line_changed, _line_changed,
)  # fmt: skip
