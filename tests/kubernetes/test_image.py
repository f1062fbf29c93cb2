"""The image's parts that need no Docker: its Dockerfile, what it installs, and the scripts that Spark calls in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparkinfer import __version__
from tests.kubernetes.container import what_runs
from tests.kubernetes.manifests import ROOT

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
EXECUTOR = {
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "12288m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "photos-exec-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def hadolint(*arguments, text=None):
    tool = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([tool, "--no-color", *arguments], input=text, capture_output=True, text=True, check=False)
    return done.stdout


def test_the_dockerfile_is_clean():
    assert hadolint(DOCKER / "Dockerfile") == ""


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("FROM python:latest", "DL3007"),
        ("FROM python:3.11.14\nUSER root", "DL3002"),
        ("FROM python:3.11.14\nRUN pip install torch", "DL3013"),
    ],
)
def test_a_corrupted_dockerfile_is_refused(line, rule):
    assert rule in hadolint("-", text=f"{line}\n")


def test_what_is_copied_is_there_and_not_ignored():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = (word for word in line.split() if not word.startswith("--"))
        copied.update(sources)
    assert {"sparkinfer", "jobs", "conf"} < copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == each or source.startswith(f"{each}/") for each in allowed)
    assert {each for each in allowed if not any(source.startswith(each) for source in copied)} == set()


def test_the_readers_example_names_this_version():
    assert set(re.findall(r"sparkinfer:(\S+)-(?:cuda|cpu)", DOCKERFILE)) == {__version__}


def requirements(extras):
    command = [sys.executable, DOCKER / "requirements.py", extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_the_image_installs_is_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert requirements("onnx,torch").stdout.splitlines() == [
        *project["dependencies"],
        *extras["onnx"],
        *extras["torch"],
    ]


def test_every_default_extra_exists():
    for extras in re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE):
        assert requirements(extras).returncode == 0


def test_an_unknown_extra_is_refused():
    done = requirements("onnx,tensorflow")
    assert done.returncode == 1
    assert "no extra named 'tensorflow'; there are: " in done.stderr


def test_the_driver_is_spark_submit_in_client_mode(tmp_path):
    arguments = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py", "a b"]
    assert what_runs(arguments, {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"}, tmp_path) == [
        "opt/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.1.2.3", "--deploy-mode", "client"),
        *arguments[1:],
    ]


def test_the_executor_gets_everything_from_variables(tmp_path):
    options = {f"SPARK_JAVA_OPT_{i}": f"-Dnumber={i} is '{i}'" for i in range(11)}
    program, *command = what_runs(["executor"], EXECUTOR | options, tmp_path)
    assert program == "jvm/bin/java"
    assert command == [
        *options.values(),  # in their order, with their spaces
        *("-Xms12288m", "-Xmx12288m", "-cp", "/opt/spark/conf:/opt/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078", "--executor-id", "7", "--cores", "4"),
        *("--app-id", "spark-1", "--hostname", "10.1.2.3", "--resourceProfileId", "0", "--podName", "photos-exec-7"),
    ]


def test_more_class_paths_come_behind(tmp_path):
    more = {"HADOOP_CONF_DIR": "/etc/hadoop", "SPARK_CLASSPATH": "/a.jar", "SPARK_EXTRA_CLASSPATH": "/b/*"}
    command = what_runs(["executor"], EXECUTOR | more, tmp_path)
    assert command[command.index("-cp") + 1] == "/opt/spark/conf:/etc/hadoop:/opt/spark/jars/*:/a.jar:/b/*"


def test_a_missing_variable_is_named(tmp_path):
    given = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    with pytest.raises(subprocess.CalledProcessError) as caught:
        what_runs(["executor"], given, tmp_path)
    assert "SPARK_DRIVER_URL: unbound variable" in caught.value.stderr


def test_anything_else_is_run_as_it_is(tmp_path):
    assert what_runs(["printf", r"%s\0", "a b", "c"], {}, tmp_path) == ["a b", "c"]


def test_decommissioning_tells_the_executor_and_waits_for_its_end():
    # A process that looks like an executor: argv[0] is a java, and the backend's name stands among its arguments.
    program = "trap 'kill $!; echo told; read -r; exit 7' PWR; sleep 60 <&- & echo up; wait"
    look = 'exec -a /opt/jdk/bin/java bash -c "$0" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend'
    command = ["bash", "-c", look, program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout.readline() == "up\n"
        with subprocess.Popen([DOCKER / "decom.sh"]) as hook:
            assert executor.stdout.readline() == "told\n"
            assert hook.poll() is None
            executor.stdin.write("done\n")
            executor.stdin.flush()
            assert executor.wait(timeout=60) == 7
            assert hook.wait(timeout=60) == 0


def test_decommissioning_without_an_executor_is_no_error():
    subprocess.run([DOCKER / "decom.sh"], check=True, timeout=60)


@pytest.mark.parametrize("name", ["entrypoint.sh", "decom.sh"])
def test_scripts_can_be_run(name):
    assert os.access(DOCKER / name, os.X_OK)
