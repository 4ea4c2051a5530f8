"""What torch tells only in private: nothing else of ours reads `torch._C` or a module's hooks."""

import torch
from torch import nn


def is_transformed() -> bool:
    """Whether a trace or a function transform (`vmap`, `grad`) watches what is done."""
    return torch._C._get_tracing_state() is not None or torch._C._are_functorch_transforms_active()


def has_function_modes() -> bool:
    """Whether a mode, such as that of MC dropout, answers for torch's functions."""
    return torch._C._len_torch_function_stack() > 0


def is_in_backward() -> bool:
    """Whether this runs inside a backward pass, as what gradient checkpointing repeats does."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def is_untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Neither another module in its place nor a hook on it."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks
