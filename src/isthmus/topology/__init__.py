"""The federation file: text → model → lint → plan, all pure."""
