# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run whole models as graphs
==========================

| **You'll do:** trace models of a library, as they are, and run them as graphs.
| **You'll learn:** what a graph costs where there is nothing to gain, and when `capture` pays.
| **You need:** 5 minutes, and no GPU: the parts for one and for many cores are shown from records.
  Read :doc:`plot_3_let_the_graph_find_the_parallelism` first.

Most models are nearly a chain: each operator needs the one before, so little can run at once.
"""

# %%
# A model is traced as it is
# --------------------------
# `trace` calls a model once and notes its operators. `run` issues them one by one, as eager code
# does. `measure` tries how many threads or streams to take. `capture` makes a *CUDA graph*, which
# launches all kernels at once. Code that branches on data is refused.

from contextlib import ExitStack, suppress

import matplotlib.pyplot as plt
import torch

import autopar as ap


def as_graph(model, x, way):
    graph, results = ap.TaskGraph.trace(model, x)
    if way != "run":
        graph.measure()
    if way != "capture":
        return graph, lambda: graph.run()[results]
    captured = graph.capture()
    return graph, lambda: captured.replay()[results]


# %%
# The models come from `transformers <https://huggingface.co/docs/transformers/index>`_, with random
# weights. All results equal eager code's bit for bit, but those of a CPU with fewer threads.

# Folded: the models, and how each was timed
TEXTS = "Bert Roberta Albert Electra Phi DistilBert Llama Mistral Qwen2 Olmo2 Gemma Mixtral GPT2"
MODELS = f"{TEXTS} Bloom T5Encoder Mamba ViT DeiT Swin ConvNext ResNet".split()


def model_of(name, device, width, layers, tokens):
    """A function that calls a model and returns tensors alone, and its input."""
    import transformers

    def call(x):
        found = torch.utils._pytree.tree_leaves(model(x, return_dict=False))
        return [part for part in found if isinstance(part, torch.Tensor)]

    heads = "num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_local_experts"
    sizes = dict.fromkeys(heads, 4)  # by all names that models have for them
    sizes |= dict.fromkeys(("hidden_size", "n_embd", "dim", "d_model", "embedding_size"), width)
    sizes |= dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), layers)
    sizes |= dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), 4 * width)
    sizes |= {"head_dim": width // 4, "d_kv": width // 4, "experts_implementation": "batched_mm"}
    sizes |= {"vocab_size": 500, "image_size": 64, "patch_size": 8, "use_cache": False}
    if name in ("ConvNext", "ResNet"):
        sizes |= {"hidden_sizes": [width, width], "depths": [layers, layers], "num_stages": 2}
    if name == "Swin":
        sizes = {"image_size": 64, "embed_dim": width // 4, "depths": [2, 2], "num_heads": [2, 4]}
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**sizes)
    model = getattr(transformers, f"{name}Model")(config).eval().to(device)
    is_text = model.main_input_name == "input_ids"
    x = torch.randint(3, 400, (2, tokens)) if is_text else torch.randn(2, 3, 64, 64)
    return call, x.to(device)


def race_models(models, ways, device, **sizes):
    measurements, checks = [], {}
    for name in models:
        call, x = model_of(name, device, **sizes)
        calls = {f"{name}: eager": lambda call=call, x=x: call(x)}
        with torch.no_grad(), ExitStack() as stack:
            call(x)  # what it does in its first call only
            for way in ways:
                with suppress(*[ValueError] * (way == "capture")):  # a task may be on the CPU
                    graph, calls[f"{name}: {way}"] = as_graph(call, x, way)
                    stack.enter_context(graph)  # its threads stay there
            shared = [label for label in calls if device == "cpu" and label.endswith("measured")]
            found = ap.race(calls, close=dict.fromkeys(shared, 1e-5))
        measurements, checks = [*measurements, *found.measurements], checks | found.checks
    return ap.Findings(measurements, {}, checks)


# %%
# In the picture at the top, bars to the left of the dashed line are slower than eager code.

# Folded: the drawing
RUN, MEASURED, CAPTURE = WAYS = ["run", "run, measured", "capture"]
needs, cores = {"modules": ["transformers"]}, {"gpus": 0, "threads": 8}
ON_GPU = {"models": MODELS, "ways": WAYS, "device": "cuda", "width": 256, "layers": 4, "tokens": 16}
ON_CPU = ON_GPU | {"models": MODELS[::4], "ways": WAYS[:2], "device": "cpu"}
gpu = ap.recorded(race_models, name="b10_models", parameters=ON_GPU, **needs)
cpu = ap.recorded(race_models, name="b10_models_on_a_cpu", parameters=ON_CPU, **cores, **needs)


def gains(s, way):  # no number where a model was not captured
    labels = [(f"{name}: eager", f"{name}: {way}") for name in MODELS]
    return [s[eager] / s[label] if label in s else torch.nan for eager, label in labels]


def middle(record, way, power=-1):
    return record.estimate(lambda s: torch.tensor(gains(s, way)).nanmedian().item() ** power)


_, ax = plt.subplots(figsize=(4.6, 6.4), layout="constrained")
median_s = {label: one.median_s for label, one in gpu.measurements.items()}
for i, way in enumerate(WAYS):
    more = [gain - 1 for gain in gains(median_s, way)]
    ax.barh([n + 0.27 * i for n in range(len(MODELS))], more, 0.27, left=1, label=way)
ax.axvline(1, color="0.5", linestyle="--")
ax.set_yticks(range(len(MODELS)), MODELS)
ax.set_xscale("log", base=2)
ax.set(title="Models as graphs", xlabel="gain over eager code, ×", ylim=(len(MODELS), -2.5))
ax.xaxis.set_major_formatter("{x:g}")
ax.legend(fontsize="small", loc="upper center", ncols=3)
ap.plot.show("b10_run_whole_models", gpu.origin)

# %%
# The first three claims are of the middle model's time over eager code's, the last of its gain.
rows = [
    [name, f"{1e3 * median_s[f'{name}: eager']:.2f} ms", *(f"{gain:.2f} ×" for gain in found)]
    for name, *found in zip(MODELS, *(gains(median_s, way) for way in WAYS), strict=True)
]
slow = [n for n in MODELS if median_s[f"{n}: eager"] < 0.95 * median_s[f"{n}: {MEASURED}"]]
notes = [f"over 5 % slower than eager code, though measured: {', '.join(slow) or 'none'}"]
ap.show(
    ap.tabulate(["model", "eager", *WAYS], rows, notes=notes, origin=gpu.origin),
    ap.claim("A traced model takes little more time.", middle(gpu, RUN), at_most=1.2, unit="×"),
    ap.claim("A measured one takes hardly more.", middle(gpu, MEASURED), at_most=1.05, unit="×"),
    ap.claim("On a CPU it takes hardly more.", middle(cpu, MEASURED), at_most=1.05, unit="×"),
    ap.claim("A captured one gains clearly.", middle(gpu, CAPTURE, 1), at_least=1.5, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Large kernels hide launches: :doc:`plot_5_how_fine_may_tasks_be`.
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
