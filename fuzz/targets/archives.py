"""Data sets as files and archives: damaged, forged, with code in their pickles, and larger than they look."""

import gzip
import hashlib
import io
import pickle
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from adagp import data
from adagp.data import DataSet, Detection, ImageFiles, Translation
from adagp.data.cifar10 import load_cifar10
from adagp.data.multi30k import load_multi30k
from fuzz.case import Case, Failed, Kind, Target
from fuzz.commands import Bomb, adagp, canary, library, odd_file
from fuzz.mutate import damage, damage_text, number_text, value

Files = dict[str, bytes]
_ROOT = Path("root")
_BOMB_BYTES = 300 << 20
_DEVKIT = "VOCdevkit/VOC2007"
_CIFAR10 = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_ODD_MEMBERS = ("outside", "absolute", "link", "hard link", "device", "fifo", "twice", "folder", "long", "sparse")
_STEMS = ("train", "val", "test_2016_flickr")
_FASHION = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _make(draw: random.Random, templates: Path) -> Case:
    kind = draw.choice(list(_SETS))
    name, archive, files_of, change_of = _SETS[kind]
    _ROOT.mkdir()
    files = files_of(draw)
    done = []
    evil: dict[str, bool] = {}
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        path = draw.choice(list(files))
        about, content, code = _change(draw, path, files[path], change_of)
        evil[path] = code
        if content is None:
            del files[path]
        else:
            files[path] = content
        done.append(f"{path}: {about}")
        if not files:
            break
    if archive and draw.random() < 0.7:
        done += _write_archive(draw, _ROOT / archive, files)
    else:
        _write_files(files)
        if draw.random() < 0.1 and files:
            done.append(odd_file(draw, _ROOT / draw.choice(list(files))))
    if draw.random() < 0.04:  # the list tells of every set, whatever is wrong with one
        return Case(
            f"adagp data, {kind}: {'; '.join(done)}"[:400],
            lambda: adagp("data", "--data-root", str(_ROOT), "--json"),
            _too_large,
        )
    run = _loader(draw, name, files)
    return Case(f"{kind}: {'; '.join(done) or 'as it is'}"[:400], run, _too_large, must_refuse=any(evil.values()))


