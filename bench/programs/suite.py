"""The programs of the suite, their sizes and goals."""

from __future__ import annotations

from collections.abc import Mapping

from .program import Program

__all__ = ["PROGRAMS"]

EAGER = ("cold", "warm", "eager")
CAPTURED = {"captured": ("torch", 1.0)}
LARGE = {"captured": ("best", 1.3), "memory": ("torch", 1 / 1.05)}


def trains(name: str, about: str, sizes: Mapping[str, int], tiny: Mapping[str, int], rtol: float = 1e-3) -> Program:
    return Program(name, "training", about, sizes, {**sizes, **tiny}, rtol=rtol, goals=CAPTURED)


def computes(name: str, about: str, sizes: Mapping[str, int], tiny: Mapping[str, int], rtol: float = 1e-3) -> Program:
    return Program(name, "computing", about, sizes, {**sizes, **tiny}, rtol=rtol, goals=CAPTURED)


def eager(
    name: str, about: str, sizes: Mapping[str, int], tiny: Mapping[str, int], goals: Mapping[str, tuple[str, float]],
    modes: tuple[str, ...] = EAGER,
) -> Program:  # fmt: skip
    return Program(name, "eager", about, sizes, {**sizes, **tiny}, modes=modes, goals=goals, peers=("torch", "old"))


GPT = {"vocab": 65, "width": 128, "heads": 4, "layers": 4, "context": 64, "batch": 8}
SMALL_GPT = {"vocab": 65, "width": 96, "heads": 4, "layers": 3, "context": 64, "tokens": 40}
# fmt: off
PROGRAMS = {program.name: program for program in (
    trains("mlp", "three layers, Adam", {"width": 256, "batch": 64}, {"width": 16, "batch": 4}),
    trains("gpt", "four blocks, AdamW", GPT, {"width": 16, "heads": 2, "layers": 1, "context": 5, "batch": 2}),
    trains("cnn", "convolutions, batch norms, momentum", {"width": 16, "side": 32, "batch": 32},
           {"width": 2, "side": 8, "batch": 3}),
    trains("vae", "convolutions and transposed ones", {"width": 16, "latent": 16, "batch": 64},
           {"width": 2, "latent": 2, "batch": 2}),
    trains("gan", "two networks, two optimizers", {"width": 256, "batch": 64}, {"width": 8, "batch": 3}),
    trains("diffusion", "a U-Net with group norm", {"width": 16, "side": 16, "batch": 16},
           {"width": 4, "side": 4, "batch": 2}),
    trains("lstm", "a sequence to a number", {"width": 64, "length": 32, "batch": 32},
           {"width": 4, "length": 3, "batch": 2}),
    trains("graph", "two layers of messages along edges", {"width": 32, "nodes": 1000, "edges": 5000},
           {"width": 4, "nodes": 7, "edges": 15}),
    trains("attention", "an encoder, gradients clipped",
           {"width": 64, "heads": 4, "layers": 2, "length": 48, "batch": 16},
           {"width": 8, "heads": 2, "layers": 1, "length": 4, "batch": 2}),
    trains("second", "second derivatives in the loss", {"width": 64, "points": 256}, {"width": 4, "points": 5}),
    trains("mixed", "bfloat16 products, float32 weights", {"width": 512, "batch": 128},
           {"width": 16, "batch": 4}, rtol=2e-2),
    trains("mixed_f32", "the same in float32", {"width": 512, "batch": 128}, {"width": 16, "batch": 4}),
    trains("resume", "steps after a saved state", {"width": 256, "batch": 64}, {"width": 8, "batch": 3}),
    trains("weights", "weights read from a file, and an answer", {"width": 512, "layers": 4, "batch": 16},
           {"width": 8, "layers": 2, "batch": 2}),
    trains("lengths", "steps on batches of four lengths", {"width": 128, "length": 16, "batch": 32},
           {"width": 8, "length": 2, "batch": 2}),
    computes("kmeans", "ten rounds", {"points": 10_000, "width": 16, "centers": 32, "rounds": 10},
             {"points": 40, "width": 3, "centers": 4, "rounds": 2}),
    computes("linalg", "conjugate gradients, power iteration", {"n": 512, "rounds": 20}, {"n": 8, "rounds": 3}),
    computes("spectrogram", "windows, Fourier matrices, bands", {"window": 400, "length": 16_000, "batch": 4},
             {"window": 16, "length": 64, "batch": 2}),
    computes("stencil", "heat on a square", {"n": 256, "rounds": 10}, {"n": 8, "rounds": 2}),
    computes("nbody", "all pairs", {"n": 512, "rounds": 5}, {"n": 6, "rounds": 2}),
    computes("pictures", "normalize, blur, edges, resize", {"side": 128, "batch": 8}, {"side": 8, "batch": 2},
             rtol=5e-3),

    Program("gpt_98m", "training", "98 million parameters, 4 x 128 tokens, AdamW",
            {"vocab": 16_000, "width": 768, "heads": 12, "layers": 12, "context": 128, "batch": 4},
            {"vocab": 32, "width": 16, "heads": 2, "layers": 1, "context": 4, "batch": 2},
            modes=("captured", "cold", "warm"), goals=LARGE),
    Program("resnet", "training", "ResNet-18, 32 x 3 x 64 x 64, torch with channels last",
            {"width": 64, "side": 64, "batch": 32}, {"width": 4, "side": 64, "batch": 4},
            modes=("captured", "cold", "warm"), goals={**LARGE, "captured": ("best", 1.05)}, rtol=3e-3),

    eager("generate", "naive generation, 350 thousand weights, 40 tokens", SMALL_GPT,
          {"width": 8, "heads": 2, "layers": 1, "tokens": 3},
          {"cold": ("torch", 1 / 15), "warm": ("torch", 1 / 2)}),
    eager("sampling", "50 diffusion steps, the time step a Python number", {"width": 16, "side": 16, "steps": 50},
          {"width": 4, "side": 4, "steps": 3}, {"cold": ("torch", 1 / 12)}),
    eager("numbers", "x * (0.1 + i / 7) for 100 i: one compilation", {"count": 100}, {"count": 3}, {}),
    eager("sizes", "ones(n).exp().sum() for n to 200: four compilations", {"count": 200}, {"count": 5}, {}),
    eager("plus_one", "x + 1", {}, {}, {"eager": ("old", 1 / 0.35)}),
    eager("linear_relu", "Linear(64, 64), relu, numpy of 8 rows", {}, {}, {"eager": ("old", 1 / 0.17)}),
    eager("mlp_eager", "the step of mlp", {"width": 256, "batch": 64}, {"width": 16, "batch": 4},
          {"eager": ("torch", 1 / 2)}),
    eager("forecast", "an LSTM's answer for one sequence", {"width": 32, "length": 24}, {"width": 4, "length": 3},
          {"eager": ("torch", 1 / 10)}),
    eager("chain", "3,000 steps of (y * 1.001).sin() + x", {"count": 3000}, {"count": 5}, {"cold": ("old", 20)},
          ("cold", "warm")),
    eager("chain_double", "6,000 such steps", {"count": 6000}, {"count": 10}, {}, ("cold", "warm")),
    eager("means", "800 mean-subtractions", {"count": 800}, {"count": 3}, {"cold": ("old", 15)}, ("cold", "warm")),
    eager("sines", "the gradient of 1,000 sines", {"count": 1000}, {"count": 5}, {"cold": ("old", 12)},
          ("cold", "warm")),
)}
