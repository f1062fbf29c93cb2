"""The manifests against the published schemas, without an API server; and that what stands twice is the same twice."""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy

import kubernetes_validate
import pytest
import yaml

from sparkinfer import __version__
from sparkinfer.driver.config import load_job
from tests.kubernetes.crds import pod_monitor_crd, spark_application_crd
from tests.kubernetes.manifests import FOLDER, MANIFESTS, ROOT, complaints, documents, one, properties

CUSTOM = ("podmonitors.yaml", "sparkapplication.yaml")
CORE = [name for name in MANIFESTS if name not in CUSTOM]
YAMLLINT = (
    "{extends: default, rules: {line-length: {max: 120}, document-start: disable, comments-indentation: disable}}"
)
UNITS = {"Mi": 1, "Gi": 1024, "m": 1, "g": 1024}


def mebibytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def changed(document, path, value):
    """A copy with one place of it set, or taken away when the value is `...`."""
    document = deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def container(document):
    (only,) = pod_spec(document)["containers"]
    return only


def pod_spec(document):
    """The spec of the pods that a pod, a job or a pod template makes."""
    spec = document["spec"]
    for step in ("jobTemplate", "template"):
        if step in spec:
            return pod_spec(spec[step])
    return spec


@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.parametrize("name", CORE)
def test_core_kinds_are_valid(name, version):
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("cronjob.yaml", ("spec", "schedule"), ..., "'schedule' is a required property"),
        ("cronjob.yaml", ("spec", "backofLimit"), 3, "'backofLimit' was unexpected"),
        ("executor-pod.yaml", ("spec", "containers"), {}, "{} is not of type 'array'"),
        ("executor-pod.yaml", ("spec", "tolerations", 0, "effekt"), "NoSchedule", "'effekt' was unexpected"),
        ("driver-pod.yaml", ("spec", "securityContext", "runAsUser"), "root", "'root' is not of type 'integer'"),
        ("job.yaml", ("data", "job.yaml"), 1, "1 is not of type 'string'"),
    ],
)
def test_a_corrupted_manifest_is_refused(name, path, value, message):
    with pytest.raises(kubernetes_validate.ValidationError, match=re.escape(message)):
        kubernetes_validate.validate(changed(one(name), path, value), "1.37", strict=True)


def test_the_spark_application_is_valid():
    assert list(complaints(one("sparkapplication.yaml"), spark_application_crd())) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "mode"), "clustre", "spec.mode: 'clustre' is not one of ['cluster', 'client']"),
        (("spec", "driver", "cores"), "1", "spec.driver.cores: '1' is not of type 'integer'"),
        (("spec", "sparkVersion"), ..., "spec: 'sparkVersion' is a required property"),
        (("spec", "executor", "instance"), 2, "('instance' was unexpected)"),
        (("spec", "executor", "template", "spec", "containers", 0, "securityContexts"), {}, "'securityContexts' was"),
        (("spec", "sparkConf", "spark.task.maxFailures"), 8, "spec.sparkConf.spark.task.maxFailures: 8 is not of type"),
    ],
)
def test_a_corrupted_spark_application_is_refused(path, value, message):
    (complaint,) = complaints(changed(one("sparkapplication.yaml"), path, value), spark_application_crd())
    assert message in complaint


def test_the_pod_monitors_are_valid(programs):
    crd = pod_monitor_crd(programs)
    for document in documents("podmonitors.yaml"):
        assert list(complaints(document, crd)) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "selector"), ..., "spec: 'selector' is a required property"),
        (
            ("spec", "podMetricsEndpoints", 0, "interval"),
            "15",
            "spec.podMetricsEndpoints.0.interval: '15' does not match",
        ),
        (("spec", "endpoints"), [], "('endpoints' was unexpected)"),
    ],
)
def test_a_corrupted_pod_monitor_is_refused(programs, path, value, message):
    document = changed(documents("podmonitors.yaml")[0], path, value)
    (complaint,) = complaints(document, pod_monitor_crd(programs))
    assert message in complaint


