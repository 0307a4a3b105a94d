"""Models of a library that nobody made for tracing: they and their state equal eager code's."""

import os
from importlib.util import find_spec

import pytest
import torch

from autopar import TaskGraph

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights are random: nothing is fetched
pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="it comes with the group models"),
    pytest.mark.filterwarnings("ignore"),  # the library's
]

_SIZES = {"width": 64, "wide": 128, "layers": 2}
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


def model_of(name, **more):
    """A model of the library, a function that calls it and returns tensors alone, and its input."""
    import transformers

    def of_size(value):
        return [*map(of_size, value)] if isinstance(value, list) else _SIZES.get(value, value)

    def call(x):
        found = torch.utils._pytree.tree_leaves(model(x, return_dict=False))
        return [part for part in found if isinstance(part, torch.Tensor)]

    torch.manual_seed(0)
    sizes = {key: of_size(value) for key, value in (MODELS[name] | more).items()}
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**sizes)
    config.use_cache = False
    model = getattr(transformers, f"{name}Model")(config).eval()
    is_text = model.main_input_name == "input_ids"
    return model, call, torch.randint(3, 400, (2, 16)) if is_text else torch.randn(2, 3, 64, 64)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.stress) for name in MODELS])
def test_a_model_is_equal_to_eager_code(name, training):
    (model, call, x), (twin, as_eager, _) = (model_of(name) for _ in range(2))
    with torch.no_grad():
        for one, calls in ((model, call), (twin, as_eager)):
            one.train(training)
            torch.manual_seed(0)
            calls(x)  # what it does in its first call only
        graph, results = TaskGraph.trace(call, x)
        for seed in range(2):
            torch.manual_seed(seed)
            wanted = as_eager(x)
            torch.manual_seed(seed)
            found = graph.run()[results]
            assert wanted
            assert all(map(torch.equal, found, wanted))
    state, wanted = model.state_dict(), twin.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)


@pytest.mark.stress
def test_what_torch_cannot_trace_is_refused_with_its_line(capfd):
    _, call, x = model_of("Mixtral", experts_implementation="grouped_mm")
    with torch.no_grad(), pytest.raises(ValueError, match=r"line \d+ of moe.py, `.*grouped_mm"):
        TaskGraph.trace(call, x)
    assert len(capfd.readouterr().err.splitlines()) <= 1
