"""The stored form of a namespace: keys, the journal, batches of changes, bodies beside the store, formats."""
