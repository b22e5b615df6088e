"""The plain model's modules on a module that runs by a plan. Enters: a model, and other tensors by
its names. Leaves: for each of its modules a stand-in of the same class, with the same names, plain
attributes and mode, so that loops find modules by type and tensors where the plain model has them.

Stand-ins compute nothing: a plan runs all of them at once. What a loop does to them and no plan
honours (attributes, modes, hooks, modules that are replaced) is refused at the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, Self

import msgspec
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.trace.fingerprint import OF_TORCH, configured, constant_text, settings_of
from meshwright.graph.traced import CHANGING, EVALUATION, MODE, Traced

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Where PyTorch keeps what is to be called around a module."""

TREES = ("_modules", "_parameters", "_buffers")
"""Where it keeps what a module has by name."""

BEFORE = "do that before the model is captured and planned for"


class Setting(msgspec.Struct, frozen=True):
    """A plain attribute of a stand-in, as it is in the plan."""

    path: str
    """Of the module."""
    name: str
    text: str
    attributes: dict[str, Any]
    """Where it is: those of the module, or of a configuration that it has."""

    @property
    def value(self) -> object:
        """What it is now."""
        return self.attributes.get(self.name.rpartition(".")[2])


class PlanModule(nn.Module):
    """A module that runs by a plan, with the modules and plain attributes of the plain model."""

    def stand_for(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
        traced: Traced | None,
    ) -> None:
        """Have stand-ins for the modules of a model, with these tensors by its names."""
        tree = stand_ins(model, parameters, buffers, PART)
        vars(self).update({kind: vars(tree)[kind] for kind in TREES}, _tree=tree)
        self.training = model.training
        self._parts = {path: part for path, part in self.named_modules() if path}
        planned = {} if traced is None else traced.settings
        self._evaluating = {
            path for path in self._parts if planned.get(path, {}).get(MODE) == EVALUATION
        }
        if model.training:
            self._evaluating |= {path for path, part in self._parts.items() if not part.training}
        self._settings = tuple(
            setting
            for setting in _settings(tree)
            if planned.get(setting.path, {}).get(setting.name) != CHANGING
        )
        self._values = tuple(setting.value for setting in self._settings)

    def __getattr__(self, name: str) -> Any:
        """A plain attribute of the model, where this module has none of that name."""
        attributes = self._of_model()
        return attributes[name] if name in attributes else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it where the model has it, so that the next step notices."""
        attributes = self._of_model()
        if name in attributes and name not in vars(self):
            attributes[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def planned_settings(self) -> tuple[Setting, ...]:
        """Plain attributes that are as in the plan."""
        return self._settings

    def _of_model(self) -> dict[str, Any]:
        tree = vars(self).get("_tree")
        return {} if tree is None else vars(tree)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as the model does, whose class may keep parts of it in evaluation."""
        self.training = vars(self)["_tree"].train(mode).training
        return self

    def __deepcopy__(self, _: object) -> nn.Module:
        """Copies of the parameters and buffers of this rank, for averages (EMA): they take part in
        no step. `load_state_dict` takes their state_dict.
        """
        tree: nn.Module = vars(self)["_tree"]
        parameters = dict(tree.named_parameters(remove_duplicate=False))
        copies = {
            id(tensor): nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
            for tensor in parameters.values()
        }
        buffers = dict(tree.named_buffers(remove_duplicate=False))
        return stand_ins(
            tree,
            {name: copies[id(tensor)] for name, tensor in parameters.items()},
            {name: buffer.detach().clone() for name, buffer in buffers.items()},
        )

    def apply(self, *_: object, **__: object) -> Self:
        """Refuse what mostly draws weights, of which ranks would draw different ones."""
        _refuse_apply()
        return self

    def refuse_changed_modules(self) -> None:
        """Refuse what was done to modules since, and no plan does."""
        for setting, value in zip(self._settings, self._values, strict=True):
            now = setting.value
            if (now is not value or isinstance(now, list)) and constant_text(now) != setting.text:
                where = f"module {setting.path!r}" if setting.path else "the model"
                raise InputError(
                    f"{setting.name} of {where} is {constant_text(now)} now, and in the plan "
                    f"{setting.text}",
                    BEFORE,
                )
        present = dict(self.named_modules())
        for path, part in self._parts.items():
            if present.pop(path, None) is not part:
                raise InputError(
                    f"module {path!r} is another one now, or gone, and a plan's step computes the "
                    "model that was planned for",
                    BEFORE,
                )
            self._refuse_other_mode(path, part)
            if any(getattr(part, kind) for kind in HOOKS):
                raise InputError(
                    f"module {path!r} has a hook, which a plan's step does not call",
                    "hang forward hooks that change outputs on the model before it is captured, "
                    "and others on the whole module",
                )
        for path in present:
            if path.rpartition(".")[0] in self._parts:
                raise InputError(
                    f"module {path!r} was added, and a plan's step computes the model that was "
                    "planned for",
                    BEFORE,
                )

    def _refuse_other_mode(self, path: str, part: nn.Module) -> None:
        planned = self.training and path not in self._evaluating
        if part.training is planned:
            return
        if self.training and not planned:
            raise InputError(
                f"module {path!r} is in training mode, and in the plan in evaluation mode",
                "put it back after model.train() with its own eval(), as in a loop on one device, "
                "or plan for a model that trains it",
            )
        raise InputError(
            f"module {path!r} is put into {'training' if part.training else 'evaluation'} mode by "
            "itself, and in the plan it has the mode of the whole model",
            "put it there before the model is captured and given to parallelize",
        )


