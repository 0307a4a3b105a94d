# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run whole models as graphs
==========================

| **You'll do:** trace the models of a library, which nobody made for it, and run them as graphs.
| **You'll learn:** what a graph costs where there is nothing to gain, and when `capture` pays.
| **You need:** 5 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`plot_3_let_the_graph_find_the_parallelism` first; :doc:`plot_4_does_it_run_as_planned` is
  about graphs that have something to gain.

Most models are nearly a chain: each operator needs the one before, so nothing can run at once. A
graph of such a model should cost nothing. It can still gain on a GPU: one launch of a CUDA graph
replaces hundreds of launches.
"""

# %%
# A model is traced as it is, and one launch replaces hundreds
# ------------------------------------------------------------
# The models come from the library `transformers
# <https://huggingface.co/docs/transformers/index>`_, and their weights are random. `trace` calls a
# model once and notes its operators. `run` issues them from one loop in the calling thread, as
# eager code does. `capture` records them once, and each replay launches all of them together.

from contextlib import suppress
from functools import partial

import matplotlib.pyplot as plt
import torch

import autopar as ap


def as_graph(model, x, way):
    graph, results = ap.TaskGraph.trace(model, x)
    if way == "run":
        return lambda: graph.run()[results]
    captured = graph.capture()
    return lambda: captured.replay()[results]


# %%
# All ways return the same, bit for bit. In the picture at the top, look at the points of `run`:
# they lie near 1, which is eager code. Those of `capture` lie the lower, the longer launches take
# beside the kernels.

# Folded: the models, with sizes of one's own, and how each was timed
BERT = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": 4}
BERT |= {"intermediate_size": "wide", "vocab_size": 500, "max_position_embeddings": 600}
LLAMA, VIT = BERT | {"num_key_value_heads": 2}, BERT | {"image_size": 64, "patch_size": 8}
STAGES = {"hidden_sizes": ["width", "wide"], "depths": ["layers", "layers"], "num_stages": 2}
MODELS = {
    **dict.fromkeys(("Bert", "Roberta", "Albert", "Electra", "Phi"), BERT),
    "DistilBert": {"dim": "width", "n_layers": "layers", "n_heads": 4, "hidden_dim": "wide"},
    **dict.fromkeys(("Llama", "Mistral", "Qwen2", "Olmo2"), LLAMA),
    "Gemma": LLAMA | {"head_dim": 16},
    "Mixtral": LLAMA | {"num_local_experts": 4, "experts_implementation": "batched_mm"},
    "GPT2": {"n_embd": "width", "n_layer": "layers", "n_head": 4},
    "Bloom": {"hidden_size": "width", "n_layer": "layers", "n_head": 4},
    "T5Encoder": {"d_model": "width", "d_kv": 16, "d_ff": "wide", "num_layers": "layers"},
    "Mamba": {"hidden_size": "width", "num_hidden_layers": "layers", "vocab_size": 500},
    **dict.fromkeys(("ViT", "DeiT"), VIT),
    "Swin": {"image_size": 64, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]},
    "ConvNext": STAGES,
    "ResNet": STAGES | {"embedding_size": "width", "layer_type": "basic"},
}


def model_of(name, device, **sizes):
    """A model of the library, a function that calls it and returns tensors alone, and its input."""
    import transformers

    def of_size(value):
        return [*map(of_size, value)] if isinstance(value, list) else sizes.get(value, value)

    def call(x):
        found = torch.utils._pytree.tree_leaves(model(x, return_dict=False))
        return [part for part in found if isinstance(part, torch.Tensor)]

    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")
    config = config(**{key: of_size(value) for key, value in MODELS[name].items()})
    config.use_cache = False
    model = getattr(transformers, f"{name}Model")(config).eval().to(device)
    is_text = model.main_input_name == "input_ids"
    x = torch.randint(3, 400, (2, sizes["tokens"])) if is_text else torch.randn(2, 3, 64, 64)
    return model, call, x.to(device)


def race_models(device, widths, **sizes):
    """Every way to call each model, at each width."""
    found, ways = [], ["run", *["capture"] * (device == "cuda")]
    for name, width in [(name, width) for name in MODELS for width in widths]:
        _, call, x = model_of(name, device, width=width, wide=4 * width, **sizes)
        with torch.no_grad():
            call(x)
            calls = {"eager": partial(call, x)}
            for way in ways:
                with suppress(ValueError):  # a part of it is on the CPU, which can't be captured
                    calls[way] = as_graph(call, x, way)
            found.append(ap.race({f"{name}, {width}: {way}": calls[way] for way in calls}))
    checks = {check: held for one in found for check, held in one.checks.items()}
    return ap.Findings([time for one in found for time in one.measurements], {}, checks)


def shares(s, way):
    """Times as shares of eager code's, by model."""
    there = [name for name in MODELS if f"{name}, 64: {way}" in s]
    return {name: s[f"{name}, 64: {way}"] / s[f"{name}, 64: eager"] for name in there}


WORK = {"layers": 2, "tokens": 64}
ON_GPU = {"device": "cuda", "widths": [64, 512], **WORK}
ON_CPU = {"device": "cpu", "widths": [256], **WORK}
how = {"modules": ["transformers"]}
gpu = ap.recorded(race_models, name="b10_models", parameters=ON_GPU, **how)
cpu = ap.recorded(race_models, name="b10_models_on_a_cpu", parameters=ON_CPU, gpus=0, **how)

figure, ax = plt.subplots(figsize=(4.6, 5), layout="constrained")
s = {label: one.median_s for label, one in gpu.measurements.items()}
ax.plot([*shares(s, "run").values()], [*shares(s, "run")], "o", label="run")
ax.plot([*shares(s, "capture").values()], [*shares(s, "capture")], "^", label="capture")
ax.axvline(1, color="gray", linewidth=1)
ax.set(title="Models of width 64", xlabel="time of a call, as a share of eager code's")
ax.legend(fontsize="small")
figure.supxlabel(gpu.origin, fontsize=7)
ap.plot.show("b10_run_whole_models")

# %%
# The claims are about the model in the middle: half of them gain more by a capture, half less.


def middle(s, way):
    return sorted(shares(s, way).values())[len(shares(s, way)) // 2]


run = gpu.estimate(lambda s: middle(s, "run"))
saved = gpu.estimate(lambda s: 1 / middle(s, "capture"))
ap.show(
    ap.claim("As tasks a model takes little longer than as it is.", run, at_most=1.5, unit="×"),
    ap.claim("Captured, a narrow model is clearly faster.", saved, at_least=2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A trace is what one call did. A model that skips layers by chance does one thing or another, and
# `trace` refuses it with the line. A run issues the parts of operators such as `linear` one by one,
# so a model of many tiny operators takes longer than eager code. :doc:`/benchmarks` has all times.
#
# Now you
# -------
# Trace `torch.nn.Linear`. How many tasks has it, and what are they?
#
# .. dropdown:: A hint
#
#     `print(graph.plan())` names them.
#
# .. dropdown:: An answer
#
#     Two: `t` transposes the weight, and `addmm` multiplies and adds.
#
#     .. code-block:: python
#
#         graph, result = ap.TaskGraph.trace(torch.nn.Linear(4, 4), torch.ones(2, 4))
#         print(graph.plan())
