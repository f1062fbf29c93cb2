"""The driver's socket: takes what its run's tasks have signed, from one address, and nothing else."""

from __future__ import annotations

import re
import socket
import sys
from queue import Queue

import pytest
import zmq

from sparkinfer.core.errors import MissingExtraError
from sparkinfer.core.telemetry import MAX_MESSAGE_BYTES, pack
from sparkinfer.driver.watching.receiver import Receiver, bind_host, driver_host
from tests.core.test_telemetry import message

PATIENCE_S = 30


class Taken:
    """Notes what comes."""

    def __init__(self):
        self.news = Queue()

    def take(self, one):
        self.news.put(one)

    def reject(self):
        self.news.put("rejected")

    def next(self):
        return self.news.get(timeout=PATIENCE_S)


@pytest.fixture
def taken():
    return Taken()


@pytest.fixture
def receiver(taken):
    opened = Receiver(taken, "run-1", "127.0.0.1", "127.0.0.1", interval_s=1.0)
    yield opened
    opened.close()


@pytest.fixture
def sender(receiver):
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(receiver.target.address)
    yield push
    context.destroy(0)


def test_messages_come_as_they_were_sent(receiver, sender, taken):
    for number in (1, 2):
        sender.send(pack(message(sequence=number), receiver.target.token))
        assert taken.next() == message(sequence=number)


def test_what_is_not_signed_by_this_run_is_refused(receiver, sender, taken):
    for data in (pack(message(), bytes(32)), b"", b"noise", pack(message(), receiver.target.token)[:-1]):
        sender.send(data)
        assert taken.next() == "rejected"
    sender.send_multipart([b"two", b"frames"])
    assert taken.next() == "rejected"
    sender.send(pack(message(), receiver.target.token))  # it goes on
    assert taken.next() == message()


def test_who_sends_too_much_is_cut_off(receiver, sender, taken):
    monitor = sender.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    sender.send(bytes(MAX_MESSAGE_BYTES + 1))
    assert monitor.poll(1000 * PATIENCE_S)
    sender.disable_monitor()
    monitor.close()
    assert taken.news.empty()


def test_bytes_of_another_protocol_do_no_harm(receiver, sender, taken):
    port = int(receiver.target.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n" * 100)
    sender.send(pack(message(), receiver.target.token))
    while (came := taken.next()) == "rejected":  # ZeroMQ takes some bytes for an old version of its own
        pass
    assert came == message()


def test_it_listens_on_one_address(receiver):
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", receiver.target.address)
    port = int(receiver.target.address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):  # all of 127/8 is this machine, on Linux
        socket.create_connection(("127.0.0.2", port), timeout=PATIENCE_S)


def test_every_run_has_a_token_and_a_port_of_its_own(receiver, taken):
    other = Receiver(taken, "run-2", "localhost", "127.0.0.1", interval_s=1.0)
    try:
        assert other.target.token != receiver.target.token
        assert len(other.target.token) == 32
        assert other.target.address != receiver.target.address
        assert other.target.address.startswith("tcp://localhost:")
    finally:
        other.close()


def test_closing_takes_what_has_come_and_frees_the_port(taken):
    opened = Receiver(taken, "run-1", "127.0.0.1", "127.0.0.1", interval_s=1.0)
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(opened.target.address)
        for number in range(1, 101):
            push.send(pack(message(sequence=number), opened.target.token))
        assert taken.next().sequence == 1
        opened.close()
        push.linger = 0
    seen = [taken.next().sequence for _ in range(taken.news.qsize())]
    assert seen == list(range(2, 2 + len(seen)))
    port = int(opened.target.address.rpartition(":")[2])
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])  # reserved by RFC 5737 and RFC 2606
def test_a_host_that_is_not_this_machine(taken, host):
    with pytest.raises(OSError, match=r"192\.0\.2\.1|Name|name"):
        Receiver(taken, "run-1", host, host, interval_s=1.0)


def test_without_pyzmq(taken, monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingExtraError) as caught:
        Receiver(taken, "run-1", "127.0.0.1", "127.0.0.1", interval_s=1.0)
    assert caught.value.hint == 'pip install "sparkinfer[progress]"'


def test_the_drivers_host_is_spark_s_or_loopback():
    remote = {"spark.driver.host": "10.1.2.3"}
    assert driver_host({"spark.master": "yarn", **remote}) == "10.1.2.3"
    assert driver_host({"spark.master": "spark://head:7077", **remote}) == "10.1.2.3"
    for master in ("local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"):
        assert driver_host({"spark.master": master, **remote}) == "127.0.0.1"


def test_it_listens_where_spark_does_but_never_everywhere():
    yarn = {"spark.master": "yarn", "spark.driver.host": "10.1.2.3"}
    assert bind_host(yarn) == "10.1.2.3"
    assert bind_host({**yarn, "spark.driver.bindAddress": "172.17.0.2"}) == "172.17.0.2"
    assert bind_host({**yarn, "spark.driver.bindAddress": "0.0.0.0"}) == "10.1.2.3"
    assert bind_host({"spark.master": "local[*]", "spark.driver.bindAddress": "172.17.0.2"}) == "127.0.0.1"
