"""The library that a folder is from."""

from __future__ import annotations

from pathlib import Path

from backends.errors import InvalidArgumentError
from builder.importing.adapterhub import read_adapterhub
from builder.importing.files import read_config
from builder.importing.imported import ImportedFolder
from builder.importing.peft_lora import read_peft_lora


def read_folder(folder: Path) -> ImportedFolder:
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder} is not a folder")
    path = folder / "adapter_config.json"
    if not path.exists():
        raise InvalidArgumentError(f"{folder} has no adapter_config.json; PEFT and AdapterHub folders can be imported")
    config = read_config(path)
    if "peft_type" in config:
        return read_peft_lora(folder, config)
    if "config" in config:
        return read_adapterhub(folder, config)
    raise InvalidArgumentError(f"{path} is neither of PEFT nor of AdapterHub: it has no peft_type and no config")
