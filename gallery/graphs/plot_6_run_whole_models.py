# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run whole models as graphs
==========================

| **You'll do:** trace models of a library, as they are, and run them as graphs.
| **You'll learn:** what a graph costs or gains where little can run at once; when `capture` pays.
| **You need:** 5 minutes, and no GPU: the parts for GPUs and many cores are shown from records.
  Before this: :doc:`plot_3_let_the_graph_find_the_parallelism`. Next:
  :doc:`/auto_gallery/distributed/plot_1_add_gradients_up_during_backward`.

Most models are nearly a chain, so little runs at once. Captured, they gain what launches took.
"""

# %%
# A model is traced as it is
# --------------------------
# It is tempting to write a task for each layer. `trace` asks for less: it calls a model once, and
# notes operators and needs; code that branches on data it refuses. `run` issues operators one by
# one, like *eager* code without Python of its own. `measure` tries several threads or streams, and
# `capture` makes a *CUDA graph*: :doc:`/auto_gallery/one_device/plot_2_small_operators`.
from contextlib import ExitStack
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import torch

import autopar as ap


def as_graph(model, x, way, keep):
    graph, results = ap.TaskGraph.trace(model, x)
    keep(graph)  # its threads stay there
    if way != "run":
        graph.measure()
    if way != "capture":
        return lambda: graph.run()[results]
    captured = graph.capture()
    return lambda: captured.replay()[results]


# %%
# The models come from `transformers <https://huggingface.co/docs/transformers/index>`_, with random
# weights, small and with short inputs. All results equal eager code's, on a GPU bit for bit.

# Folded: the models, and how each was timed
MODELS = "Bert Roberta Albert Electra Phi DistilBert Llama Mistral Qwen2 Olmo2 Gemma Mixtral GPT2"
MODELS = f"{MODELS} Bloom T5Encoder Mamba ViT DeiT Swin ConvNext ResNet".split()


def model_of(name, device, width, layers, tokens):
    """A function that calls a model, and its input."""
    import transformers

    sizes = {"hidden_size": width, "embedding_size": width, "intermediate_size": 4 * width}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": width // 4}
    sizes |= {"num_hidden_layers": layers, "vocab_size": 500, "use_cache": False}
    sizes |= {"num_local_experts": 4, "experts_implementation": "batched_mm"}
    sizes |= {"image_size": 64, "patch_size": 8, "depths": [layers] * 2}  # of images
    sizes |= {"num_stages": 2, "hidden_sizes": [width] * 2, "d_ff": 4 * width}
    if name == "Swin":
        sizes = {"image_size": 64, "embed_dim": width // 4, "depths": [2, 2], "num_heads": [2, 4]}
    config = transformers.AutoConfig.for_model(name.lower().removesuffix("encoder"), **sizes)
    model = getattr(transformers, f"{name}Model")(config).eval().to(device)
    is_text = model.main_input_name == "input_ids"
    x = torch.randint(3, 400, (2, tokens)) if is_text else torch.randn(2, 3, 64, 64)
    return lambda x: model(x, return_dict=False)[0], x.to(device)


def race_model(name, ways, device, **sizes):
    model, x = model_of(name, device, **sizes)
    calls = {f"{name}: eager": lambda: model(x)}
    with torch.no_grad(), ExitStack() as stack:
        model(x)  # what it does in its first call only
        for way in ways:
            calls[f"{name}: {way}"] = as_graph(model, x, way, stack.enter_context)
        shared = [label for label in calls if device == "cpu" and label.endswith("measured")]
        return ap.race(calls, close=dict.fromkeys(shared, 1e-5))


def race_models(models, **sizes):
    raced = [race_model(name, **sizes) for name in models]
    checks = {check: held for found in raced for check, held in found.checks.items()}
    return ap.Findings([one for found in raced for one in found.measurements], {}, checks)


# %%
# In the picture at the top, bars left of the dashed line are slower than eager code. Compare those
# of *capture* with the other two: they tell how much of a model's time was launches.

# Folded: the drawing
RUN, MEASURED, CAPTURE = WAYS = ["run", "run, measured", "capture"]
ON_GPU = {"models": MODELS, "ways": WAYS, "device": "cuda", "width": 256, "layers": 4, "tokens": 16}
ON_CPU = ON_GPU | {"models": MODELS[::4], "ways": WAYS[:2], "device": "cpu"}
needs, cores = {"modules": ["transformers"]}, {"gpus": 0, "threads": 8}
gpu = ap.recorded(race_models, name="b10_models", parameters=ON_GPU, **needs)
cpu = ap.recorded(race_models, name="b10_models_on_a_cpu", parameters=ON_CPU, **cores, **needs)


def gains(s, way, models=MODELS):
    return [s[f"{name}: eager"] / s[f"{name}: {way}"] for name in models]


_, ax = plt.subplots(figsize=(4.6, 6.4), layout="constrained")
median_s, places = {label: one.median_s for label, one in gpu.measurements.items()}, len(MODELS)
gained = {way: gains(median_s, way) for way in WAYS}
for i, (way, found) in enumerate(gained.items()):
    ax.barh(np.arange(places) + 0.27 * i, np.array(found) - 1, 0.27, left=1, label=way)
ax.axvline(1, color="0.5", linestyle="--")
ax.set_xscale("log", base=2)
ax.xaxis.set_major_formatter("{x:g}")
ax.set(yticks=range(places), yticklabels=MODELS, ylim=(places, -2.5))
ax.set(title="Models as graphs", xlabel="gain over eager code, ×")
ax.legend(fontsize="small", loc="upper center", ncols=3)
look = f"Look at {CAPTURE!r}: {min(gained[CAPTURE]):.2f} × to {max(gained[CAPTURE]):.2f} ×."
ap.plot.show("b10_run_whole_models", gpu.origin, look=look)

# %%
# Claims are of the models' median, one of the slowest. Where do they hold? See :doc:`/claims`.

# Folded: the table and the claims
eager_ms = [f"{1e3 * median_s[f'{name}: eager']:.2f} ms" for name in MODELS]
noisy = {label for label, one in gpu.measurements.items() if one.warning}
stars = [[" *" if {f"{m}: eager", f"{m}: {way}"} & noisy else "  " for m in MODELS] for way in WAYS]
columns = [map("{:.2f} ×{}".format, gained[w], s) for w, s in zip(WAYS, stars, strict=True)]
slowest = min(zip(gained[MEASURED], MODELS, strict=True))[1]
said = {"notes": ["* one of its two times is noisy"], "highlight": [slowest], "origin": gpu.origin}
run, tuned, captured = (gpu.estimate(lambda s, way=way: median(gains(s, way))) for way in WAYS)
least = gpu.estimate(lambda s: min(gains(s, MEASURED)))
on_cpu = cpu.estimate(lambda s: median(gains(s, MEASURED, ON_CPU["models"])))
ap.show(
    ap.tabulate(["model", "eager", *WAYS], zip(MODELS, eager_ms, *columns, strict=True), **said),
    ap.claim("A traced model keeps most of eager code's speed.", run, at_least=1 / 1.2, unit="×"),
    ap.claim("A measured graph keeps eager code's speed.", tuned, at_least=1 / 1.05, unit="×"),
    ap.claim("Even the slowest of them keeps most of it.", least, at_least=1 / 1.3, unit="×"),
    ap.claim("On a CPU six of them keep it, too.", on_cpu, at_least=1 / 1.05, unit="×"),
    ap.claim("A captured model is clearly faster.", captured, at_least=1.5, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Large kernels hide launches: :doc:`/auto_gallery/one_device/plot_2_small_operators`.
#
# Now you
# -------
# Trace `torch.nn.Linear`. How many tasks does the graph have, and what are they?
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
