"""Image bytes to an upright RGB (or grey) picture, or a coded row error. Executor side; nothing here pickles.

Colours come out as a viewer shows them, by these rules:

- Transparent pixels lie over `spec.background`: (alpha x colour + (255 - alpha) x background) / 255, rounded to the
  nearest whole number. Palette and colour-key transparency count as alpha.
- 16 bits a sample become 8 by their high byte, as Pillow itself does for 16-bit RGB. A colour key of a 16-bit RGB PNG
  is compared by high bytes too: Pillow gives no more.
- 12-bit grey TIFF likewise by its highest 8 bits; grey TIFF whose zero is white is inverted.
- 32-bit, signed and floating-point grey has no agreed black and white. Floats within [0, 1] are times 255; all else is
  stretched from its own smallest value (0) to its own largest (255). NaN is black.
- CMYK: (255 - ink) x (255 - black) / 255. CMYK JPEG is taken as inverted, as Adobe writes it and browsers read it.
- Colour profiles and gamma are not applied.
- Of animations and many-page files the first frame.
- `spec.exif: false` leaves EXIF's orientation alone; a TIFF's own orientation tag is part of the format and always
  applied.

What the formats do not protect cannot be noticed: a flipped bit inside JPEG, GIF or WebP data may give another
picture. PNG has checksums, and they are checked.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image

from sparkinfer.core.errors import ErrorCode, RowError, SpecError, Stage
from sparkinfer.core.registry import load_attribute
from sparkinfer.executor.image_format import ImageFormat, check_pixels, format_names, identify
from sparkinfer.executor.preprocess import resized

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from PIL.ImageFile import ImageFile

    from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = ["decode", "decoder_of", "pillow_settings"]

FAST_MARGIN = 2
"""How much larger than wanted a picture decoded at reduced scale stays at least, so that resizing still has something
to smooth. Measured on 200 photographs, efficientnet-lite0: enlarged to 12 megapixels, 34 instead of 203 ms and the
same top class for 99.5 % (margin 1: 34 ms, 99.0 %); at 0.8 megapixels margin 1 would keep 98.5 % only. Confidences
move by up to 0.06, which is why `exact` is the default."""

STRIP_PIXELS = 1 << 22
"""Pixels that are converted at once where the conversion takes several times the memory of the picture."""

COPIED_BYTES = 8 << 20
"""Longer files are read where they lie: there the copy's memory counts for more than its time."""

EXIF_ORIENTATION = 0x0112
"""Tag of EXIF and TIFF: where the picture's first row and column are, 1 to 8."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture of this orientation upright: EXIF 2.32, tag Orientation."""


Decoder = Callable[["bytes | memoryview", "PreprocessSpec"], Image.Image]


def decoder_of(spec: PreprocessSpec) -> Decoder:
    """The decoder that `spec.decoder` names: ours, or a function "module:function" with the signature of `decode`.

    Raises:
        SpecError: there is no such function.
    """
    if spec.decoder == "pillow":
        return decode
    try:
        found: Decoder = load_attribute(spec.decoder)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"no decoder {spec.decoder!r}: {error}",
            key="preprocess.decoder",
            allowed=["pillow", "module:function"],
            hint="the module must be importable on the executors too",
        ) from error
    if not callable(found):
        raise SpecError(
            f"decoder {spec.decoder!r} is a {type(found).__name__}, not a function",
            key="preprocess.decoder",
            allowed=["pillow", "module:function"],
        )
    return found


def decode(data: bytes | memoryview, spec: PreprocessSpec) -> Image.Image:
    """Decodes one image.

    Safe to call from many threads at once. Pillow is never asked to repair truncated files.

    Args:
        data: the file's bytes; anything with the buffer protocol. `bytes` are read in place; another buffer of less
            than `COPIED_BYTES` is copied once, compressed, which takes less time than a reader without the copy (6
            against 24 us on a photograph).
        spec: `exif`, `background`, `max_pixels` and `channels` are used.

    Returns:
        A loaded image of mode RGB, or L when `spec.channels` is grey, of the image's own size.

    Raises:
        RowError: EMPTY, UNSUPPORTED_FORMAT, TRUNCATED, CORRUPT, TOO_MANY_PIXELS or OUT_OF_MEMORY; nothing else.
    """
    view = memoryview(data).cast("B")
    if not view:
        raise RowError(ErrorCode.EMPTY, "zero bytes")
    kind = identify(view)
    if kind is None:
        raise RowError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"not an image that can be decoded (begins with {bytes(view[:12])!r}); known: {', '.join(format_names())}",
        )
    try:
        with pillow_settings:
            image = _load(kind, view, spec)
            picture = _to_rgb(image, view, spec)
            return _upright(picture, image) if spec.exif else picture
    except RowError:
        raise
    except Exception as error:
        raise _row_error(error, kind, view) from error


