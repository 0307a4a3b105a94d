"""A CUDA graph with branches: one function in plain PyTorch, one with autopar."""

import torch

import autopar as ap


def captured_branches(functions, x):
    """A CUDA graph that has each function of x on a branch, and their results."""
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.Stream(x.device)
    sides = [torch.cuda.Stream(x.device) for _ in functions]
    main.wait_stream(torch.cuda.current_stream(x.device))  # for x
    for stage in (torch.cuda.stream(main), torch.cuda.graph(graph, stream=main)):
        with stage:  # a first time outside of the capture: libraries load their kernels
            results = []
            for fn, side in zip(functions, sides, strict=True):
                side.wait_stream(main)  # fork
                with torch.cuda.stream(side):
                    results.append(fn(x))
            for side in sides:
                main.wait_stream(side)  # join
    return graph, results  # x.copy_(new), then graph.replay(): results have new values


def captured_by_graph(functions, x):
    """The same, on as many branches as are the fastest; `captured.replay(new)[tasks]`."""
    graph = ap.TaskGraph()
    tasks = [graph.add(fn, x, writes=()) for fn in functions]
    return graph.capture(inputs=[x]), tasks
