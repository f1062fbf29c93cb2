"""spark-submit against a real API server, with the profile, the templates and the rights that users get.

No container runs, as there is no kubelet: what is looked at are the pods that Spark asks for.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import yaml

from sparkinfer.driver.session import find_java
from tests.kubernetes.api_server import KubectlError
from tests.kubernetes.container import ENTRYPOINT, POD_IP, environment_of, stand_in_tini, what_runs
from tests.kubernetes.manifests import CONF, ROOT, one, properties

pytestmark = pytest.mark.cluster

SPARK = Path(pyspark.__file__).parent
HOLD = Path(__file__).parent / "hold_session.py"
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def environment(api, tmp_path_factory):
    """Variables of a program that may do what the driver's service account may."""
    folder = tmp_path_factory.mktemp("submit")
    token = api.kubectl("create", "token", "sparkinfer", "--namespace=sparkinfer").strip()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(SPARK),
        "KUBECONFIG": str(api.write_config(folder / "driver.kubeconfig", token)),
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.fixture(scope="module")
def driver(api, environment):
    """The driver pod that cluster mode makes, as the API server keeps it."""
    command = [
        *(SPARK / "bin" / "spark-submit", "--properties-file", CONF, "--master", f"k8s://{api.url}"),
        *("--name", "photos", "--conf", "spark.kubernetes.submission.waitAppCompletion=false"),
        *("local:///opt/sparkinfer/jobs/batch_infer.py", "/etc/sparkinfer/job.yaml"),
    ]
    # The profile names the templates relative to the checkout.
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (pod,) = api.items("pods", "--namespace=sparkinfer", "--selector=spark-role=driver,spark-app-name=photos")
    return pod


