"""GGUF files: every quantisation reads as the gguf package reads it, and damage is always one clear error."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from mutations import mutate

from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.gguf_file import GgufFile

PLAIN_TYPES = [Type.F32, Type.F16, Type.BF16]
QUANTISABLE_TYPES = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
K_TYPES = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
SHAPE = (6, 512)


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def stored(kind: Type) -> np.ndarray:
    """Bytes of a [6, 512] tensor of this type: quantised where the package can, else random blocks."""
    if kind not in K_TYPES:
        return gguf.quantize(values(), kind)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    return rng.integers(0, 120, (SHAPE[0], SHAPE[1] // block_size * block_bytes), dtype=np.uint8)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, Type]], **metadata: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_file(path: Path) -> Path:
    """A file with every kind of metadata value and three tensors, under 2 KiB."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_int64("some.int64", -5)
    writer.add_float64("some.float64", 0.5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü", ""])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 1, 3])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, -2.0, 0.25])
    writer.add_tensor("token_embd.weight", np.arange(32, dtype=np.float32).reshape(4, 8))
    writer.add_tensor(
        "blk.0.attn_q.weight", gguf.quantize(np.ones((2, 32), np.float32), Type.Q8_0), raw_dtype=Type.Q8_0
    )
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", PLAIN_TYPES + QUANTISABLE_TYPES + K_TYPES, ids=lambda kind: kind.name)
def test_a_tensor_reads_as_the_gguf_package_dequantises_it(tmp_path: Path, kind: Type) -> None:
    data = stored(kind)
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", {"weight": (data, kind)}))
    assert checkpoint.shapes() == {"weight": SHAPE}
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.dequantize(data, kind))
    tensor = checkpoint.read("weight")
    assert tensor.shape == SHAPE
    torch.testing.assert_close(tensor.float(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", PLAIN_TYPES + QUANTISABLE_TYPES, ids=lambda kind: kind.name)
def test_a_quantised_tensor_is_near_what_was_quantised(tmp_path: Path, kind: Type) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", {"weight": (stored(kind), kind)}))
    error = (checkpoint.read("weight").float().numpy() - values()).std()
    assert error < (0.2 if kind.name.startswith(("Q4", "Q5")) else 0.02)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Type.Q4_0, 4.5), (Type.Q4_1, 5.0), (Type.Q6_K, 6.5625), (Type.Q8_0, 8.5), (Type.F16, 16.0)]
)
def test_what_a_weight_takes_counts_the_units_of_its_block(tmp_path: Path, kind: Type, bits: float) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", {"weight": (stored(kind), kind)}))
    assert checkpoint.stored_bits("weight") == bits


def test_plain_tensors_keep_their_dtype(tmp_path: Path) -> None:
    tensors = {kind.name: (gguf.quantize(values(), kind), kind) for kind in PLAIN_TYPES}
    tensors["I32"] = (np.arange(6, dtype=np.int32).reshape(2, 3), Type.I32)
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", tensors))
    dtypes = {name: checkpoint.read(name).dtype for name in tensors}
    assert dtypes == {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32}
    assert checkpoint.read("I32").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_shapes_are_in_torch_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(small_file(tmp_path / "model.gguf"))
    assert checkpoint.shapes()["token_embd.weight"] == (4, 8)
    assert checkpoint.read("token_embd.weight")[1].tolist() == list(range(8, 16))


def test_metadata_are_plain_values(tmp_path: Path) -> None:
    metadata = open_checkpoint(small_file(tmp_path / "model.gguf")).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 2
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["some.int64"] == -5
    assert metadata["some.float64"] == 0.5
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü", ""]
    assert metadata["tokenizer.ggml.scores"] == [0.0, -1.0, -2.0, 0.25]


