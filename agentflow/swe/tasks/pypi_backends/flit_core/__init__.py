"""Stand-in; see metadata_from_pkg_info."""
