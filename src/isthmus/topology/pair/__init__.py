"""Two namespaces that are paired under an alias: the declaration, and the comparison of their entities. All pure."""
