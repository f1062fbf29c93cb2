from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from sparkinfer.core.protocols import Runtime
from sparkinfer.executor import model_cache
from sparkinfer.executor.model_cache import ModelCache

closed: list[Runtime] = []


class Loaded(Runtime):
    def load(self, request): ...

    def infer(self, batch): ...

    def signature(self): ...

    def close(self):
        closed.append(self)


@pytest.fixture
def eager_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_one_load_per_key():
    cache = ModelCache()
    first = cache.get("a", Loaded)
    assert cache.get("a", Loaded) is first
    assert cache.get("b", Loaded) is not first
    assert cache.loads == 2


def test_threads_wait_for_one_load(eager_threads):
    cache = ModelCache()
    together = threading.Barrier(8)
    loading, seen = [], []

    def load():
        loading.append(1)
        for _ in range(50_000):  # long enough for the others to come
            pass
        return Loaded()

    def use():
        together.wait()
        seen.append(cache.get("a", load))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loading) == cache.loads == 1
    assert len(seen) == 8
    assert len(set(map(id, seen))) == 1


def test_two_keys_load_side_by_side():
    cache = ModelCache()
    both_loading = threading.Barrier(2, timeout=60)

    def load():
        both_loading.wait()
        return Loaded()

    threads = [threading.Thread(target=cache.get, args=(key, load)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.loads == 2


def test_a_failed_load_is_tried_again():
    cache = ModelCache()

    def fail():
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        cache.get("a", fail, 5)
    assert cache.loads == 0
    assert isinstance(cache.get("a", Loaded, 5), Loaded)
    assert cache.loads == 1


def test_the_least_recently_used_goes_and_is_freed():
    cache = ModelCache(limit_bytes=100)
    a, b = cache.get("a", Loaded, 40), cache.get("b", Loaded, 40)
    cache.get("a", Loaded, 40)
    cache.get("c", Loaded, 40)
    assert b not in closed  # a task may still use it
    freed = weakref.ref(b)
    del b
    gc.collect()
    assert freed() is None
    assert cache.get("a", Loaded, 40) is a
    assert cache.loads == 3
    cache.get("b", Loaded, 40)
    assert cache.loads == 4


def test_one_above_the_limit_stays_alone():
    cache = ModelCache(limit_bytes=100)
    cache.get("small", Loaded, 1)
    big = cache.get("big", Loaded, 1000)
    assert cache.get("big", Loaded, 1000) is big
    cache.get("small", Loaded, 1)
    assert cache.loads == 3


def test_evict_closes():
    cache = ModelCache()
    runtime = cache.get("a", Loaded)
    assert cache.evict("a")
    assert closed[-1] is runtime
    assert not cache.evict("a")
    assert cache.get("a", Loaded) is not runtime


def test_the_process_has_one():
    before = model_cache.loads()
    key = ("test", object())
    runtime = model_cache.get_runtime(key, Loaded, 1)
    assert model_cache.get_runtime(key, Loaded, 1) is runtime
    assert model_cache.loads() == before + 1
    assert model_cache.evict(key)
