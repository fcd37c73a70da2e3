"""Stand-in; see metadata_from_pkg_info."""

from metadata_from_pkg_info import __legacy__, prepare_metadata_for_build_wheel

__all__ = ["__legacy__", "prepare_metadata_for_build_wheel"]
