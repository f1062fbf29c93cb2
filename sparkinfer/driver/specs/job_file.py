"""A job file's text -> plain data, with the line of every key. Driver only; imports no pyspark.

YAML, read with the safe loader: no Python objects. What YAML would let pass in silence is refused here: a key given
twice (the last one would win), keys that are no text, several documents, and a few lines whose aliases stand for more
than memory holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.wording import dotted, printable, shortened

__all__ = ["JobFile", "parse_job_file", "parse_value", "read_text"]

Key = tuple[str, ...]

MAX_FILE_BYTES = 4 << 20
"""A job file has some kilobytes; a long list of paths belongs into a table (`source.paths`)."""

MAX_EXPANDED = 4 * MAX_FILE_BYTES
"""Characters and values that a file may stand for when every alias is written out."""

_NOT_YAML = (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError, TypeError)
"""What PyYAML raises at text that is no YAML, and (all but the first) at a value that its tag does not fit: `!!int ""`,
2026-13-45."""

_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class JobFile:
    """What a job file holds.

    Attributes:
        name: as the person gave it, for messages.
        data: the top-level block as nested dicts, lists and scalars.
        lines: line number, from 1, of every key: `("model", "path") -> 4`.
    """

    name: str
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)


def read_text(path: str) -> str:
    """Reads a job file: a local one (a path or a `file:` URI), or under spark-submit one of any Hadoop file system.

    Raises:
        SpecError: it is not there (names a local file that is), is a folder, cannot be read, or is not UTF-8 text.
    """
    content = _read_remote(path) if "://" in path and not path.startswith("file:") else _read_local(path)
    if len(content) > MAX_FILE_BYTES:
        raise SpecError(
            f"{path} has more than {MAX_FILE_BYTES:,} bytes, too many for a job file",
            hint="a job file is YAML; images go to --images, long lists of paths to source.paths",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path} is not UTF-8 text (byte {error.start})", hint="a job file is YAML; images go to --images"
        ) from None


def _read_remote(uri: str) -> bytes:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # Java is not there yet, and how to start it stands in the job file
        raise SpecError(
            f"the job file {uri} is not local", hint="copy it here, or run it with spark-submit, which can read it"
        )
    from sparkinfer.driver.specs.remote_text import read_head

    return read_head(uri, MAX_FILE_BYTES + 1)


def _read_local(path: str) -> bytes:
    local = _local(path)
    try:
        with local.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(f"there is no job file {path}", hint=_neighbours(local)) from None
    except IsADirectoryError:
        raise SpecError(
            f"the job file {path} is a folder",
            hint="give the YAML file; image folders go to --images or source.images",
        ) from None
    except OSError as error:
        raise SpecError(f"cannot read the job file {path}: {error.strerror or error}") from None


def parse_job_file(text: str, name: str) -> JobFile:
    """Reads YAML safely.

    Args:
        text: the file's text.
        name: the file's name, for messages.

    Raises:
        SpecError: a syntax error (with line and column), a key given twice, a key that is no text, or a top level that
            is not a block of keys.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise SpecError(f"{name} is empty", hint="it needs at least source, model and sink")
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise SpecError(f"{name} holds {kind} at its top level; it must hold keys", hint="source: {images: ...}")
        lines = dict(_key_lines(root, name))
        _check_expanded(root, name)
        data = _constructed(root)
    except yaml.MarkedYAMLError as error:
        raise SpecError(_syntax_message(error, name), hint=_syntax_hint(error)) from None
    except RecursionError:
        raise SpecError(f"{name} is nested too deeply to be a job file") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{name} is not readable as YAML: {shortened(str(error))}") from None
    except _NOT_YAML as error:
        raise SpecError(_misfit(root, name) or f"{name} is not readable as YAML: {shortened(str(error))}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{name} line 1: the tag {printable(root.tag)} makes something else of the keys")
    return JobFile(name, data, lines)


