"""Graph: let dependencies decide what runs at once.

Read `task_graph` first: tasks become nodes, `hazards` and `guard` say who waits for whom,
`schedule` chooses lanes, and `run` carries out the `plan` they make.
"""