def _too_large() -> str | None:
    """A small archive must not fill the disk."""
    packed = sum(path.stat().st_size for path in _ROOT.iterdir() if path.is_file())
    unpacked = sum(path.stat().st_blocks * 512 for path in (_ROOT / "unpacked").rglob("*") if path.is_file())
    if unpacked > max(_BOMB_BYTES // 2, 50 * packed):
        raise Failed(Kind.MEMORY, f"{packed:,} bytes were unpacked to {unpacked >> 20} MB")
    return None


def _loader(draw: random.Random, name: str, files: Files) -> Callable[[], None]:
    # Checksums would refuse nearly everything: with those of the mutated files the readers behind them are tried too.
    known = draw.random() < 0.8
    if name == "cifar10" and known:
        sums = {Path(path).name: _md5(content) for path, content in files.items() if Path(path).name in _CIFAR10}
        return lambda: library(lambda: _look(load_cifar10(_ROOT, checksums=sums)))
    if name == "multi30k" and known:
        texts = {f"{stem}.{code}": "" for stem in _STEMS for code in ("en", "de")}
        for path, content in files.items():
            texts[Path(path).name.removesuffix(".gz")] = _sha256(content)
        return lambda: library(lambda: _look(load_multi30k(_ROOT, checksums=texts)))
    return lambda: library(lambda: _look(data.load_any(name, _ROOT)))


def _look(found: Any) -> None:
    """Whatever was accepted is what a data set has to be, to the last item."""
    match found:
        case DataSet():
            for split in (found.train, found.test):
                labels, count = split.labels, split.images.shape[0]
                assert len(labels) == count > 0, f"{count} images and {len(labels)} labels"
                assert 0 <= int(labels.min()) <= int(labels.max()) < found.num_classes, f"labels up to {labels.max()}"
                if isinstance(split.images, ImageFiles):
                    list(split.images.read([torch.arange(min(count, 2))]))
        case Translation():
            assert all((found.train, found.val, found.test)), "an empty split"
        case Detection():
            for image in (*found.train, *found.test):
                assert bool(torch.isfinite(image.boxes).all()), "a box that is no number"
                assert bool((image.boxes[:, 2:] > image.boxes[:, :2]).all()), "an empty box"
            assert found.train, "an empty split"
            assert found.test, "an empty split"


def _change(
    draw: random.Random,
    path: str,
    content: bytes,
    change: Callable[[random.Random, str, bytes], tuple[str, bytes, bool]],
) -> tuple[str, bytes | None, bool]:
    """What happened to one file, its new content, and whether that would execute code."""
    match draw.randrange(8):
        case 0:
            return "is gone", None, False
        case 1 | 2:
            return "damaged", damage(draw, content), False
        case 3:
            return (
                "replaced",
                draw.choice((b"", b"\0" * 100, draw.randbytes(200), b"\x1f\x8b\x08\0", content * 3)),
                False,
            )
        case _:
            return change(draw, path, content)


def _pickle(draw: random.Random, path: str, content: bytes) -> tuple[str, bytes, bool]:
    labels = b"fine_labels" if "100" in path else b"labels"
    match draw.randrange(7):
        case 0:
            bomb = {b"data": np.zeros((2, 3072), np.uint8), labels: [0, 1], b"more": Bomb(canary())}
            return "code in the pickle", pickle.dumps(bomb, protocol=draw.choice((0, 2, 4))), True
        case 1:
            size = draw.choice((1 << 20, 1 << 24, 60_000_000, 200_000_000, (1 << 32) - 1))
            opcode = draw.choice((b"r", b"T", b"B", b"X", b"\x8b", b"\x96", b"\x8e", b"\x8d"))
            wide = opcode in (b"\x96", b"\x8e", b"\x8d")
            return "a claim of size", b"\x80\x05N" + opcode + struct.pack("<Q" if wide else "<I", size) + b".", False
        case 2:
            return "deep", b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", False
        case 3:
            return "another value", pickle.dumps(_unpicklable(value(draw)), protocol=3), False
        case 4:
            claim = draw.choice(((10**6, 3072), (10**10,), (2, 2), (0, 3072)))
            array = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1, 1), (0, 0))
            state = pickle.dumps({b"data": array, labels: [0]}, protocol=3)
            return (
                f"shape {claim}",
                state.replace(b"K\x01K\x01\x86", b"J" + struct.pack("<i", claim[0] % 2**31) + b"K\x01\x86", 1),
                False,
            )
        case 5:
            wrong = draw.choice(([0, 10**6], [-1, 0], ["a", "b"], [0.5, 1.5], [], None, [[0], [1]], [2**70, 0]))
            return (
                "other labels",
                pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), labels: wrong}, protocol=3),
                False,
            )
        case _:
            kind = draw.choice((np.float64, np.int8, object, np.uint16))
            return (
                "another dtype",
                pickle.dumps({b"data": np.zeros((2, 3072), kind), labels: [0, 1]}, protocol=3),
                False,
            )


def _unpicklable(given: Any) -> Any:
    return {b"data": given, b"labels": given, b"fine_labels": given}


def _idx(draw: random.Random, path: str, content: bytes) -> tuple[str, bytes, bool]:
    match draw.randrange(4):
        case 0:
            place = draw.randrange(4)
            return "another header", content[:place] + draw.randbytes(1) + content[place + 1 :], False
        case 1:
            place = 4 + 4 * draw.randrange(3)
            size = struct.pack(">I", draw.choice((0, 1, 3, 2**31, 2**32 - 1, 10**8)))
            return "another size", content[:place] + size + content[place + 4 :], False
        case 2:
            return "other values", content[:16] + bytes(draw.randrange(256) for _ in content[16:]), False
        case _:
            rank = draw.choice((0, 1, 4, 200, 255))
            return f"rank {rank}", b"\0\0\x08" + bytes([rank]) + struct.pack(f">{rank}I", *[1] * rank) + b"\0", False


