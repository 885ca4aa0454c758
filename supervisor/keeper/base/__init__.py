"""The foundation of the other keeper packages: clocks, background work, the journal, requests, secrets."""