@pytest.fixture(scope="module")
def nightly(api):
    """The pod that the cron job makes, whose container would be the driver in client mode."""
    template = one("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]
    metadata = template["metadata"] | {"name": "nightly", "namespace": "sparkinfer"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    return json.loads(api.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(pod)))


@pytest.fixture(scope="module")
def executors(api, environment, nightly, tmp_path_factory):
    """Two executor pods that the cron job's driver makes, which runs here until the tests are through."""
    given = environment_of(nightly) | {"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
    words = [re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], word) for word in container_of(nightly)["args"]]
    words = [word.replace("/opt/sparkinfer", str(ROOT)) for word in words]
    words[words.index("k8s://https://kubernetes.default.svc:443")] = f"k8s://{api.url}"
    settings = {
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": "2",
        "spark.kubernetes.executor.podNamePrefix": "photos",
        "spark.scheduler.minRegisteredResourcesRatio": "0",  # none will ever register
        "spark.ui.enabled": "false",
    }
    program = [*(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")), str(HOLD)]
    job = [str(ROOT / "jobs" / "batch_infer.py"), "/etc/sparkinfer/job.yaml"]
    assert words[-2:] == job
    with subprocess.Popen(
        [ENTRYPOINT, *words[:-2], *program],
        env=environment | given | {"PATH": f"{stand_in_tini(tmp_path_factory.mktemp('bin'))}:{environment['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as spark:
        try:
            for name in ("pod/photos-exec-1", "pod/photos-exec-2"):
                api.kubectl("wait", "--for=create", name, "--namespace=sparkinfer", "--timeout=60s")
            yield api.items("pods", "--namespace=sparkinfer", "--selector=spark-role=executor")
            spark.terminate()
            spark.wait(timeout=60)
        except KubectlError as error:
            spark.kill()
            pytest.fail(f"{error}{spark.stdout.read()}")
        finally:
            spark.kill()
    assert api.items("pods", "--namespace=sparkinfer", "--selector=spark-role=executor") == []  # they went with it


def container_of(pod):
    (only,) = pod["spec"]["containers"]
    return only


def mounts_of(pod):
    """Mount path -> volume, of those that the template makes."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container_of(pod)["volumeMounts"]}


def test_the_driver_pod(driver):
    template, settings = one("driver-pod.yaml"), properties()
    assert template["metadata"]["labels"].items() <= driver["metadata"]["labels"].items()
    spec, container = driver["spec"], container_of(driver)
    assert spec["serviceAccountName"] == settings["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"] == template["spec"]["securityContext"]
    assert spec["affinity"] == template["spec"]["affinity"]
    assert container["image"] == settings["spark.kubernetes.container.image"]
    assert container["securityContext"] == RESTRICTED
    # 4 GiB of heap and Spark's 40 % for a Python driver
    assert container["resources"] == {
        "limits": {"memory": "5734Mi"},
        "requests": {"cpu": "1", "memory": "5734Mi"},
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports | {"spark-connect": 15002} == {
        "metrics": 9095,
        "spark-ui": 4040,
        "driver-rpc-port": 7078,
        "blockmanager": 7079,
        "spark-connect": 15002,  # newer Sparks name it
    }
    assert mounts_of(driver)["/etc/sparkinfer"]["configMap"]["name"] == "sparkinfer-job"
    assert mounts_of(driver)["/var/data/spark-local"]["name"] == "spark-local-dir-1"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_the_driver_gets_no_spot_node(driver):
    keys = {toleration["key"] for toleration in driver["spec"]["tolerations"]}
    assert keys == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}  # every pod's


def test_the_driver_runs_the_job(driver, tmp_path):
    program, *command = what_runs(container_of(driver)["args"], environment_of(driver), tmp_path)
    assert program == "opt/spark/bin/spark-submit"
    assert command[:4] == ["--conf", f"spark.driver.bindAddress={POD_IP}", "--deploy-mode", "client"]
    assert command[-2:] == ["local:///opt/sparkinfer/jobs/batch_infer.py", "/etc/sparkinfer/job.yaml"]


def test_the_driver_finds_its_settings_and_the_executors_template(api, driver):
    maps = {each["metadata"]["name"]: each["data"] for each in api.items("configmaps", "--namespace=sparkinfer")}
    mounted = [volume["configMap"] for volume in driver["spec"]["volumes"] if "items" in volume.get("configMap", {})]
    files = {item["path"]: maps[each["name"]][item["key"]] for each in mounted for item in each["items"]}
    assert yaml.safe_load(files["pod-spec-template.yml"]) == one("executor-pod.yaml")
    assert "spark.executor.resource.gpu.amount=1\n" in files["spark.properties"]


def test_executor_pods_have_a_gpu_each(executors):
    assert len(executors) == 2
    for pod in executors:
        # 12 GiB of heap and 6 GiB beside it
        assert container_of(pod)["resources"] == {
            "limits": {"memory": "18Gi", "nvidia.com/gpu": "1"},
            "requests": {"cpu": "4", "memory": "18Gi", "nvidia.com/gpu": "1"},
        }


def test_executor_pods_go_when_the_drivers_pod_goes(executors, nightly):
    for pod in executors:
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "nightly", nightly["metadata"]["uid"])


def test_executor_pods_may_run_on_spot_gpu_nodes(executors):
    template = one("executor-pod.yaml")["spec"]
    for pod in executors:
        assert pod["spec"]["affinity"] == template["affinity"]
        for toleration in template["tolerations"]:
            assert toleration in pod["spec"]["tolerations"]


def test_executor_pods_are_restricted(executors):
    template = one("executor-pod.yaml")["spec"]
    for pod in executors:
        spec = pod["spec"]
        assert spec["securityContext"] == template["securityContext"]
        assert container_of(pod)["securityContext"] == RESTRICTED
        assert spec["serviceAccountName"] == "sparkinfer-executor"
        assert spec["automountServiceAccountToken"] is False
        assert not any("token" in mount["name"] for mount in container_of(pod)["volumeMounts"])


def test_executor_pods_keep_local_data_and_shared_memory_in_memory(executors):
    for pod in executors:
        mounts = mounts_of(pod)
        assert mounts["/var/data/spark-local"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
        assert mounts["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
        assert mounts["/tmp"]["emptyDir"] == {"sizeLimit": "20Gi"}
        assert environment_of(pod)["SPARK_LOCAL_DIRS"] == "/var/data/spark-local"


def test_executor_pods_give_their_work_away_before_they_stop(executors):
    for pod in executors:
        assert container_of(pod)["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
        assert pod["spec"]["terminationGracePeriodSeconds"] == 120


def test_executor_pods_start_an_executor(executors, tmp_path):
    for number, pod in enumerate(sorted(executors, key=lambda pod: pod["metadata"]["name"]), start=1):
        program, *command = what_runs(container_of(pod)["args"], environment_of(pod), tmp_path)
        assert program == "jvm/bin/java"
        assert {"-XX:+UseG1GC", "-Xmx12288m"} < {*command}
        options = command[command.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend") + 1 :]
        told = dict(zip(options[::2], options[1::2], strict=True))
        assert told["--driver-url"].startswith("spark://CoarseGrainedScheduler@127.0.0.1:")
        assert (told["--executor-id"], told["--cores"], told["--hostname"]) == (str(number), "4", POD_IP)
        assert told["--podName"] == f"photos-exec-{number}"
