"""The model to train: a sequence of layers, a loss, and the data.

A `Model` is all that the executor knows of a network. Each layer takes what the
layer before returned: a tensor, or any pytree of tensors (`bfpp.executor.devices.messages`);
the first takes the inputs. A layer is a module, or a function that makes one:
only the layers of a rank's own stages are made on it, each from a seed of its
own, so that the weights do not depend on how the model is cut. A module is
copied: training leaves the given one as it is, and so it does where a function
returns a module that somebody keeps.

What layers must keep to:

- They compute the same again when they are run again on the same input. What
  they draw from torch's own generator (dropout, say) is drawn again too: before
  each forward pass, a layer that was seen to draw gets a seed of the run's seed,
  the step, the micro-batch and its own number, so that its numbers depend
  neither on the cut nor on the schedule. They do depend on the kind of device.
- They share no parameters over stages, except for the first and the last one where
  the task graph has tied embeddings. Parameters that require no gradient are
  frozen: sharded, gathered and saved like others, without gradients or moments.
  Buffers keep their precision where the run's is lower. Those that passes change
  are state (`bfpp.executor.model.buffers`), and all others constants.
- Passes change nothing else that later ones read (`bfpp.executor.model.tracing.pass_effects`), and
  what one sets is read in its stage alone (`bfpp.executor.model.tracing.originals`).
- Parameters are the layers': nothing else that requires gradients is used, and
  the loss has none.
- They do not change their input in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bfpp.executor.devices.messages import Tree
from bfpp.executor.model.fp32_modules import islands_of, surround
from bfpp.executor.model.modules import PART, Given, in_sequence
from bfpp.executor.settings import EmbeddingStage
from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.layout.cut import cut_layers, cut_of
from bfpp.schedules.layout.framework_cuts import is_modules, named_stages

if TYPE_CHECKING:
    from bfpp.executor.checkpoint.state_dicts import StateDict

Layer = nn.Module | Callable[[], nn.Module]

GENERATOR = RLock()
"""Lock of torch's generator, which the threads of a process share."""


@dataclass(frozen=True)
class Model:
    """A network in layers.

    `loss(output, targets)` is the mean over a micro-batch, a scalar.
    `batch(step, samples)` returns the inputs and targets of those samples of
    that step's batch, the same on every rank that asks. `attached` is how many
    layers at the start and at the end (embedding, output) are not counted when
    the others are divided over stages. `varies`: batches of different steps may
    have different shapes (sequences of other lengths), those of one step may not.
    `held_out(step, samples)` returns batches that evaluations take. `tied` names
    parameters that are others of an earlier layer, where functions make both:
    `{"5.scores.weight": "0.tokens.weight"}`. `names` are those of the layers, if they have any,
    and `constants` those of buffers that the network itself has. The first `weights` are stored
    ones, or those that layers are made with.
    """

    layers: Sequence[Layer]
    loss: Callable[[Any, Any], Tensor]
    batch: Callable[[int, range], tuple[Tree, Tree]]
    attached: tuple[int, int] = (0, 0)
    varies: bool = False
    held_out: Callable[[int, range], tuple[Tree, Tree]] | None = None
    tied: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    constants: Collection[str] = ()
    weights: StateDict | None = None

    @classmethod
    def of(
        cls,
        network: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        batch: Callable[[int, range], tuple[Tree, Tree]],
        **others: Any,
    ) -> Model:
        """A network that calls its parts one after another: these, by name, are the layers.

        Raises `InvalidConfiguration` for one that does more than that.
        """
        parts = in_sequence(network, batch(0, range(1))[0])
        of_parts = tuple(f"{name}." for name in parts)
        constants = {name for name in network.state_dict() if not name.startswith(of_parts)}
        return cls([*parts.values()], loss, batch, names=[*parts], constants=constants, **others)

    def own_name(self, name: str) -> str:
        """The name in the network's `state_dict()` of what a layer's number and a name stand for.

        Layers without names have their numbers, as in a `torch.nn.Sequential` of all.
        """
        layer, is_of_layer, rest = name.partition(".")
        if not self.names or not is_of_layer:
            return name
        number = int(layer)
        if isinstance(self.layers[number], Given):
            rest = rest.removeprefix(f"{PART}.")
        return f"{self.names[number]}.{rest}"


def cut(model: Model, units: int, ends: EmbeddingStage = EmbeddingStage.ATTACHED) -> list[range]:
    """The layers of each unit; raises `InvalidConfiguration` if one would have none."""
    return cut_layers(len(model.layers), units, model.attached, own_ends=ends is EmbeddingStage.OWN)


