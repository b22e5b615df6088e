"""Names of operators, layers and arguments, from what was called. Knows only text.

Enters: the stack of modules of a traced node. Leaves: a path as the user would write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec


def layer_path(stack: Sequence[str], root: str = "") -> str:
    """The path of the call: a module that is shared is named under the one that calls it.

    A second call of a module is traced as name@1; both are the same layer.

    >>> layer_path(["", "model", "model.layers.0", "model.layers.0.attention@1"], root="model")
    'layers.0.attention'
    >>> layer_path(["", "layers.0.attention", "rotation"])
    'layers.0.attention.rotation'
    """
    path = ""
    for traced in stack:
        module = traced.split("@")[0]
        if module == root:
            module = ""
        elif root:
            module = module.removeprefix(f"{root}.")
        if not module or module == path:
            continue
        inside = not path or module.startswith(f"{path}.")
        path = module if inside else f"{path}.{module.rpartition('.')[2]}"
    return path


def leaf_names(prefix: str, value: object) -> Iterator[str]:
    """One name for each leaf of a nested argument, in the order of PyTorch's trees.

    >>> list(leaf_names("masks", ({"left": 1}, 2)))
    ['masks.0.left', 'masks.1']
    """
    match value:
        case Mapping():
            for key, item in value.items():
                yield from leaf_names(f"{prefix}.{key}".lstrip("."), item)
        case tuple() | list():
            for index, item in enumerate(value):
                yield from leaf_names(f"{prefix}.{index}", item)
        case _:
            yield prefix


class Namer(msgspec.Struct):
    """Hands out names that nobody else has.

    >>> namer = Namer()
    >>> namer.fresh("fc", "linear"), namer.fresh("fc", "linear"), namer.fresh("", "add")
    ('fc.linear', 'fc.linear_2', 'add')
    """

    used: dict[str, int] = msgspec.field(default_factory=dict)
    """How often each name was asked for."""

    def fresh(self, *parts: str) -> str:
        """The parts joined, numbered from 2 where the name is taken."""
        name = ".".join(filter(None, parts))
        count = self.used[name] = self.used.get(name, 0) + 1
        return name if count == 1 else self.fresh(f"{name}_{count}")
