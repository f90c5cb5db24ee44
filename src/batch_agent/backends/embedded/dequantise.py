"""Conversion of quantised weights to F32, for CPUs on which llama.cpp's quantised kernels are slow.

The Linux aarch64 wheel of xllamacpp is built for baseline armv8-a, without the dot-product instructions that make
quantised weights fast; there F32 halves the time of a batch. Everywhere else the quantised file is used as it is.
"""

import importlib.util
import os
import platform
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .model_cache import EmbeddedModelError, cache_directory, matches_record, record_digest, written_atomically

ALIGNMENT = 32
BATCH_ROWS = 4096
F32 = 0  # as a tensor type, and as general.file_type "all F32"


def fastest_weights(quantised: Path, notify: Callable[[str], None]) -> Path:
    """`quantised`, or its F32 copy in the cache where that is faster; the copy is made on first use.

    Blocks for some seconds when it converts. `BATCH_AGENT_LOCAL_WEIGHTS` (quantized or f32) overrides the rule.
    Without the `gguf` package, or without disk space for the copy, the quantised file is returned.
    """
    if not _f32_is_wanted() or importlib.util.find_spec("gguf") is None:
        return quantised
    copy = cache_directory() / f"{quantised.name.split('.')[0]}.F32.gguf"
    if matches_record(copy):
        return copy
    notify(f"Preparing the embedded model for this CPU (once, about 10 s, 540 MB in {copy.parent}) ...")
    try:
        dequantise(quantised, copy)
        record_digest(copy)
    except OSError as error:
        notify(f"The faster copy could not be written ({error}); using the quantised weights.")
        return quantised
    return copy


def dequantise(source: Path, target: Path) -> None:
    """Write `source` with every tensor as F32; its metadata (tokenizer, chat template) is copied byte for byte."""
    from gguf import GGUFReader, dequantize

    reader: Any = GGUFReader(source)
    with written_atomically(target) as unfinished, unfinished.open("wb") as file:
        _write_header(file, source, reader)
        for tensor in reader.tensors:
            for part in _parts(tensor.data):
                dequantize(part, tensor.tensor_type).tofile(file)
            _pad(file)


def _f32_is_wanted() -> bool:
    match os.environ.get("BATCH_AGENT_LOCAL_WEIGHTS", ""):
        case "":
            return platform.system() == "Linux" and platform.machine() == "aarch64"
        case "f32":
            return True
        case "quantized":
            return False
        case other:
            raise EmbeddedModelError(f"BATCH_AGENT_LOCAL_WEIGHTS is {other!r}: set it to 'quantized' or 'f32'.")


def _write_header(file: IO[bytes], source: Path, reader: Any) -> None:
    metadata_end = min(tensor.field.offset for tensor in reader.tensors)
    with source.open("rb") as original:
        file.write(original.read(metadata_end))
    if (file_type := reader.fields.get("general.file_type")) is not None:
        file.seek(file_type.offset + sum(part.nbytes for part in file_type.parts[:-1]))
        file.write(struct.pack("<I", F32))
        file.seek(0, os.SEEK_END)
    offset = 0
    for tensor in reader.tensors:
        name, shape = tensor.name.encode(), [int(size) for size in tensor.shape]
        file.write(struct.pack(f"<Q{len(name)}sI", len(name), name, len(shape)))
        file.write(struct.pack(f"<{len(shape)}QIQ", *shape, F32, offset))
        offset += _aligned(tensor.n_elements * 4)
    _pad(file)


def _parts(data: Any) -> Iterator[Any]:
    """Batches of rows: converting the embedding in one piece would take 300 MB."""
    if data.ndim == 1:
        yield data
        return
    for start in range(0, len(data), BATCH_ROWS):
        yield data[start : start + BATCH_ROWS]


def _pad(file: IO[bytes]) -> None:
    file.write(b"\0" * (_aligned(file.tell()) - file.tell()))


def _aligned(size: int) -> int:
    return -(-int(size) // ALIGNMENT) * ALIGNMENT