def _xml(draw: random.Random, path: str, content: bytes) -> tuple[str, bytes, bool]:
    if not path.endswith(".xml"):
        return _text(draw, path, content) if path.endswith(".txt") else _picture(draw, path, content)
    text = content.decode(errors="replace")
    match draw.randrange(6):
        case 0:
            entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, draw.choice((4, 10, 12))))
            lol = f'<!DOCTYPE a [<!ENTITY e0 "lol">{entities}]>'
            return "entities", (lol + text.replace("<name>", "<name>&e3;", 1)).encode(), False
        case 1:
            outside = '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
            return "an outside entity", (outside + text.replace("<name>", "<name>&e;", 1)).encode(), False
        case 2:
            deep = draw.choice((100, 5000, 200_000))
            return f"nested {deep} deep", ("<a>" * deep + "</a>" * deep).encode(), False
        case 3:
            encoding = draw.choice(("utf-16", "latin-1", "nonsense", "utf-7", "cp037"))
            return f"declares {encoding}", f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + content, False
        case 4:
            number = number_text(draw)
            place = draw.choice(("xmin", "ymax", "width", "height"))
            wrong = text.replace(f"<{place}>", f"<{place}>{number.replace('<', '')}<!--", 1).replace(
                f"</{place}>", f"--></{place}>", 1
            )
            return f"{place} {number!a}"[:60], wrong.encode(errors="surrogatepass"), False
        case _:
            return "damaged text", damage_text(draw, text).encode(errors="surrogatepass"), False


def _text(draw: random.Random, path: str, content: bytes) -> tuple[str, bytes, bool]:
    match draw.randrange(5):
        case 0:
            return "not UTF-8", content.decode(errors="replace").encode("utf-16"), False
        case 1:
            return "a byte that is no UTF-8", content + b"\xff\xfe\n", False
        case 2:
            lines = content.split(b"\n")
            return (
                "a line more",
                b"\n".join([*lines, draw.choice((b"", b"..", b"/etc/hostname", b"a/b", b"\0"))]),
                False,
            )
        case 3:
            return "no lines", draw.choice((b"", b"\n\n", b" \n", "\u2028".encode())), False
        case _:
            return (
                "damaged text",
                damage_text(draw, content.decode(errors="replace")).encode(errors="surrogatepass"),
                False,
            )


def _picture(draw: random.Random, path: str, content: bytes) -> tuple[str, bytes, bool]:
    match draw.randrange(3):
        case 0:
            # A PNG that says it has 4 thousand million pixels.
            head = b"IHDR" + struct.pack(">IIBBBBB", 65_000, 65_000, 8, 2, 0, 0, 0)
            return (
                "a large claim",
                b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)),
                False,
            )
        case 1:
            return "a GIF", b"GIF89a" + draw.randbytes(50), False
        case _:
            return "cut short", content[: draw.randrange(len(content) + 1)], False


def _write_files(files: Files) -> None:
    for name, content in files.items():
        path = _ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_packed(name, content))


def _packed(name: str, content: bytes) -> bytes:
    return gzip.compress(content, 1) if name.endswith(".gz") else content


