"""Mistakes with GGUF files and quantized tensors: the class of the error, and the whole message."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernmill import DTypeError, FormatError, ShapeError, Tensor, dtypes, quant
from kernmill.formats import gguf
from kernmill.formats.gguf_write import write
from kernmill.llm import Model
from kernmill.quant.mixes import mix_named
from tests.errors.mistakes import Case, each_message

MIXES = (
    "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q5_0, Q5_1, Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, "
    "Q5_K_M, Q6_K, IQ4_NL, IQ4_XS, IQ3_M, IQ3_S, IQ3_XS, IQ3_XXS, IQ2_M, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S, MXFP4, "
    "MXFP4_MOE, TQ1_0, TQ2_0, COPY"
)
ARRAY: Any = np.zeros(32, np.float32)
THREE: Any = 3
CASES: dict[str, Case] = {
    "no file": (lambda: quant.load("no/such/file"), FormatError,
                "no/such/file: cannot be read: No such file or directory. Give the path of a GGUF file."),
    "no gguf": (lambda: gguf.parse(memoryview(b"PK\3\4")), FormatError,
                "GGUF: at byte 0: first bytes: they are b'PK\\x03\\x04', not b'GGUF'. That is a zip archive, such "
                "as PyTorch's. Convert the model with llama.cpp's convert_hf_to_gguf.py."),
    "old": (lambda: gguf.parse(memoryview(b"GGUF\1\0\0\0")), FormatError,
            "GGUF: at byte 4: version: 1 is not supported: must be 2 or 3. Convert the model again, or update "
            "kernmill."),
    "cut": (lambda: gguf.parse(memoryview(b"GGUF\3\0\0\0")), FormatError,
            "GGUF: at byte 8: number of tensors: it takes 8 bytes, the file has 0 more. The file is damaged or "
            "not a GGUF file; fetch it again."),
    "no folder": (lambda: write("no/such/file", {}, {}), FormatError,
                  "no/such/file: cannot be written: No such file or directory. Choose a different path."),
    "value": (lambda: write("x", {"k": {}}, {}), FormatError,
              "x: metadata 'k': GGUF cannot store a dict. Give bools, numbers, strings, or a list of one kind."),
    "rows": (lambda: quant.QuantizedTensor.quantize(Tensor.zeros(2, 33), "Q4_0"), ShapeError,
             "quantize: a tensor of shape (2, 33) as Q4_0: its rows are not a multiple of the block size 32. Pad "
             "the last axis, or choose another type."),
    "read only": (lambda: quant.QuantizedTensor.quantize(Tensor.zeros(256), "NVFP4"), FormatError,
                  "encode: kernmill reads NVFP4 and does not write it. Choose another type."),
    "ints": (lambda: quant.QuantizedTensor.quantize(Tensor.zeros(32, dtype=dtypes.int32), "Q4_0"), DTypeError,
             "encode: Q4_0 of a int32 tensor. Cast it with .float()."),
    "array": (lambda: quant.QuantizedTensor.quantize(ARRAY, "Q8_0"), DTypeError,
              "QuantizedTensor.quantize: x is data of shape (32,), of type ndarray. Give a Tensor; wrap data in "
              "Tensor(..)."),
    "no path": (lambda: Model.from_gguf(THREE), DTypeError,
                "Model.from_gguf: read: path is 3, of type int. Give a string or a path."),
    "mix": (lambda: mix_named("Q4"), FormatError,
            f"quantize: 'Q4': must be one of {MIXES}."),
}  # fmt: skip


test_the_message_is_this = each_message(CASES)
