"""A config.json of Transformers. Enters: a path. Leaves: the class that it names and its settings.
No hub is asked, and no code of a model repository is run.
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


def read_configuration(path: str) -> tuple[str, dict[str, Any]]:
    """The name of a class, and settings."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path!r}", "give the path of a config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path!r} cannot be read: {error}", "give a config.json") from None
    names = told.get("architectures") if isinstance(told, dict) else None
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise InputError(
            f"{path!r} names no class of a model under 'architectures'",
            "give a config.json of Transformers, with its architectures",
        )
    return names[0], {key: value for key, value in told.items() if key not in ABOUT}
