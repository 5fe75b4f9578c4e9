"""The federation file as text: nodes, settings, references, schema, reference page, starters."""
