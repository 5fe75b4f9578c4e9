"""Two namespaces that are paired under an alias: the declaration, and the comparison of what they hold. All pure."""
