"""The driver's end of the tasks' messages: a socket on the driver's own address. Driver only; uses ZeroMQ (pyzmq).

What comes in is read only if it is short and signed with the run's token (`core.telemetry.unpack`). The socket answers
nothing and gives nothing away; it listens on one address, on a port that the system chooses, while the run lasts.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from sparkinfer.core.errors import MissingExtraError
from sparkinfer.core.telemetry import MAX_MESSAGE_BYTES, TaskMessage, unpack
from sparkinfer.executor.telemetry import TelemetryTarget

__all__ = ["Receiver", "Sink", "bind_host", "driver_host"]

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
"""Of randomness: as many as the hash that signs has."""

QUEUED_MESSAGES = 1_000
"""Of one sender that wait for this process, which may be busy planning: 32 MB of the longest."""

_STOP = "inproc://stop"
_LOOPBACK = "127.0.0.1"
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - what is not done


class Sink(Protocol):
    """Where messages go: `driver.telemetry.Telemetry`."""

    def take(self, message: TaskMessage) -> None:
        """One that is right."""

    def reject(self) -> None:
        """One that is not."""


def driver_host(conf: Mapping[str, str]) -> str:
    """The host that tasks know the driver by: loopback where all of them run on this machine.

    Args:
        conf: Spark's settings; `spark.master` and `spark.driver.host` are used.
    """
    return _LOOPBACK if conf["spark.master"].startswith("local") else conf["spark.driver.host"]


def bind_host(conf: Mapping[str, str]) -> str:
    """The host whose address this process listens on: one, also where Spark itself listens on all.

    Args:
        conf: as for `driver_host`, and `spark.driver.bindAddress`, which differs behind a translation of addresses.
    """
    host = driver_host(conf)
    bound = conf.get("spark.driver.bindAddress", host)
    return host if host == _LOOPBACK or bound in _EVERYWHERE else bound


class Receiver:
    """Takes messages until it is closed.

    Args:
        sink: gets them, in a thread of the receiver's.
        run_id: of the run.
        host: name or address of this machine, as tasks know it.
        bind: name or address to listen on.
        interval_s: between two messages of one process, seconds.

    Raises:
        MissingExtraError: pyzmq is not installed.
        OSError: the host is not this machine, or its address cannot be listened on.
    """

    def __init__(self, sink: Sink, run_id: str, host: str, bind: str, interval_s: float) -> None:
        try:
            import zmq
        except ImportError as error:
            raise MissingExtraError("pyzmq", extra="progress") from error
        self._sink = sink
        self._context = zmq.Context()
        try:
            self._messages, self._stop, self._stopper = (
                self._context.socket(kind) for kind in (zmq.PULL, zmq.PAIR, zmq.PAIR)
            )
            self._stop.bind(_STOP)
            self._stopper.connect(_STOP)
            port = _listen(self._messages, bind)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise OSError(f"cannot listen on {bind}: {error}") from error
        except OSError:
            self._context.destroy(0)
            raise
        address = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
        self.target = TelemetryTarget(run_id, address, secrets.token_bytes(TOKEN_BYTES), interval_s=interval_s)
        """For `TaskPlan.telemetry`."""
        self._thread = threading.Thread(target=self._run, name="sparkinfer-receiver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes what has come, and closes the socket."""
        self._stopper.send(b"")
        self._thread.join()
        self._context.destroy(0)

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._messages, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        stopped = False
        while not stopped:
            stopped = self._stop in dict(poller.poll())
            with contextlib.suppress(zmq.Again):
                while True:
                    self._take(self._messages.recv_multipart(zmq.NOBLOCK))

    def _take(self, frames: list[bytes]) -> None:
        try:
            message = unpack(b"".join(frames), self.target.token)
        except ValueError as error:
            log.debug("a message was refused: %s", error)
            self._sink.reject()
        else:
            self._sink.take(message)


def _listen(messages: Any, host: str) -> int:
    """Binds the socket to the host's address; gives the port."""
    import zmq

    address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    messages.setsockopt(zmq.IPV6, int(":" in str(address)))
    messages.setsockopt(zmq.LINGER, 0)
    messages.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
    messages.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)  # who sends more is cut off
    messages.bind(f"tcp://{f'[{address}]' if ':' in str(address) else address}:*")
    return int(messages.getsockopt(zmq.LAST_ENDPOINT).decode().rpartition(":")[2].rstrip("\0"))
