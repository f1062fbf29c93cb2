"""A decoder that a person might bring."""

from __future__ import annotations

from PIL import Image


def grey(data: bytes | memoryview, spec: object) -> Image.Image:
    """The same grey picture for everything."""
    return Image.new("RGB", (8, 8), (128, 128, 128))