def _load(kind: ImageFormat, view: memoryview, spec: PreprocessSpec) -> ImageFile:
    """Reads header and pixels. Where metadata may be what hinders, a second attempt goes without."""
    for width, height in kind.sizes(view) if kind.sizes else ():
        check_pixels(width, height, spec.max_pixels)
    if kind.verify:
        kind.verify(view)
    try:
        return _open_and_load(kind, view, spec)
    except (RowError, MemoryError):
        raise
    except Exception as error:
        if kind.essence is None:
            raise
        first = error.with_traceback(None)  # which holds the picture as far as it came
    try:
        return _open_and_load(kind, memoryview(kind.essence(view)), spec)
    except Exception:
        raise first from first.__cause__


def _open_and_load(kind: ImageFormat, view: memoryview, spec: PreprocessSpec) -> ImageFile:
    image = kind.open(_reader(view))
    check_pixels(image.width, image.height, spec.max_pixels)
    if kind.name == "TIFF":  # a tile may be larger than the picture, and is allocated whole
        tile = [image.tag_v2.get(tag, 1) for tag in (322, 323)]  # type: ignore[attr-defined]
        check_pixels(int(tile[0]), int(tile[1]), spec.max_pixels)
    if spec.decode == "fast" and spec.resize is not None:
        width, height = resized(image.width, image.height, spec.resize)
        # Of the sizes that a JPEG's blocks can be decoded at, the smallest that still is twice what is wanted; a
        # picture that is not a JPEG knows no such sizes and stays as it is.
        image.draft(None, (FAST_MARGIN * width, FAST_MARGIN * height))
    image.load()
    return image


def _reader(view: memoryview) -> IO[bytes]:
    """The bytes as a file: in place where they are one `bytes` object or many, else copied."""
    if isinstance(view.obj, bytes) and len(view.obj) == len(view):
        return io.BytesIO(view.obj)
    return io.BytesIO(view) if len(view) < COPIED_BYTES else io.BufferedReader(_InPlace(view))


class _InPlace(io.RawIOBase):
    """A buffer read where it lies."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence])
        return self._at

    def readinto(self, target: WriteableBuffer) -> int:
        part = self._view[self._at : self._at + memoryview(target).nbytes]
        memoryview(target)[: len(part)] = part
        self._at += len(part)
        return len(part)


def _to_rgb(image: ImageFile, view: memoryview, spec: PreprocessSpec) -> Image.Image:
    """RGB, or L for grey, by the rules of the module's docstring; the image itself when it is that already."""
    wanted = "L" if spec.channels == "grey" else "RGB"
    picture: Image.Image = image
    if image.format == "PNG":
        _scale_colour_key(image, bit_depth=view[24])
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        picture = _to_eight_bits(image)
    if picture.mode == wanted and not picture.has_transparency_data:
        return picture
    if picture.has_transparency_data:
        picture = _over(picture, spec.background)
    elif picture.mode not in ("RGB", "L"):
        picture = picture.convert("RGB")
    return picture if picture.mode == wanted else picture.convert(wanted)


