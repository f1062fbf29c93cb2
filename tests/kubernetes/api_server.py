"""A real Kubernetes API server with its etcd on this machine's loopback interface. Linux; for tests.

There is no kubelet and no scheduler, so pods are checked, stored and never run. Everything that an API server does is
real: validation, defaults, RBAC, admission (the pod security of namespaces among it) and CRDs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any, Self

from sparkinfer.executor.guard_process import die_with_parent

__all__ = ["ApiServer", "KubectlError"]

_START_SECONDS = 120.0
"""It takes 10 s on two idle cores."""


class KubectlError(Exception):
    """kubectl ended with another status than 0; the text is what it said."""


class ApiServer:
    """An API server, from `start` to `stop`.

    Args:
        programs: folder with etcd, kube-apiserver and kubectl.
        folder: for data, keys and logs.

    Attributes:
        url: where it listens.
        config: a kubeconfig with all rights.
        authority: certificate that vouches for it.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._etcd_port, self._peer_port = _free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self.authority = folder / "keys" / "apiserver.crt"
        self.config = folder / "admin.kubeconfig"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts both, and waits until the API server is ready."""
        if shutil.which("openssl") is None:
            raise RuntimeError("the API server's keys are made with openssl: apt-get install openssl")
        (self._folder / "keys").mkdir(parents=True)
        signing_key = self._folder / "keys" / "service-accounts.pem"
        subprocess.run(["openssl", "genrsa", "-out", signing_key, "2048"], check=True, capture_output=True)
        token = secrets.token_hex(16)
        tokens = self._folder / "keys" / "tokens.csv"
        tokens.write_text(f"{token},admin,admin,system:masters\n")
        tokens.chmod(0o600)
        etcd, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self._folder / 'keys'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing_key}",
            f"--service-account-signing-key-file={signing_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
        )
        self._wait(token)
        self.write_config(self.config, token)

    def stop(self) -> None:
        """Ends both."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def write_config(self, path: Path, token: str) -> Path:
        """Writes a kubeconfig for the bearer of a token."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, config: Path | None = None) -> str:
        """What kubectl prints.

        Raises:
            KubectlError: with what it says.
        """
        done = subprocess.run(
            [self._programs / "kubectl", *arguments],
            env={"PATH": os.defpath, "HOME": str(self._folder), "KUBECONFIG": str(config or self.config)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise KubectlError(done.stderr)
        return done.stdout

    def define(self, crd: dict[str, Any]) -> None:
        """Creates a custom resource definition, and waits until its resources can be used."""
        self.kubectl("create", "--filename=-", stdin=json.dumps(crd))
        name = crd["metadata"]["name"]
        deadline = time.monotonic() + _START_SECONDS
        while not any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in json.loads(self.kubectl("get", "crd", name, "--output=json"))["status"]["conditions"] or []
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} cannot be used:\n{self.kubectl('get', 'crd', name, '--output=yaml')}")
            time.sleep(0.2)

    def items(self, kind: str, *options: str) -> list[dict[str, Any]]:
        """All objects of a kind that the options choose."""
        return json.loads(self.kubectl("get", kind, "--output=json", *options))["items"]

    def _spawn(self, program: str, *options: str) -> None:
        log = self._folder / f"{program}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self._programs / program, *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - also when this process is killed
            )
        self._processes[program] = process

    def _wait(self, token: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready(token):
            for program, process in self._processes.items():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{program} did not come up:\n{self._logs()}")
            time.sleep(0.2)

    def _is_ready(self, token: str) -> bool:
        if not self.authority.exists():
            return False
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=self.authority)) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ssl.SSLError, ConnectionError):
            return False

    def _logs(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all are held until the last is found, so they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
