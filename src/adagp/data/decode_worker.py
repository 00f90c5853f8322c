"""The program of a decoding process: image files to squares of raw pixels, one request a line.

It is started as a script and imports Pillow alone, so that it runs in a tenth of a second and a few megabytes, and so
that a program that uses `adagp` needs no `if __name__ == "__main__"`. It ends when its input does: a parent that was
killed leaves no process behind.

A request is a JSON object with `path`, `size` and `fit`; the answer is a JSON object in a line of its own, either with
`error` or with the fields of `decoding.Placement`, followed by size x size x 3 bytes.
"""

import json
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

# What photographs come as, often under a wrong name. Not all that Pillow knows: for EPS it would run another program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
MAX_PIXELS = 89_478_485  # Pillow's own limit, 256 MB of colour; also for an image scaled up
GREY = (128, 128, 128)  # what surrounds a letterboxed image: the middle of the scale


def decode(path: str, size: int, fit: str) -> tuple[Image.Image, dict[str, int]]:
    """A size x size RGB image of the file, and where the file's pixels went."""
    if not Path(path).is_file():
        raise ValueError("it is no regular file")  # opening a pipe would wait for ever
    with Image.open(path, formats=FORMATS) as source:
        width, height = source.size
        edge = max(width, height) if fit == "letterbox" else min(width, height)
        scaled = max(1, round(width * size / edge)), max(1, round(height * size / edge))
        if scaled[0] * scaled[1] > MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are too narrow to be cut to a square of {size}")
        source.draft("RGB", scaled)  # a JPEG far too large is decoded at a half, a quarter or an eighth right away
        image = source.convert("RGB")
    if image.size != scaled:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (size - scaled[0]) // 2, (size - scaled[1]) // 2
    square = Image.new("RGB", (size, size), GREY)
    square.paste(image, (left, top))  # what does not fit is cut off
    place = {"scaled_width": scaled[0], "scaled_height": scaled[1], "left": left, "top": top}
    return square, {"width": width, "height": height, **place}


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The answer's head and its bytes; whatever is wrong with a file is told, and the next request served."""
    try:
        image, placement = decode(**request)
        return placement, image.tobytes()
    except Exception as error:  # a damaged image can raise nearly anything, by its format
        return {"error": f"{type(error).__name__}: {error}"}, b""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer every request in turn."""
    for line in requests:
        head, pixels = answer(json.loads(line))
        answers.write(json.dumps(head).encode() + b"\n" + pixels)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may still save its work
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    serve(sys.stdin.buffer, sys.stdout.buffer)
