"""Custom resource definitions, made of what the operators publish: Go types, and a Python package of API models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication

__all__ = ["pod_monitor_crd", "spark_application_crd"]

Schema = dict[str, Any]

_INT_OR_STRING = ("IoK8sApimachineryPkgApiResourceQuantity", "IoK8sApimachineryPkgUtilIntstrIntOrString")
_SAYS_NOTHING = ("default", "description", "title")
_CHOICES = {
    ("mode",): ["cluster", "client"],
    ("pythonVersion",): ["2", "3"],
    ("restartPolicy", "type"): ["Never", "Always", "OnFailure"],
    ("type",): ["Java", "Python", "Scala", "R"],
}
"""Fields of a SparkApplication's spec whose texts the operator's own definition limits; the models do not tell."""


def pod_monitor_crd(programs: Path) -> Schema:
    """The prometheus-operator's definition of PodMonitor, as its own generator makes it (apiserver/build.sh)."""
    return yaml.safe_load((programs / "podmonitors.yaml").read_text(encoding="utf-8"))


@cache
def spark_application_crd() -> Schema:
    """The spark-operator's definition of SparkApplication: all fields and types of its published API models.

    Its pod templates are typed in full, which the operator's own definition leaves open.
    """
    told = SparkV1beta2SparkApplication.model_json_schema(by_alias=True)
    schema = _structural({key: value for key, value in told.items() if key != "$defs"}, told["$defs"])
    for path, choices in _CHOICES.items():
        field = schema["properties"]["spec"]
        for step in path:
            field = field["properties"][step]
        field["enum"] = choices
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
    names = {"kind": "SparkApplication", "plural": "sparkapplications", "singular": "sparkapplication"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "sparkapplications.sparkoperator.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},  # the group ends with k8s.io
        },
        "spec": {
            "group": "sparkoperator.k8s.io",
            "names": names,
            "scope": "Namespaced",
            "versions": [
                {"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def _structural(schema: Any, definitions: Schema) -> Schema:
    """A JSON schema as CRDs want it: nothing by reference, nothing that may be null, every object typed."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if name in _INT_OR_STRING:
            return {"x-kubernetes-int-or-string": True}
        return _structural(definitions[name], definitions)
    if choices := schema.get("anyOf"):
        (real,) = (choice for choice in choices if choice.get("type") != "null")
        return _structural(real, definitions)
    told: Schema = {key: value for key, value in schema.items() if key not in _SAYS_NOTHING}
    if "properties" in told:
        told["properties"] = {key: _structural(value, definitions) for key, value in told["properties"].items()}
        told.pop("additionalProperties", None)
    elif told.get("additionalProperties") is True or told == {"type": "object"}:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    elif "additionalProperties" in told:
        told["additionalProperties"] = _structural(told["additionalProperties"], definitions)
    if "items" in told:
        told["items"] = _structural(told["items"], definitions)
    return told
