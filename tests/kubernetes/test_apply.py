"""`kubectl apply --dry-run=server` of every manifest on a real API server: its validation, its admission, its RBAC."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.kubernetes.api_server import KubectlError
from tests.kubernetes.manifests import FOLDER, MANIFESTS, documents, one

pytestmark = pytest.mark.cluster

DRIVER = "system:serviceaccount:sparkinfer:sparkinfer"
EXECUTOR = "system:serviceaccount:sparkinfer:sparkinfer-executor"


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_api_server_accepts(api, name):
    said = api.kubectl("apply", "--dry-run=server", "--filename", FOLDER / name)
    lines = [line.split() for line in said.splitlines()]
    assert [line[0].rpartition("/")[2] for line in lines] == [each["metadata"]["name"] for each in documents(name)]
    assert all(line[-3:] == ["(server", "dry", "run)"] for line in lines)


def test_the_api_server_accepts_all_that_kustomize_applies(api):
    said = api.kubectl("apply", "--dry-run=server", "--kustomize", FOLDER)
    assert "cronjob.batch/sparkinfer-nightly created (server dry run)" in said
    assert "Warning" not in said


def with_pod(**changes):
    pod = one("executor-pod.yaml")
    pod["spec"] |= changes
    return pod


def with_security(**changes):
    pod = one("executor-pod.yaml")
    pod["spec"]["containers"][0]["securityContext"] |= changes
    return pod


def with_spec(name, **changes):
    document = one(name)
    document["spec"] |= changes
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (with_pod(tolerationz=[]), 'unknown field "spec.tolerationz"'),
        (with_pod(restartPolicy="Sometimes"), 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        (with_pod(hostNetwork=True), 'violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)'),
        (with_security(runAsUser=0), "runAsUser=0"),
        (with_security(privileged=True, allowPrivilegeEscalation=True), "privileged"),
        (with_pod(serviceAccountName="nobody", serviceAccount="nobody"), "service account sparkinfer/nobody"),
        (with_spec("cronjob.yaml", schedule="at night"), 'spec.schedule: Invalid value: "at night"'),
        (with_spec("cronjob.yaml", timeZone="Mars/North"), "spec.timeZone: Invalid value"),
        (with_spec("sparkapplication.yaml", mode="clustre"), 'spec.mode: Unsupported value: "clustre"'),
        (with_spec("sparkapplication.yaml", sparkKonf={}), 'unknown field "spec.sparkKonf"'),
        (documents("podmonitors.yaml")[0] | {"spec": {"podMetricsEndpoints": []}}, "spec.selector: Required value"),
    ],
)
def test_the_api_server_refuses_a_corrupted_manifest(api, document, message):
    with pytest.raises(KubectlError, match=re.escape(message)):
        api.kubectl("apply", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("account", "verb", "resource", "namespace", "allowed"),
    [
        (DRIVER, "create", "pods", "sparkinfer", True),
        (DRIVER, "deletecollection", "pods", "sparkinfer", True),
        (DRIVER, "create", "pods", "default", False),
        (DRIVER, "get", "secrets", "sparkinfer", False),
        (DRIVER, "create", "rolebindings.rbac.authorization.k8s.io", "sparkinfer", False),
        (EXECUTOR, "get", "pods", "sparkinfer", False),
    ],
)
def test_what_the_accounts_may_do(api, account, verb, resource, namespace, allowed):
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": account,
            "resourceAttributes": {
                "verb": verb,
                "namespace": namespace,
                "resource": resource.partition(".")[0],
                "group": resource.partition(".")[2],
            },
        },
    }
    answer = api.kubectl("create", "--filename=-", "--output=yaml", stdin=yaml.safe_dump(question))
    assert yaml.safe_load(answer)["status"]["allowed"] is allowed
