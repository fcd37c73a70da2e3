"""Settings: reads values by name and type."""

from appsettings.errors import BadValue

_NOTHING = object()
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class Settings:
    """A flat mapping of names to strings."""

    def __init__(self, values):
        self._values = dict(values)

    def get(self, name, default=_NOTHING):
        """The value of `name` as it stands."""
        if default is _NOTHING:
            return self._values[name]
        return self._values.get(name, default)

    def get_int(self, name, default=_NOTHING):
        """The value of `name` as an integer."""
        value = self.get(name, default)
        return value if value is default else int(value)

    def get_bool(self, name, default=_NOTHING):
        """The value of `name` as a truth value: yes/no, on/off, true/false, 1/0."""
        value = self.get(name, default)
        if value is default:
            return value
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise BadValue(name, f"{value!r} is neither yes nor no")
