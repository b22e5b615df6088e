"""A config.json of Transformers. Enters: a path, or the name of a configuration that comes with
Meshwright (`published/`). Leaves: the class that it names and its settings. No hub is asked, and no
code of a model repository is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshwright.base.errors import InputError
from meshwright.capture.transformers.settings import TRAINING

FILE = ".json"

ABOUT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "model_type",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
        *TRAINING,
    }
)
"""What a file says besides settings of the model."""


FOLDER = Path(__file__).parent / "published"


def is_configuration(name: str) -> bool:
    """Whether a name is a file, or that of a published configuration.

    >>> is_configuration("llama3.3-70b"), is_configuration("LlamaForCausalLM")
    (True, False)
    """
    return name.endswith(FILE) or (FOLDER / f"{name}{FILE}").is_file()


def published_names() -> tuple[str, ...]:
    """The configurations that come with Meshwright.

    >>> published_names()[:2]
    ('deepseek-v3', 'gemma3-1b')
    """
    return tuple(sorted(path.stem for path in FOLDER.glob(f"*{FILE}")))


def read_configuration(path: str) -> tuple[str, dict[str, Any]]:
    """The name of a class, and settings."""
    place = Path(path) if path.endswith(FILE) else FOLDER / f"{path}{FILE}"
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path!r}", "give the path of a config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path!r} cannot be read: {error}", "give a config.json") from None
    names = config.get("architectures") if isinstance(config, dict) else None
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise InputError(
            f"{path!r} names no class of a model under 'architectures'",
            "give a config.json of Transformers, with its architectures",
        )
    return names[0], {key: value for key, value in config.items() if key not in ABOUT}
