"""A CUDA graph with branches: two functions in plain PyTorch, one with autopar."""

import torch

import autopar as ap


def on_branches(functions, x, sides):
    """Each function of x, on a stream of its own."""
    main, results = torch.cuda.current_stream(x.device), []
    start = main.record_event()
    for fn, side in zip(functions, sides, strict=True):
        side.wait_event(start)  # fork
        with torch.cuda.stream(side):
            results.append(fn(x))
        main.wait_stream(side)  # join
    return results


def captured_branches(functions, x):
    """A CUDA graph that has each function of x on a branch, and their results."""
    graph, sides = torch.cuda.CUDAGraph(), [torch.cuda.Stream(x.device) for _ in functions]
    on_branches(functions, x, sides)  # outside of the capture: libraries load their kernels
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(x.device)):
        results = on_branches(functions, x, sides)
    return graph, results  # x.copy_(new), then graph.replay(): results have new values


def captured_by_graph(functions, x):
    """The same, on as many branches as are the fastest; `captured.replay(new)[tasks]`."""
    graph = ap.TaskGraph()
    tasks = [graph.add(fn, x, writes=()) for fn in functions]
    return graph.capture(inputs=[x]), tasks
