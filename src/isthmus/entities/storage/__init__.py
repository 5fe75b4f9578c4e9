"""How a namespace is in its store: keys, the journal, batches of changes, bodies beside the store, formats."""