def test_another_alignment_is_followed(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_custom_alignment(256)
    for name in ("a", "b"):
        writer.add_tensor(name, np.full(3, ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.read("b").tolist() == [98.0] * 3


def test_the_digest_knows_the_weights_and_not_the_metadata(tmp_path: Path) -> None:
    tensors = {"weight": (values(), Type.F32)}
    first = open_checkpoint(write(tmp_path / "1.gguf", tensors)).digest()
    assert open_checkpoint(write(tmp_path / "2.gguf", tensors, note="another")).digest() == first
    assert open_checkpoint(write(tmp_path / "3.gguf", {"weight": (values(1), Type.F32)})).digest() != first


def test_a_type_without_dequantisation_is_named(tmp_path: Path) -> None:
    path = small_file(tmp_path / "model.gguf")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    struct.pack_into("<I", raw, at, Type.Q8_1)  # an activation format, never stored
    struct.pack_into("<Q", raw, at - 8, 32)
    path.write_bytes(raw + bytes(64))
    with pytest.raises(CheckpointError, match="type Q8_1, which cannot be dequantised"):
        open_checkpoint(path).read("output_norm.weight")


# damage


def header(tensors: int, values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def record(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = (1 << 63) + 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GG", "magic"),
        (b"\x80\x02" * 40, "magic"),
        (b"GGUF", "runs past the end"),
        (header(0, 0, version=1), "version 1 GGUF"),
        (header(0, 0, version=99), "version 99 GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(HUGE, 0), "announces"),
        (header(0, HUGE), "announces"),
        (header(0, 1, struct.pack("<Q", HUGE) + bytes(64)), "string in the header runs past"),
        (header(0, 1, text("k") + struct.pack("<I", 77) + bytes(64)), "unknown value type 77"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 0, HUGE) + bytes(64)), "announces"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "array of the unsupported value type 9"),
        (header(0, 1, text("k") + struct.pack("<I", 8) + struct.pack("<Q", 2) + b"\xff\xff"), "not UTF-8"),
        (header(0, 2, 2 * (text("key") + struct.pack("<IB", 0, 1)) + bytes(64)), "'key' occurs twice"),
        (header(0, 1, text("general.alignment") + struct.pack("<II", 4, 3)), "power of two"),
        (header(0, 1, text("general.alignment") + struct.pack("<II", 4, 0)), "power of two"),
        (header(1, 0, record("t", (4,), 0, 0)), "ends at byte"),
        (header(1, 0, record("t", (4,), 0, HUGE - 5) + bytes(64)), "ends at byte"),
        (header(1, 0, record("t", (1 << 40, 1 << 40), 0, 0) + bytes(64)), "ends at byte"),
        (header(1, 0, record("t", (4,), 0, 7) + bytes(64)), "not a multiple of 32"),
        (header(1, 0, record("t", (4,), 999, 0) + bytes(64)), "unknown type number 999"),
        (header(1, 0, record("t", (5,), 8, 0) + bytes(64)), "impossible shape"),
        (header(1, 0, record("t", (0,), 0, 0) + bytes(64)), "impossible shape"),
        (header(1, 0, text("t") + struct.pack("<I", 1 << 31) + bytes(64)), "2147483648 dimensions"),
        (header(2, 0, 2 * record("t", (4,), 0, 0) + bytes(256)), "'t' occurs twice"),
        (header(2, 0, record("t", (16,), 0, 0) + record("u", (4,), 0, 32) + bytes(256)), "'t' and 'u' overlap"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "model.gguf")


def test_truncations_are_refused(tmp_path: Path) -> None:
    path = small_file(tmp_path / "model.gguf")
    raw = path.read_bytes()
    # The file ends with padding after the last tensor (8 floats), which may go.
    last = open_checkpoint(path).weights.tensors["output_norm.weight"]  # type: ignore[attr-defined]
    for length in range(0, last.offset + last.nbytes, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


def test_mutated_files_raise_checkpoint_errors_only(tmp_path: Path) -> None:
    """Whatever a mutation does to the header, opening and reading end in tensors or in a CheckpointError."""
    path = small_file(tmp_path / "model.gguf")
    raw = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(500):
        path.write_bytes(mutate(raw, rng))
        try:
            checkpoint = open_checkpoint(path)
            for name, shape in checkpoint.shapes().items():
                assert checkpoint.read(name).shape == shape
        except CheckpointError:
            refused += 1
    assert 100 < refused < 500  # the storm does reach both ends


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_one_of_the_stacked_tensors_is_read_by_itself(kind: str, tmp_path: Path) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(3).normal(size=(5, 6, 256)).astype(np.float32)
    if kind == "Q4_K":  # which the package does not write: any blocks will do
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[quantisation]
        data = np.full((5, 6, 256 // block_size * block_bytes), 17, np.uint8)
        data[2] = 33
    else:
        data = values if kind == "F32" else gguf.quantize(values, quantisation)
    writer = gguf.GGUFWriter(tmp_path / "stack.gguf", "llama")
    writer.add_tensor("stack.weight", data, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "stack.gguf")
    whole = file.read("stack.weight")
    assert whole.shape == (5, 6, 256)
    for index in range(5):
        assert torch.equal(file.read("stack.weight", index), whole[index])
        assert file.stored("stack.weight").part(index).data.tobytes() == data[index].tobytes()
