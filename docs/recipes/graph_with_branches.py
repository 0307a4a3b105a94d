"""A CUDA graph with branches: one function in plain PyTorch, one with autopar."""

import torch

import autopar as ap


def captured_branches(functions, x):
    """A CUDA graph that has each function of x on a branch, and their results."""
    sides = [torch.cuda.Stream(x.device) for _ in functions]

    def branches():
        main, results = torch.cuda.current_stream(x.device), []
        for fn, side in zip(functions, sides, strict=True):
            side.wait_stream(main)  # fork
            with torch.cuda.stream(side):
                results.append(fn(x))
        for side in sides:
            main.wait_stream(side)  # join
        return results

    branches()  # a first time outside: libraries load their kernels
    torch.cuda.synchronize(x.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(x.device)):
        results = branches()
    return graph, results  # x.copy_(new), then graph.replay(): results have new values


def captured_by_graph(functions, x):
    """The same, on as many branches as are the fastest; `captured.replay(new)[tasks]`."""
    graph = ap.TaskGraph()
    tasks = [graph.add(fn, x, writes=()) for fn in functions]
    return graph.capture(inputs=[x]), tasks
