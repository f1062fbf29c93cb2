"""The manifests under deploy/kubernetes as data, and the schemas of what is no core kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

__all__ = ["CONF", "FOLDER", "MANIFESTS", "ROOT", "complaints", "documents", "one", "properties", "strict"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
CONF = ROOT / "conf" / "spark-defaults.kubernetes-gpu.conf"
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")

Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    """What a manifest holds."""
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def one(name: str) -> Document:
    """The only document of a manifest."""
    (document,) = documents(name)
    return document


def properties() -> dict[str, str]:
    """The settings of the profile for Kubernetes."""
    lines = CONF.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def strict(schema: Any) -> Any:
    """A CRD's schema as JSON schema that refuses unknown fields, as an API server does when asked to be strict."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    told = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        told["properties"] = {key: strict(value) for key, value in schema["properties"].items()}
        told["additionalProperties"] = False
    return told


def complaints(document: Document, crd: Document) -> Iterator[str]:
    """What a CRD's schema has against a custom resource: `spec.driver.cores: 'two' is not of type 'integer'`."""
    (version,) = (each for each in crd["spec"]["versions"] if document["apiVersion"].endswith(f"/{each['name']}"))
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    for error in jsonschema.Draft7Validator(schema).iter_errors(document):
        yield f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"
