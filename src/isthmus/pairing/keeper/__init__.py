"""The metadata of a pair, kept in step round by round."""