def parse_value(text: str) -> Any:
    """One value, read as safely as a job file.

    Raises:
        ValueError: it is no YAML value.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return None
        _check_expanded(root, "the value")
        return _constructed(root)
    except (*_NOT_YAML, RecursionError, SpecError) as error:
        raise ValueError(f"no YAML value: {error}") from error


def _constructed(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _misfit(root: yaml.Node | None, name: str) -> str | None:
    """Names the line of the first value that its tag does not fit."""
    for node in _nodes(root) if root is not None else ():
        try:
            if isinstance(node, yaml.ScalarNode):
                _constructed(node)
        except _NOT_YAML as error:
            kind = printable(node.tag.rsplit(":", 1)[-1])
            line = node.start_mark.line + 1
            return f"{name} line {line}: {printable(node.value)!r} is no {kind} ({shortened(str(error))})"
    return None


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node once."""
    pending, seen = [root], {id(root)}
    while pending:
        node = pending.pop()
        yield node
        fresh = [child for child in _children(node) if id(child) not in seen]
        seen.update(map(id, fresh))
        pending.extend(reversed(fresh))


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_expanded(root: yaml.Node, name: str) -> None:
    """Refuses aliases that stand for too much, or for a block that they lie in. Nothing is written out to find out."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value)
        if id(node) not in sizes:
            sizes[id(node)] = None
            sizes[id(node)] = 1 + sum(map(size, _children(node)))
        known = sizes[id(node)]
        if known is None:
            raise SpecError(f"{name} line {node.start_mark.line + 1}: an alias stands for a block that it lies in")
        return known

    if size(root) > MAX_EXPANDED:
        raise SpecError(f"{name} stands for more than {MAX_EXPANDED:,} characters when its aliases (*) are written out")


def _local(path: str) -> Path:
    if not path.startswith("file:"):
        return Path(path)
    try:
        return Path(unquote(urlsplit(path).path))
    except ValueError as error:
        raise SpecError(f"{path} is no URI of a job file: {error}", hint="file:///folder/job.yaml") from None


def _key_lines(root: yaml.MappingNode, name: str) -> Iterator[tuple[Key, int]]:
    """Yields every key of nested blocks with its line; refuses doubled and non-text keys."""
    pending: list[tuple[Key, yaml.MappingNode]] = [((), root)]
    visited: set[int] = set()  # aliases: a block may hold itself
    while pending:
        parent, node = pending.pop()
        visited.add(id(node))
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE_TAG:
                continue
            if key_node.tag != _TEXT_TAG or not isinstance(key_node, yaml.ScalarNode):
                shown = printable(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "[...] or {...}"
                raise SpecError(
                    f"{name} line {line}: the key {shown} is not text", hint="put it in quotes if it is meant"
                )
            key = (*parent, key_node.value)
            if key_node.value in seen:
                raise SpecError(
                    f"given twice in {name}, in lines {seen[key_node.value]} and {line}",
                    key=dotted(key),
                    hint="keep one of them",
                )
            seen[key_node.value] = line
            yield key, line
            if isinstance(value_node, yaml.MappingNode) and id(value_node) not in visited:
                pending.append((key, value_node))


def _syntax_message(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{name}{where}: {shortened(what) or 'not readable as YAML'}"


def _syntax_hint(error: yaml.MarkedYAMLError) -> str | None:
    problem = f"{error.problem}"
    if "'\\t'" in problem:
        return "indent with spaces, not tabs"
    if "alias" in f"{error.context} {problem}":
        return 'a value that begins with * needs quotes: "*.jpg"'
    if "single document" in f"{error.context} {problem}":
        return "one job a file: remove the line ---"
    if "mapping values are not allowed" in problem:
        return "a value that holds ': ' needs quotes"
    return None


def _neighbours(missing: Path) -> str | None:
    """A hint with the YAML files that stand where one was looked for."""
    try:
        names = sorted(p.name for p in missing.parent.iterdir() if p.suffix in (".yaml", ".yml"))
    except OSError:
        return f"there is no folder {missing.parent} either"
    close = get_close_matches(missing.name, names, n=3, cutoff=0.5) or names[:3]
    return f"did you mean {' or '.join(str(missing.parent / n) for n in close)}?" if close else None