def _write_archive(draw: random.Random, path: Path, files: Files) -> list[str]:
    """The files in a tar, with things in it that no data set has, or damaged as a whole."""
    suffix = draw.choice((".tar", ".tar.gz", ".tgz", ".tar.xz"))
    path = path.with_name(path.name + suffix)
    form = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}[suffix]
    done = []
    options: dict[str, Any] = {"compresslevel": 1} if form == "w:gz" else {"preset": 0} if form == "w:xz" else {}
    with tarfile.open(path, form, **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(_packed(name, content))
            archive.addfile(member, io.BytesIO(_packed(name, content)))
            if draw.random() < 0.15:
                done.append(_add_odd_member(draw, archive, name, compressed=suffix != ".tar"))
    match draw.randrange(8):
        case 0 | 1:
            path.write_bytes(damage(draw, path.read_bytes()))
            done.append("archive damaged")
        case 2:
            other = path.with_name(draw.choice((path.name + ".xz", path.name.upper(), path.stem + ".tar")))
            path.rename(other)
            done.append(f"called {other.name}")
        case 3 if draw.random() < 0.5:
            done.append(odd_file(draw, path))
    return done


def _add_odd_member(draw: random.Random, archive: tarfile.TarFile, name: str, *, compressed: bool) -> str:
    kind = draw.choice((*_ODD_MEMBERS, "bomb" if compressed else "twice"))
    member = tarfile.TarInfo(name)
    content = b"x"
    match kind:
        case "outside":
            member.name = draw.choice(
                ("../escaped", "../../escaped", "../" * 5 + "escaped", "a/../../../escaped", "..\\escaped")
            )
        case "absolute":
            member.name = str(Path.cwd().parent / "escaped")
        case "link" | "hard link":
            member.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
            member.name, member.linkname = (
                draw.choice(("link", f"{Path(name).parent}/link")),
                draw.choice(("../..", "/etc", name)),
            )
            content = b""
        case "device" | "fifo":
            member.name = "odd"
            member.type = tarfile.CHRTYPE if kind == "device" else tarfile.FIFOTYPE
            content = b""
        case "twice":
            pass
        case "folder":
            member.type, content = tarfile.DIRTYPE, b""
        case "long":
            member.name = draw.choice(("n" * 300, "d/" * 1500 + "x", "é" * 200, "a\nb", "[red]"))
        case "bomb":
            member.name, content = f"{Path(name).parent}/large", bytes(_BOMB_BYTES)
        case _:
            member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.size": "99999999999", "GNU.sparse.name": "odd"}
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
    return f"member {kind}"


def _cifar10(draw: random.Random) -> Files:
    batch = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}, protocol=3)
    return {f"cifar-10-batches-py/{name}": batch for name in _CIFAR10}


def _cifar100(draw: random.Random) -> Files:
    batch = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 1]}, protocol=3)
    return {f"cifar-100-python/{name}": batch for name in ("train", "test")}


def _fashion(draw: random.Random) -> Files:
    packed = draw.choice((".gz", ""))
    images = b"\0\0\x08\x03" + struct.pack(">3I", 2, 28, 28) + bytes(2 * 784)
    labels = b"\0\0\x08\x01" + struct.pack(">I", 2) + bytes([3, 4])
    return {f"{name}-ubyte{packed}": images if "images" in name else labels for name in _FASHION}


def _voc(draw: random.Random) -> Files:
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    item = f"<object><name>cat</name><difficult>0</difficult>{box}</object>"
    xml = f"<annotation><size><width>16</width><height>12</height></size>{item}</annotation>".encode()
    files: Files = {}
    for split, name in (("train", "1"), ("val", "2")):
        files[f"{_DEVKIT}/ImageSets/Main/{split}.txt"] = f"{name}\n".encode()
        files[f"{_DEVKIT}/JPEGImages/{name}.jpg"] = _JPEG
        files[f"{_DEVKIT}/Annotations/{name}.xml"] = xml
    return files


def _multi30k(draw: random.Random) -> Files:
    packed = draw.choice((".gz", ""))
    return {f"multi30k/{stem}.{code}{packed}": b"a dog\ntwo cats\n" for stem in _STEMS for code in ("en", "de")}


def _images(draw: random.Random) -> Files:
    return {f"{split}/{name}/{name}.jpg": _JPEG for split in ("train", "val") for name in ("one", "two")}


def _imagenette(draw: random.Random) -> Files:
    return {f"imagenette2-160/{path}": content for path, content in _images(draw).items()}


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 12), (200, 100, 50)).save(buffer, "JPEG")
    return buffer.getvalue()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_JPEG = _jpeg()
_SETS: Mapping[str, tuple[str, str, Callable[[random.Random], Files], Any]] = {
    "CIFAR-10": ("cifar10", "cifar-10-python", _cifar10, _pickle),
    "CIFAR-100": ("cifar100", "cifar-100-python", _cifar100, _pickle),
    "idx": ("fashion-mnist", "", _fashion, _idx),
    "VOC": ("voc2007", "VOCtrainval_2007", _voc, _xml),
    "text": ("multi30k", "multi30k", _multi30k, _text),
    "images": ("image-folder", "", _images, _picture),
    "Imagenette": ("imagenette", "imagenette2-160", _imagenette, _picture),
}

TARGET = Target("archives", "data sets: tar, pickles, idx, XML, text, images", 900, _make)
