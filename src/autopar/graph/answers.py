"""Answers: what code is told that asks whether it is traced."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.overrides import has_torch_function

from autopar.graph.chance import replaced
from autopar.graph.watch import Refusals
from autopar.torch_private import function_modes, without_function_mode


@contextlib.contextmanager
def answering(questions: dict[str, str], asked: list[bool]) -> Iterator[None]:
    """Let code that asks whether it is traced do what it does in a call.

    What it does instead may be slower, and equal but for rounding. Questions are noted in `asked`;
    those of other threads get the answer that is theirs.
    """
    me = threading.get_ident()

    def untraced(question: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*values: Any, **options: Any) -> Any:
            if threading.get_ident() != me:
                return question(*values, **options)
            asked.append(True)  # and no values, which nobody is to hold
            return question is has_torch_function and _asked_untraced(question, *values)

        return answer

    with contextlib.ExitStack() as back:
        for name, key in questions.items():
            library = sys.modules.get(name)
            if hasattr(library, key):
                back.enter_context(replaced(library, key, untraced(getattr(library, key))))
        yield


def _asked_untraced(question: Callable[..., Any], *values: Any) -> bool:
    """Ask with the modes alone that are not of this tracing."""
    modes = function_modes()
    with contextlib.ExitStack() as back:
        for _ in modes:
            back.enter_context(without_function_mode())
        its_own = [type(mode).__module__ for mode in modes if not isinstance(mode, Refusals)]
        return any(not name.startswith("torch.fx.") for name in its_own) or question(*values)
