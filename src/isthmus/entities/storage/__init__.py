"""How a namespace lies in its store: keys, the journal, batches of changes, bodies beside the store, formats."""