def _over(picture: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """RGB: the picture over a background, in strips: as a whole it would take twice the memory."""
    behind = Image.new("RGB", picture.size, background)
    for left, top, right, bottom in _strips(picture.width, picture.height):
        strip = picture.crop((left, top, right, bottom))
        if strip.mode == "La":  # premultiplied: Pillow converts it to LA only
            strip = strip.convert("LA")
        strip = strip.convert("RGBA")
        behind.paste(strip, (left, top), strip)
    return behind


def _strips(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of strips of some million pixels that make the whole."""
    rows = max(1, STRIP_PIXELS // width)
    return ((0, top, width, min(height, top + rows)) for top in range(0, height, rows))


def _scale_colour_key(image: ImageFile, bit_depth: int) -> None:
    """Brings the transparent colour of a PNG to the scale of the decoded samples, which Pillow leaves to us."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int):
        image.info["transparency"] = key * 255 // (2**bit_depth - 1)
    elif image.mode == "RGB" and isinstance(key, tuple):
        image.info["transparency"] = tuple(sample >> bit_depth - 8 for sample in key)


def _to_eight_bits(image: ImageFile) -> Image.Image:
    """L (LA with a colour key) of grey with more than 8 bits a sample."""
    values = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    zero_is_white = tags.get(262) == 0
    if image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I"):
        shift = tags.get(258, (16,))[0] - 8  # bits a sample
        grey = (values >> shift).astype(np.uint8)
    else:
        if image.mode == "I" and tags.get(339, (1,))[0] == 1:  # unsigned, which Pillow keeps as signed
            values = values.view(np.uint32)
        grey = _stretch(values)
    picture = Image.fromarray(255 - grey if zero_is_white else grey)
    if "transparency" in image.info:
        alpha = np.where(values == image.info["transparency"], 0, 255).astype(np.uint8)
        return Image.merge("LA", (picture, Image.fromarray(alpha)))
    return picture


def _stretch(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """uint8 of any numbers: [0, 1] times 255 where floats lie in it, else from the smallest to the largest value."""
    rows = max(1, STRIP_PIXELS // values.shape[1])
    strips = [values[top : top + rows] for top in range(0, len(values), rows)]
    finite = (strip[np.isfinite(strip)] for strip in strips)
    ends = [(float(numbers.min()), float(numbers.max())) for numbers in finite if numbers.size]
    low, high = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0.0, 0.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    if low == high:
        high = low + 1  # a flat picture is black
    levels = np.empty(values.shape, np.uint8)
    for top, strip in zip(range(0, len(values), rows), strips, strict=True):
        numbers = np.nan_to_num(strip.astype(np.float64), nan=low, posinf=high, neginf=low)
        levels[top : top + rows] = np.rint((numbers - low) * (255 / (high - low)))
    return levels


def _upright(picture: Image.Image, image: ImageFile) -> Image.Image:
    """Turned by the EXIF orientation of the file; as it is where there is none, or the EXIF block is damaged."""
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION)
    except Exception:
        return picture
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return picture if turn is None else picture.transpose(turn)


_NOT_KNOWN = re.compile(
    r"unsupported|not (?:yet )?supported|not available|not installed|cannot handle|unknown pixel mode"
    r"|unknown data organi",
    re.IGNORECASE,
)
_ENDS_EARLY = re.compile(r"truncated|not enough image data|reached eof", re.IGNORECASE)
_NO_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


def _row_error(error: Exception, kind: ImageFormat, view: memoryview) -> RowError:
    """Whatever Pillow raised, as a code. Its classes do not tell damage apart, so the container is asked first.

    Import and name errors come from a Pillow that was built without a codec.
    """
    text = f"{kind.name}: {str(error) or type(error).__name__}"
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return RowError(ErrorCode.OUT_OF_MEMORY, text, stage=Stage.DECODE)
    if kind.ends_early(view):
        return RowError(ErrorCode.TRUNCATED, f"{kind.name}: the data ends early, after {len(view)} bytes ({error})")
    if isinstance(error.__cause__, KeyError):  # a code that is in none of Pillow's tables
        return RowError(ErrorCode.UNSUPPORTED_FORMAT, f"{kind.name}: a kind that Pillow does not know (code {error})")
    if isinstance(error, NotImplementedError | ImportError | NameError) or _NOT_KNOWN.search(text):
        return RowError(ErrorCode.UNSUPPORTED_FORMAT, text)
    if kind.name == "netpbm" and _ENDS_EARLY.search(text):
        return RowError(ErrorCode.TRUNCATED, text)
    return RowError(ErrorCode.CORRUPT, text)


class _PillowSettings:
    """Holds Pillow's process-wide switches where decoding needs them, and puts them back when no thread decodes.

    The pixel limit is `spec.max_pixels`, checked before decoding, so Pillow's own is off; its warnings about odd
    files would be one line a row in the executor's log; AVIF decodes in the calling thread, since the other cores
    have rows of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._kept = (Image.MAX_IMAGE_PIXELS, AvifImagePlugin.DEFAULT_MAX_THREADS)
                Image.MAX_IMAGE_PIXELS, AvifImagePlugin.DEFAULT_MAX_THREADS = None, 1
                self._warnings = warnings.catch_warnings()
                self._warnings.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._warnings.__exit__(None, None, None)
                Image.MAX_IMAGE_PIXELS, AvifImagePlugin.DEFAULT_MAX_THREADS = self._kept


pillow_settings = _PillowSettings()
"""Held around all that Pillow does to one picture, cropping too: there Pillow reads its pixel limit twice, and fails
when another thread takes it away in between."""