def yamllint(*arguments, text=None):
    command = [sys.executable, "-m", "yamllint", "--strict", "--format=parsable", "--config-data", YAMLLINT, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


def test_the_yaml_is_clean():
    assert yamllint(FOLDER) == ""


def test_a_key_that_stands_twice_is_found():
    assert 'duplication of key "kind" in mapping' in yamllint("-", text="kind: Pod\nkind: Job\n")


def test_all_stand_in_the_namespace_under_one_name():
    for name in MANIFESTS:
        for document in documents(name):
            labels = document["metadata"]["labels"]
            assert labels["app.kubernetes.io/name"] == "sparkinfer"
            if document["kind"] != "Namespace":
                assert document["metadata"]["namespace"] == one("namespace.yaml")["metadata"]["name"]


def test_what_kustomize_applies_is_there():
    chosen = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    left = {"driver-pod.yaml", "executor-pod.yaml", "podmonitors.yaml", "sparkapplication.yaml"}
    assert {*chosen} | left == {*MANIFESTS}


def test_the_image_is_pinned_to_this_version():
    images = {
        properties()["spark.kubernetes.container.image"],
        one("sparkapplication.yaml")["spec"]["image"],
        *(container(one(name))["image"] for name in ("driver-pod.yaml", "executor-pod.yaml", "cronjob.yaml")),
    }
    assert images == {f"registry.example.com/sparkinfer:{__version__}-cuda"}
    assert f"spark.kubernetes.container.image={images.pop()}" in container(one("cronjob.yaml"))["args"]


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_the_spark_application_repeats_the_pod_templates(role):
    template = one(f"{role}-pod.yaml")
    repeated = one("sparkapplication.yaml")["spec"][role]["template"]
    assert repeated == {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}


def test_the_spark_application_repeats_the_profile():
    spec = one("sparkapplication.yaml")["spec"]
    driver, executor, dynamic = spec["driver"], spec["executor"], spec["dynamicAllocation"]
    told = {
        "spark.submit.deployMode": spec["mode"],
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.namespace": one("sparkapplication.yaml")["metadata"]["namespace"],
        "spark.kubernetes.driver.podTemplateFile": "deploy/kubernetes/driver-pod.yaml",
        "spark.kubernetes.executor.podTemplateFile": "deploy/kubernetes/executor-pod.yaml",
        "spark.kubernetes.authenticate.driver.serviceAccountName": driver["serviceAccount"],
        "spark.driver.memory": driver["memory"],
        "spark.executor.instances": str(executor["instances"]),
        "spark.executor.cores": str(executor["cores"]),
        "spark.executor.memory": executor["memory"],
        "spark.executor.memoryOverhead": executor["memoryOverhead"],
        "spark.executor.extraJavaOptions": executor["javaOptions"],
        "spark.dynamicAllocation.enabled": str(dynamic["enabled"]).lower(),
        "spark.dynamicAllocation.shuffleTracking.enabled": str(dynamic["shuffleTrackingEnabled"]).lower(),
        "spark.dynamicAllocation.maxExecutors": str(dynamic["maxExecutors"]),
        **spec["sparkConf"],
    }
    assert told == properties()


def test_the_nightly_driver_is_the_driver_template():
    nightly, template = pod_spec(one("cronjob.yaml")), one("driver-pod.yaml")["spec"]
    for key in ("affinity", "restartPolicy", "securityContext", "terminationGracePeriodSeconds"):
        assert nightly[key] == template[key]
    ours, theirs = nightly["containers"][0], template["containers"][0]
    for key in ("image", "name", "resources", "securityContext", "volumeMounts"):
        assert ours[key] == theirs[key]
    assert nightly["serviceAccountName"] == properties()["spark.kubernetes.authenticate.driver.serviceAccountName"]


@pytest.mark.parametrize("name", ["driver-pod.yaml", "executor-pod.yaml", "cronjob.yaml"])
def test_every_volume_is_mounted_once(name):
    spec = pod_spec(one(name))
    assert [volume["name"] for volume in spec["volumes"]] == [
        mount["name"] for mount in container(one(name))["volumeMounts"]
    ]


def test_memory_of_executors():
    memory, overhead = (mebibytes(properties()[f"spark.executor.{key}"]) for key in ("memory", "memoryOverhead"))
    limits = container(one("executor-pod.yaml"))["resources"]["limits"]
    assert mebibytes(limits["memory"]) == memory + overhead
    # What lies on a tmpfs is the container's memory: it must leave most of the overhead to Python and the model.
    volumes = one("executor-pod.yaml")["spec"]["volumes"]
    in_memory = [volume["emptyDir"] for volume in volumes if volume["emptyDir"].get("medium") == "Memory"]
    assert len(in_memory) == 2
    assert sum(mebibytes(volume["sizeLimit"]) for volume in in_memory) <= overhead / 4


def test_memory_of_drivers():
    heap = mebibytes(properties()["spark.driver.memory"])
    overhead = 0.4 * heap  # what Spark adds for Python jobs: spark.kubernetes.memoryOverheadFactor
    for name in ("driver-pod.yaml", "cronjob.yaml"):
        assert mebibytes(container(one(name))["resources"]["limits"]["memory"]) >= heap + overhead


def test_an_executor_has_time_to_give_its_work_away():
    seconds = int(properties()["spark.executor.decommission.forceKillTimeout"].removesuffix("s"))
    assert one("executor-pod.yaml")["spec"]["terminationGracePeriodSeconds"] > seconds


def test_every_account_exists():
    accounts = {each["metadata"]["name"] for each in documents("rbac.yaml") if each["kind"] == "ServiceAccount"}
    names = ("driver-pod.yaml", "executor-pod.yaml", "cronjob.yaml")
    used = {pod_spec(one(name))["serviceAccountName"] for name in names}
    used.add(properties()["spark.kubernetes.authenticate.driver.serviceAccountName"])
    assert used == accounts


def test_ports_are_the_same_everywhere(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(one("job.yaml")["data"]["job.yaml"])
    ports = {port["name"]: port["containerPort"] for port in container(one("cronjob.yaml"))["ports"]}
    assert ports == {"metrics": load_job(str(job)).metrics.port, "spark-ui": 4040}  # Spark's default: spark.ui.port
    assert container(one("driver-pod.yaml"))["ports"][0]["containerPort"] == ports["metrics"]
    (policy,) = (each for each in documents("networkpolicy.yaml") if each["metadata"]["name"] == "sparkinfer-metrics")
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == list(ports.values())
    asked = [each["spec"]["podMetricsEndpoints"][0]["port"] for each in documents("podmonitors.yaml")]
    assert asked == ["metrics", "spark-ui", "spark-ui"]


def test_prometheus_sees_the_jobs_that_the_dashboard_asks_for():
    scraped = yaml.safe_load((ROOT / "deploy" / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    paths = {each["job_name"]: each.get("metrics_path", "/metrics") for each in scraped}
    for monitor in documents("podmonitors.yaml"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (label,) = endpoint["relabelings"]
        assert paths[label["replacement"]] == endpoint["path"]


def test_files_of_the_image_that_are_named_are_in_it():
    texts = [*container(one("cronjob.yaml"))["args"], *properties().values()]
    texts.append(one("sparkapplication.yaml")["spec"]["mainApplicationFile"])
    named = {match for text in texts for match in re.findall(r"/opt/sparkinfer/(\S+)", text)}
    assert len(named) == 4
    for path in named:
        assert (ROOT / path).is_file()