def cut_as(
    given: str, model: Model, layout: Layout, ends: EmbeddingStage = EmbeddingStage.ATTACHED
) -> list[range]:
    """The layers of each unit for a `given` cut: the names or numbers of each stage's layers.

    Attached layers go to the first and the last stage besides.
    """
    if ends is EmbeddingStage.OWN:
        raise InvalidConfiguration("cut", "says where the ends are: not with --embedding-stage")
    by_name = bool(model.names) and is_modules(given)
    before, after = (0, 0) if by_name else model.attached
    inner = len(model.layers) - before - after
    stages = [*(_named(given, model) if by_name else cut_of(given, inner, layout.stages))]
    if len(stages) != layout.stages:
        raise InvalidConfiguration(
            "cut", f"says {len(stages)} stages, and there are {layout.stages}"
        )
    stages[0] += before
    stages[-1] += after
    ranges, first = [], 0
    for stage, (layers, units) in enumerate(zip(stages, layout.units_per_stage, strict=True)):
        if layers < units:
            raise InvalidConfiguration(
                "cut", f"stage {stage} has {layers} layers, which are not {units} units"
            )
        ranges += [range(first + own.start, first + own.stop) for own in cut_layers(layers, units)]
        first += layers
    return ranges


def _named(given: str, model: Model) -> list[int]:
    """The number of layers that each stage names, in the model's order."""
    stages = named_stages(given)
    names = [name for stage in stages for name in stage]
    for name, layer in zip_longest(names, model.names):
        if name != layer:
            defect = f"has {name}" if name else "ends"
            due = f"the model's next part is {layer}" if layer else "the model ends"
            raise InvalidConfiguration("cut", f"{defect} where {due}")
    return list(map(len, stages))


@contextmanager
def drawing(*of: int) -> Iterator[None]:
    """Random numbers that depend on these numbers alone; one thread at a time draws them."""
    seed = int.from_bytes(sha256(repr(of).encode()).digest()[:7])
    with GENERATOR, torch.random.fork_rng(devices=[]):
        _seed_generators(seed)
        yield


def _seed_generators(seed: int) -> None:
    """Seed the generators of the host and, where they are in use, of GPUs.

    `torch.manual_seed` would keep the seed and the stack for each kind of device that has not
    started: some milliseconds for each draw, and memory that grows with them.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def build(
    model: Model, layers: Iterable[int], seed: int, kept: Collection[int] = ()
) -> dict[int, nn.Module]:
    """The modules of some layers, each made with random numbers of its own.

    Given modules are copied, and so are those of the `kept` layers: what their
    functions return is not theirs alone. Layers that share a parameter share it still.
    """
    copied: dict[int, Any] = {}
    made = {}
    for number in layers:
        layer = model.layers[number]
        with drawing(seed, number):
            module = make(layer, number)
            is_own = module is not layer and number not in kept
            name = f"layer {number} ({type(module).__name__})"
            made[number] = module if is_own else copy(module, name, copied)
    tie(made, model.tied)
    return made


def named(parameter: str) -> tuple[int, str]:
    """The layer of a parameter, and its name there."""
    layer, _, path = parameter.partition(".")
    return int(layer), path


def tie(layers: Mapping[int, nn.Module], shared: Mapping[str, str]) -> None:
    """Let layers that share a parameter have one, of those that are here."""
    one: dict[str, nn.Parameter] = {}
    for later, first in shared.items():
        for layer, path in map(named, (first, later)):
            if layer in layers:
                module, _, key = path.rpartition(".")
                place = layers[layer].get_submodule(module)
                setattr(place, key, one.setdefault(first, getattr(place, key)))


def make(layer: Layer, number: int) -> nn.Module:
    """The module that is given, or that the function returns."""
    if isinstance(layer, nn.Module):
        return layer
    try:
        module: object = layer()
    except TypeError as error:
        raise InvalidConfiguration("model", f"layer {number} cannot be made: {error}") from error
    if not isinstance(module, nn.Module):
        raise InvalidConfiguration(
            "model", f"layer {number} is neither a module nor a function that makes one"
        )
    return module


def copy(module: nn.Module, name: str, copied: dict[int, Any]) -> nn.Module:
    """A copy of a layer, by its name in messages; modules `copied` before are not copied again."""
    try:
        return deepcopy(module, copied)
    except Exception as error:  # whatever a user's module raises
        raise InvalidConfiguration(
            "model",
            f"{name} cannot be copied, so it must be a function that makes a new one whenever it "
            f"is called: {error}",
        ) from error


def compute_in(
    module: nn.Module, dtype: torch.dtype, keeps_float32: Sequence[str] = ()
) -> nn.Module:
    """Change the precision of a module: of its parameters, and of buffers if theirs is lower.

    Parts that keep float32 (`bfpp.executor.model.fp32_modules`) have at least that.
    """
    islands = islands_of(module, keeps_float32)
    within = {id(each) for island in islands for each in island.modules()}
    for each in module.modules():
        own = torch.promote_types(dtype, torch.float32) if id(each) in within else dtype
        for parameter in each.parameters(recurse=False):
            parameter.data = parameter.data.to(own)
        for name, buffer in each.named_buffers(recurse=False):
            setattr(each, name, buffer.to(_widened(buffer.dtype, own)))
    for island in islands:
        surround(island, dtype)
    return module


def _widened(dtype: torch.dtype, run: torch.dtype) -> torch.dtype:
    """A buffer's precision, or that of the run if it has more; whole numbers stay whole."""
    own = dtype.to_real()
    if not own.is_floating_point or own.itemsize >= run.itemsize:
        return dtype
    return run.to_complex() if dtype.is_complex else run
