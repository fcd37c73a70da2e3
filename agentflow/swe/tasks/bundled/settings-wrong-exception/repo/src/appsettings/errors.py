"""What can be wrong with a setting."""


class SettingError(Exception):
    """Base of them all."""

    def __init__(self, name, problem):
        self.name = name
        super().__init__(f"setting {name!r}: {problem}")


class MissingSetting(SettingError):
    """It is not there and there is no default."""


class BadValue(SettingError):
    """It is there but cannot be read as what was asked for."""
