"""Store: the entries of all cached functions, with their number limited."""

from collections import OrderedDict


class Store:
    """Forgets the entry that was unused longest."""

    def __init__(self, max_entries=1000):
        self.max_entries = max_entries
        self._entries = OrderedDict()

    def __contains__(self, key):
        return key in self._entries

    def __len__(self):
        return len(self._entries)

    def read(self, key):
        self._entries.move_to_end(key)
        return self._entries[key]

    def write(self, key, value):
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def clear(self, prefix):
        for key in [key for key in self._entries if key[0] == prefix]:
            del self._entries[key]
