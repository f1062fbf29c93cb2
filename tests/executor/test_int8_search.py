from __future__ import annotations

import pytest

from sparkinfer.executor.int8_search import Int8Settings, search_int8
from sparkinfer.executor.trial import Difference

WORST_FIRST = ("c", "a", "d", "b", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p")
LAYERS = tuple(sorted(WORST_FIRST))


class Tool:
    """Writes down what it is asked for; `agreement` says how good that is."""

    layers = LAYERS

    def __init__(self, agreement):
        self.agreement = agreement
        self.asked = []
        self.alone = []
        self.last = None

    def quantize(self, target, **settings):
        self.last = Int8Settings(**settings)
        self.asked.append(self.last)
        target.write_text(str(self.last))

    def quantize_alone(self, target, layer, *, calibration):
        self.alone.append(calibration)
        target.write_text(layer)

    def judge(self, _path):
        return Difference(self.agreement(self.last), 0.1, 1 - self.agreement(self.last))

    def error(self, path):
        return 1 / (1 + WORST_FIRST.index(path.read_text()))

    def search(self, target, min_agreement=0.98):
        said = []
        found = search_int8(
            self, target, judge=self.judge, error=self.error, min_agreement=min_agreement, say=said.append
        )
        assert len([line for line in said if line.startswith("INT8")]) == len(found.attempts) == len(self.asked)
        return found


def test_the_first_setting_that_is_good_enough_is_kept(tmp_path):
    tool = Tool(lambda settings: 0.96 + 0.01 * settings.layers_only + 0.02 * (settings.calibration == "entropy"))
    found = tool.search(tmp_path / "q")
    assert found.found == Int8Settings(calibration="entropy")
    assert [attempt.agreement for attempt in found.attempts] == [0.96, 0.97, 0.98]
    assert (tmp_path / "q").read_text() == str(found.found)


def test_then_the_most_sensitive_layers_stay_in_float(tmp_path):
    def agreement(settings):
        best = settings.calibration == "percentile"
        return (
            0.9 + 0.02 * best + 0.01 * len({"c", "a", "d"} & set(settings.exclude)) + 0.04 * ("b" in settings.exclude)
        )

    tool = Tool(agreement)
    found = tool.search(tmp_path / "q")
    assert found.found == Int8Settings(calibration="percentile", exclude=("c", "a", "d", "b"))
    assert set(tool.alone) == {"percentile"}
    assert len(tool.alone) == len(LAYERS)
    whole = {(s.calibration, s.activations, s.reduce_range, s.layers_only) for s in tool.asked if not s.exclude}
    assert whole == {
        ("minmax", "uint8", False, False),
        ("entropy", "uint8", False, False),
        ("percentile", "uint8", False, False),
        ("minmax", "int8", False, False),
        ("minmax", "uint8", True, False),
        ("minmax", "uint8", False, True),
    }


def test_it_gives_up_at_half_the_layers(tmp_path):
    tool = Tool(lambda _: 0.5)
    found = tool.search(tmp_path / "q")
    assert found.found is None
    assert [len(settings.exclude) for settings in tool.asked[6:]] == [1, 2, 3, 4, 6, 8]


def test_the_setting_of_least_error_goes_on(tmp_path):
    class Noisy(Tool):
        def judge(self, _path):
            return Difference(0.4 if self.last.reduce_range else 0.5, 0.3, 0.1 if self.last.reduce_range else 0.2)

    tool = Noisy(None)
    assert tool.search(tmp_path / "q").found is None
    assert all(settings.reduce_range for settings in tool.asked[6:])


def test_settings_for_a_person():
    assert str(Int8Settings()) == "minmax, U8S8, per channel"
    given = Int8Settings("entropy", "int8", reduce_range=True, layers_only=True, exclude=("a", "b"))
    assert str(given) == (
        "entropy, S8S8, per channel, 7-bit weights, layers with weights only, 2 most sensitive layers in float"
    )


@pytest.mark.parametrize("agreement", [0.98, 1.0])
def test_the_bound_itself_is_enough(tmp_path, agreement):
    assert Tool(lambda _: agreement).search(tmp_path / "q", agreement).found == Int8Settings()
