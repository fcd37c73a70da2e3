"""Typed access to a flat mapping of strings."""

from appsettings.errors import BadValue, MissingSetting, SettingError
from appsettings.reader import Settings

__all__ = ["BadValue", "MissingSetting", "SettingError", "Settings"]
