"""A build backend that builds nothing: its metadata is the archive's own PKG-INFO."""

from __future__ import annotations

import shutil
from pathlib import Path


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: object = None
) -> str:
    """Write `NAME-VERSION.dist-info/METADATA`; the working folder is the unpacked archive."""
    fields: dict[str, str] = {}
    for line in Path("PKG-INFO").read_text("utf-8").splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(": ")
        fields.setdefault(key, value.strip())
    name = "{}-{}.dist-info".format(fields["Name"].replace("-", "_"), fields["Version"])
    Path(metadata_directory, name).mkdir()
    shutil.copyfile("PKG-INFO", Path(metadata_directory, name, "METADATA"))
    return name


class __legacy__:  # noqa: N801  # the name that packages without a pyproject.toml are built by
    """setuptools' entry for packages that only have a setup.py."""

    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
