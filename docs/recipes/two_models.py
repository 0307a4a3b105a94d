"""Two models on two GPUs: one function in plain PyTorch, one with autopar."""

import autopar as ap


def outputs_of(models, inputs):
    """The outputs of models on the host; each model and its input lie on a GPU of their own."""
    outputs = [model(x) for model, x in zip(models, inputs, strict=True)]  # nothing waits here
    return [y.cpu() for y in outputs]  # the first wait, when all is launched


def outputs_by_graph(models, inputs):
    """The same; a thread for each GPU launches, so a model that waits does not hold up others."""
    graph = ap.TaskGraph()
    tasks = [graph.add(model, x, writes=()) for model, x in zip(models, inputs, strict=True)]
    run = graph.run()
    return [run[task].cpu() for task in tasks]
