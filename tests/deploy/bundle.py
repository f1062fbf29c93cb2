"""Checks a Databricks asset bundle without a workspace: its keys, its types, and that what it names is there.

`databricks-bundles` (Databricks' own package, generated from the bundles' JSON schema) checks the resources. It knows
none of the keys around them; these are written down here after the documented configuration reference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from databricks.bundles.core import Resource
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["BundleError", "check", "load"]

RESOURCES: dict[str, type[Any]] = {"jobs": Job, "schemas": Schema, "volumes": Volume}


class BundleError(Exception):
    """Names the key that is wrong."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Bundle(_Strict):
    name: str
    databricks_cli_version: str | None = None


class _Variable(_Strict):
    description: str | None = None
    default: str | None = None
    type: Literal["complex"] | None = None


class _ArtifactFile(_Strict):
    source: str


class _Artifact(_Strict):
    type: Literal["whl", "jar"]
    path: str | None = None
    build: str | None = None
    files: list[_ArtifactFile] = []


class _Sync(_Strict):
    paths: list[str] | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None


class _Workspace(_Strict):
    host: str | None = None
    root_path: str | None = None


class _Target(_Strict):
    mode: Literal["development", "production"] | None = None
    default: bool | None = None
    variables: dict[str, str] | None = None
    workspace: _Workspace | None = None


class _Config(_Strict):
    bundle: _Bundle
    variables: dict[str, _Variable] = {}
    artifacts: dict[str, _Artifact] = {}
    sync: _Sync = _Sync()
    resources: dict[Literal["jobs", "schemas", "volumes"], dict[str, dict[str, Any]]]
    targets: dict[str, _Target]


def load(file: Path) -> dict[str, Any]:
    """The bundle as plain data, its anchors resolved."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


def check(config: dict[str, Any], folder: Path) -> None:
    """Checks a bundle.

    Args:
        config: from `load`.
        folder: of its databricks.yml; paths start there.

    Raises:
        BundleError: something is wrong with it.
    """
    try:
        parsed = _Config.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    resources: dict[str, dict[str, Resource]] = {}
    for kind, found in parsed.resources.items():
        for name, value in found.items():
            try:
                resources.setdefault(kind, {})[name] = RESOURCES[kind].from_dict(value)
            except (TypeError, ValueError) as error:
                raise BundleError(f"resources.{kind}.{name}: {error}") from error
    _check_references(config, parsed)
    for name, job in config["resources"].get("jobs", {}).items():
        _check_job(job, f"resources.jobs.{name}", folder, parsed)


def _check_references(config: dict[str, Any], parsed: _Config) -> None:
    """Every ${...} means something."""
    for reference in re.findall(r"\$\{([^}]*)\}", str(config)):
        first, _, rest = reference.partition(".")
        known = {
            "var": rest in parsed.variables,
            "bundle": rest in {"name", "target"},
            "workspace": rest in {"file_path", "root_path", "current_user.userName"},
            "resources": len(parts := rest.split(".")) == 3 and parts[1] in config["resources"].get(parts[0], {}),
        }
        if not known.get(first, False):
            raise BundleError(f"${{{reference}}} is not defined")
    for name, target in parsed.targets.items():
        for variable in target.variables or {}:
            if variable not in parsed.variables:
                raise BundleError(f"targets.{name}.variables.{variable} is not defined")


def _check_job(job: dict[str, Any], key: str, folder: Path, parsed: _Config) -> None:
    """A job's parts name each other, and files that are there and travel."""
    clusters = {cluster["job_cluster_key"] for cluster in job.get("job_clusters", [])}
    parameters = {parameter["name"] for parameter in job.get("parameters", [])}
    synced = [(folder / path).resolve() for path in parsed.sync.paths or ["."]]
    for task in job["tasks"]:
        where = f"{key}.tasks.{task['task_key']}"
        if task.get("job_cluster_key") not in clusters:
            raise BundleError(f"{where}.job_cluster_key: no cluster {task.get('job_cluster_key')!r} in {clusters}")
        for parameter in re.findall(r"\{\{job\.parameters\.(\w+)\}\}", str(task)):
            if parameter not in parameters:
                raise BundleError(f"{where}: no parameter {parameter!r} in {parameters}")
        file = (folder / task["spark_python_task"]["python_file"]).resolve()
        if not file.is_file() or not any(file.is_relative_to(place) for place in synced):
            raise BundleError(f"{where}.spark_python_task.python_file: {file} is not there, or sync leaves it behind")
        built = {file.source for artifact in parsed.artifacts.values() for file in artifact.files}
        for library in task.get("libraries", []):
            if "whl" in library and library["whl"] not in built:
                raise BundleError(f"{where}.libraries: nothing builds {library['whl']}")
