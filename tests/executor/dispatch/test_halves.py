"""A backward pass in halves: the gradients of a whole one, nothing computed twice, nothing kept."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from bfpp.executor.dispatch.split_backward import backward_input, backward_weight

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 6


class Twice(nn.Module):
    """One layer, passed twice, with something between that has parameters too."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.between = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.again(torch.tanh(self.between(self.again(value))))


class Tied(nn.Module):
    """An embedding whose table is the output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.embed(value))) @ self.embed.weight.t()


class Hooked(nn.Module):
    """Gradients are changed on their way, before and behind a product with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        hidden = self.first(value)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: 3 * gradient)
        result = self.second(torch.tanh(hidden))
        if result.requires_grad:
            result.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
            result.grad_fn.register_prehook(lambda given: tuple(2 * each for each in given))
        return result


class Parts(nn.Module):
    """Nodes with several outputs, and parameters behind what is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 2 * WIDTH)
        self.scale = nn.Parameter(torch.ones(2, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        one, other = self.project(value).chunk(2, dim=-1)
        up, down = torch.tanh(self.scale).unbind()
        return torch.sigmoid(one * up) * other + down.exp()


class Aside(nn.Module):
    """A result that the input does not lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.layer(self.table).expand(len(value), WIDTH)


class Own(torch.autograd.Function):
    """A function that computes all its gradients, whichever are asked for."""

    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value, weight)
        return value @ weight

    @staticmethod
    def backward(ctx, gradient):
        value, weight = ctx.saved_tensors
        return gradient @ weight.t(), value.t() @ gradient


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return Own.apply(value, self.weight)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(self.layers, value, use_reentrant=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.all = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        parts = self.all(self.norm(value))[None, None].chunk(3, dim=-1)
        return value + functional.scaled_dot_product_attention(*parts)[0, 0]


STAGES: dict[str, Callable[[], list[nn.Module]]] = {
    "linear layers": lambda: [nn.Linear(WIDTH, WIDTH) for _ in range(3)],
    "layers passed twice": lambda: [nn.Linear(WIDTH, WIDTH), Twice(), nn.Tanh()],
    "tied embedding": lambda: [Tied(), nn.Linear(WIDTH, WIDTH)],
    "embedding": lambda: [nn.Embedding(WIDTH, WIDTH), Twice(), nn.Linear(WIDTH, 1)],
    "hooks on gradients": lambda: [nn.Linear(WIDTH, WIDTH), Hooked(), Hooked()],
    "several outputs": lambda: [nn.Tanh(), Parts(), Parts()],
    "weights made of parameters": lambda: [weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()] * 2,
    "an input without use": lambda: [Aside(), nn.Linear(WIDTH, WIDTH)],
    "an input without use at the end": lambda: [nn.Linear(WIDTH, WIDTH), Aside()],
    "functions of the model's": lambda: [Custom(), nn.Tanh(), Custom()],
    "checkpoints of the model's": lambda: [Checkpointed(), nn.Tanh(), Checkpointed()],
    "attention": lambda: [Attention(), nn.Linear(WIDTH, WIDTH)],
    "inputs handed on": lambda: [nn.Identity(), nn.Identity()],
    "no parameters": lambda: [nn.Tanh(), nn.Sigmoid()],
    "one layer": lambda: [nn.Linear(WIDTH, WIDTH)],
}


class Stage:
    """Layers with their gradients, and an input, with a gradient unless it is a batch."""

    def __init__(self, layers: list[nn.Module], has_gradient: bool) -> None:
        self.model = nn.Sequential(*layers).double()
        self.zero()
        self.value = torch.randn(5, WIDTH, dtype=torch.float64, requires_grad=has_gradient)
        if any(isinstance(each, nn.Embedding) for each in self.model[0].modules()):
            self.value = torch.arange(5)

    def zero(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def copy(self) -> Stage:
        found = deepcopy(self)
        found.zero()
        return found

    def forward(self) -> tuple[Tensor, object]:
        result, start = self.value, None
        for layer in (None, *self.model):
            result = layer(result) if layer else result
            if start is None and result.requires_grad:
                start = [get_gradient_edge(result)]
        return result, start

    def whole(self, gradient: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        result, _ = self.forward()
        result.backward(gradient(result))
        return self.value.grad

    def halves(self, gradient: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        result, start = self.forward()
        before = [each.clone() for each in self.gradients]
        seed = gradient(result)
        values = [self.value] if self.value.requires_grad else []
        found, branches = backward_input(values, start, [result], None if seed is None else [seed])
        assert all(map(torch.equal, self.gradients, before))  # not before the weight half
        backward_weight(branches)
        assert branches == []
        return found[0] if found else None

    @property
    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters()]


def slope(result: Tensor) -> Tensor:
    return torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)


@pytest.mark.parametrize("has_gradient", [True, False], ids=["input", "batch"])
@pytest.mark.parametrize("name", STAGES)
def test_halves_have_the_gradients_of_a_whole_pass(name: str, has_gradient: bool) -> None:
    torch.manual_seed(3)
    whole = Stage(STAGES[name](), has_gradient)
    if not has_gradient and not list(whole.model.parameters()):
        pytest.skip("nothing is trained")
    split = whole.copy()
    for _ in range(2):  # gradients are added up
        expected, found = whole.whole(slope), split.halves(slope)
        if has_gradient and expected is not None:
            assert torch.equal(expected, found)
            whole.value.grad = None
    assert any(gradient.any() for gradient in whole.gradients) or not whole.gradients
    for expected, found in zip(whole.gradients, split.gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_a_loss_has_the_gradient_1() -> None:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Flatten(0)]
    whole = Stage([*layers, nn.Linear(5, 1), nn.Flatten(0), Summed()], True)
    split = whole.copy()
    assert torch.equal(whole.whole(lambda _: None), split.halves(lambda _: None))
    assert all(map(torch.equal, whole.gradients, split.gradients))


class Summed(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.sum()


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counted[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def number(self) -> int:
        return self.counted["mm"] + self.counted["addmm"]


@pytest.mark.parametrize("layers", [1, 4])
def test_each_product_is_computed_once(layers: int) -> None:
    stage = Stage(
        [each for _ in range(layers) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())], True
    )
    result, start = stage.forward()
    with Products() as first:
        _, branches = backward_input([stage.value], start, [result], [slope(result)])
    with Products() as second:
        backward_weight(branches)
    assert (first.number, second.number) == (layers, layers)


class Kept:
    """Tensors that autograd keeps, one object for each."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("name", STAGES)
def test_nothing_is_kept_after_the_weight_half(name: str) -> None:
    """Nor is anything left to the garbage collector."""
    kept: weakref.WeakSet[Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Kept:
        kept.add(found := Kept(tensor.detach()))
        return found

    stage = Stage(STAGES[name](), True)
    gc.collect()
    gc.disable()
    try:
        with saved_tensors_hooks(pack, lambda found: found.tensor):
            result, start = stage.forward()
            found, branches = backward_input([stage.value], start, [result], [slope(result)])
        del result, start, found
        while branches:
            held = len(kept)
            backward_weight([branches.pop(0)])
            assert len(kept) <= held
        assert not kept
    finally:
        gc.enable()
