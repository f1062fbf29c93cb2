"""What `preprocess.decode: fast` changes, and decoders of one's own."""

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decode, decoder_of
from tests.images import CORNERS, corners, good_image


@pytest.mark.parametrize(
    ("size", "resize", "expected"),
    [
        ((1024, 800), 100, (256, 200)),  # 1/4 leaves twice the target, 1/8 would not
        ((1024, 800), 200, (512, 400)),
        ((1024, 800), 201, (1024, 800)),
        ((4000, 3000), 256, (1000, 750)),
        ((1600, 1600), 100, (200, 200)),
        ((1024, 800), None, (1024, 800)),
        ((1024, 800), (100, 128), (256, 200)),
    ],
)
def test_fast_decodes_large_jpegs_at_a_scale_that_leaves_twice_the_target(size, resize, expected) -> None:
    data = good_image("JPEG", size)
    assert decode(data, PreprocessSpec(resize=resize, decode="fast")).size == expected
    assert decode(data, PreprocessSpec(resize=resize)).size == size


def test_other_formats_and_colours_do_not_mind_fast() -> None:
    spec = PreprocessSpec(resize=50, decode="fast")
    assert decode(good_image("PNG", (800, 600)), spec).size == (800, 600)
    small = decode(good_image("JPEG", (800, 600)), spec)
    assert small.size == (200, 150)
    for found, wanted in zip(corners(small), CORNERS, strict=True):
        assert found == pytest.approx(wanted, abs=6)


def test_a_decoder_of_ones_own() -> None:
    assert decoder_of(PreprocessSpec(decoder="tests.executor.own_decoder:grey"))(b"x", PreprocessSpec()).size == (8, 8)
    for name in ("tests.executor.own_decoder:missing", "no.such.module:f", "nonsense"):
        with pytest.raises(SpecError, match=name):
            decoder_of(PreprocessSpec(decoder=name))
    with pytest.raises(SpecError, match="'os:path' is a module, not a function"):
        decoder_of(PreprocessSpec(decoder="os:path"))
