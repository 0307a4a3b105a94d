"""Models of a library that nobody made for tracing, with sizes of one's own."""

import torch

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