def _refuse_apply(*_: object, **__: object) -> Any:
    raise InputError(
        "apply() is asked of a module that runs by a plan, where what draws weights would draw "
        "other ones on every rank",
        "initialise the model before parallelize; to find modules by their type, walk modules()",
    )


def _refuse_alone(*_: object, **__: object) -> Any:
    raise InputError(
        "this module's computation is a part of the plan's step and cannot be called alone",
        "call the whole model, or the plain module with the state that whole_state() gives",
    )


def _refuse_state(*_: object, **__: object) -> Any:
    raise InputError(
        "a part of a module that runs by a plan is asked to take over a state",
        "give the whole module a state_dict of all of it, or load the part before parallelize",
    )


def _leave_to_whole(*_: object) -> None:
    """Take over nothing: the whole module takes over states."""


COPY: dict[str, Callable[..., Any]] = {"forward": _refuse_alone}
"""Methods of stand-ins in a copy, which takes part in no step."""

PART: dict[str, Callable[..., Any]] = COPY | {
    "apply": _refuse_apply,
    "load_state_dict": _refuse_state,
    "_load_from_state_dict": _leave_to_whole,
}
"""Those of stand-ins in a module that runs by a plan."""


def stand_ins(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, Tensor],
    methods: Mapping[str, Callable[..., Any]] = COPY,
) -> nn.Module:
    """Modules of the same classes as a model's, with these tensors by its names alone, and these
    methods.

    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    >>> copy = stand_ins(model, {"1.bias": nn.Parameter(model[1].bias.detach().clone())}, {})
    >>> print(copy)
    Sequential(
      (0): Dropout(p=0.5, inplace=False)
      (1): Linear(in_features=2, out_features=2, bias=True)
    )
    >>> [name for name, _ in copy.named_parameters()], type(copy[0]) is nn.Dropout
    (['1.bias'], True)
    """
    modules = dict(model.named_modules())
    twins: dict[int, nn.Module] = {}
    for module in modules.values():
        twin = twins[id(module)] = object.__new__(type(module))
        vars(twin).update(vars(nn.Module()), training=module.training)
    for path, module in modules.items():
        prefix = f"{path}." if path else ""
        vars(twins[id(module)]).update(
            _attributes(module, twins),
            _modules={
                name: None if child is None else twins[id(child)]
                for name, child in module._modules.items()
            },
            _parameters=_named(module._parameters, prefix, parameters),
            _buffers=_named(module._buffers, prefix, buffers),
            **methods,
        )
    return twins[id(model)]


def _named(
    names: Mapping[str, Tensor | None], prefix: str, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """The tensors of a module; None where the model has None, nothing where there is none."""
    return {
        name: tensors.get(prefix + name)
        for name, value in names.items()
        if value is None or prefix + name in tensors
    }


def _attributes(module: nn.Module, twins: Mapping[int, nn.Module]) -> dict[str, Any]:
    """Attributes of a module that are none of PyTorch's, with stand-ins for modules in them.

    Tensors and bound methods, which compute with the plain model's tensors, are left out.
    """
    return {
        name: _with_twins(value, twins) if _holds(value, nn.Module) else value
        for name, value in vars(module).items()
        if name not in OF_TORCH and not _holds(value, (Tensor, MethodType))
    }


def _holds(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether a value is of some kinds, or a container of such."""
    match value:
        case dict():
            return any(_holds(element, kinds) for element in value.values())
        case list() | tuple():
            return any(_holds(element, kinds) for element in value)
        case _:
            return isinstance(value, kinds)


def _with_twins(value: Any, twins: Mapping[int, nn.Module]) -> Any:
    match value:
        case dict():
            return {key: _with_twins(element, twins) for key, element in value.items()}
        case list() | tuple():
            return type(value)(_with_twins(element, twins) for element in value)
        case _:
            return twins.get(id(value), value)


def _settings(tree: nn.Module) -> Iterator[Setting]:
    """What decides what modules compute (`capture.trace.settings`), where it can be changed."""
    for path, (_, settings) in settings_of(tree).items():
        attributes = vars(tree.get_submodule(path))
        for name, text in settings:
            first, dot, _ = name.partition(".")
            holder = configured(attributes.get(first)) if dot else attributes
            if holder is not None and name.rpartition(".")[2] in holder:
                yield Setting(path, name, text, holder)


def standing(root: nn.Module, name: str) -> Tensor | None:
    """The parameter that a module has under a name with dots."""
    *path, last = name.split(".")
    owner: nn.Module | None = root
    for step in path:
        owner = None if owner is None else owner._modules.get(step)
    return None if owner is None else owner._parameters.get(last)
